"""Memory that really runs out, and a continuation, on a GPU."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sweep.config.trial import build_config
from sweep.measurement.memory import read_memory
from sweep.records.messages import Ending, Evaluation, Message, TrialTask
from sweep.training.trial import run_trial

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device was found"),
]
_GIVEN_BYTES = 4 * 2**30


@pytest.fixture
def small_device() -> Iterator[None]:
    torch.cuda.empty_cache()
    _, installed = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(_GIVEN_BYTES / installed)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def task(**values: object) -> TrialTask:
    settings = {"data.name": "synthetic", "data.subset": 8192, "budget.epochs": 3.0, "optimizer.lr": 0.02}
    settings |= {"model.name": "resnet18", "model.norm": "group", "batch.global": 4096, "batch.accumulation": None}
    settings |= {key.replace("__", "."): value for key, value in values.items()}
    return TrialTask(number=0, config=build_config(settings, "test"), device="cuda")


def train(trial: TrialTask) -> tuple[list[Evaluation], Ending]:
    *messages, ending = run_trial(trial)
    assert isinstance(ending, Ending)
    return [message for message in messages if isinstance(message, Evaluation)], ending


@pytest.mark.usefixtures("small_device")
def test_what_fits_is_found_and_the_update_is_the_one_asked_for() -> None:
    use = read_memory(torch.device("cuda", 0))
    assert use is not None
    assert use.total_bytes == pytest.approx(_GIVEN_BYTES, rel=0.01)
    told, ending = train(task(batch__micro="auto"))
    assert ending.outcome == "complete", ending.error
    micro = int(ending.measurements["micro_batch_size"])
    assert 8 <= micro < 4096
    assert ending.measurements["num_steps"] == 6
    assert ending.measurements["peak_memory_bytes"] < 0.85 * _GIVEN_BYTES
    given, _ = train(task(batch__micro=micro))
    for one, other in zip(told, given, strict=True):
        assert one.val_loss == pytest.approx(other.val_loss, rel=0.02)
    _, full = train(task(batch__micro=4096))
    assert full.outcome == "out_of_memory"
    assert train(task(batch__micro=micro))[1].outcome == "complete"  # nothing of it is left behind


def test_a_continued_trial_is_the_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.training.trial.WINDOW_SECONDS", 0.0)
    settings = {"batch__global": 512, "batch__micro": 256, "precision__dtype": "fp16", "model__dropout": 0.1}
    expected, _ = train(task(**settings))
    broken = replace(task(**settings), checkpoint_dir=str(tmp_path / "checkpoints"), checkpoint_seconds=0.0)
    messages: Iterator[Message] = run_trial(broken)
    for message in messages:
        if isinstance(message, Evaluation):
            break
    messages.close()  # type: ignore[attr-defined]
    found, ending = train(broken)
    assert ending.outcome == "complete", ending.error
    assert [each.step for each in found] == [each.step for each in expected]
    for one, other in zip(found, expected, strict=True):  # a GPU may add in another order
        assert one.val_loss == pytest.approx(other.val_loss, rel=0.02)
