"""A trial on a GPU: what cannot be seen on a CPU."""

from dataclasses import replace

import pytest
import torch

from sweep.config.trial import build_config
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.training.trial import run_trial

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device was found"),
]


def run(**values: object) -> tuple[list[Evaluation], Ending]:
    settings = {"data.name": "synthetic", "data.subset": 2048, "budget.epochs": 2.0, "optimizer.lr": 0.05}
    settings |= {key.replace("__", "."): value for key, value in values.items()}
    *messages, ending = run_trial(TrialTask(number=0, config=build_config(settings, "test"), device="cuda"))
    assert isinstance(ending, Ending)
    return [message for message in messages if isinstance(message, Evaluation)], ending


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16", "fp64"])
@pytest.mark.parametrize("model", ["resnet8", "vit_micro"])
def test_precisions_learn(model: str, dtype: str) -> None:
    evaluations, ending = run(model__name=model, precision__dtype=dtype, data__augment="crop_flip")
    assert ending.outcome == "complete", ending.error
    assert evaluations[-1].val_loss < evaluations[0].val_loss
    assert ending.device == torch.cuda.get_device_name()
    assert ending.environment["driver"]


def test_peak_memory_grows_with_the_micro_batch_and_leaves_the_data_out() -> None:
    peaks = [run(batch__micro=size, budget__epochs=1.0)[1].measurements["peak_memory_bytes"] for size in (64, 256)]
    assert 2.0 < peaks[1] / peaks[0] < 4.5
    more_data = run(batch__micro=64, budget__epochs=1.0, data__subset=8192)[1].measurements["peak_memory_bytes"]
    assert more_data == pytest.approx(peaks[0], rel=0.05)


def test_out_of_memory_is_an_outcome() -> None:
    torch.cuda.set_per_process_memory_fraction(0.002)
    try:
        _, ending = run(batch__micro=2048, model__name="resnet50", data__image_size=64)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert ending.outcome == "out_of_memory"
    assert ending.measurements["num_parameters"] > 0


def test_streamed_data_train_like_resident_ones() -> None:
    resident, _ = run(data__augment="crop_flip")
    streamed, _ = run(data__augment="crop_flip", data__placement="host", data__workers=2)
    assert streamed[0].train_loss == pytest.approx(resident[0].train_loss, rel=0.02)


def test_step_time_includes_what_the_device_does() -> None:
    _, ending = run(model__name="resnet18", batch__micro=512, budget__epochs=4.0)
    measured = ending.measurements
    assert measured["step_seconds_median"] * measured["num_steps"] == pytest.approx(measured["train_seconds"], rel=0.3)


def test_unknown_gpu_is_a_clean_error() -> None:
    task = TrialTask(number=0, config=build_config({}, "test"))
    (ending,) = run_trial(replace(task, device="cuda:99"))
    assert isinstance(ending, Ending)
    assert ending.error.startswith("device 'cuda:99'")
