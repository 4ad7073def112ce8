"""The gradient noise scale of whole trials: it is measured, leaves no trace, and is recorded for each evaluation."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records_factory import add_trials, make_evaluation, make_store
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from training_factory import make_config, train_whole

from sweep.config.errors import InputError
from sweep.config.trial import build_config
from sweep.measurement.gradient_noise import NoiseMeter, estimate_moments
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, Evaluation, Message, TrialTask, decode_message, encode_message
from sweep.training.trial import run_trial


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, 3))
    return nn.Sequential(*layers)


def data(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 1, 8, 8, generator=generator), torch.randint(0, 3, (count,), generator=generator)


def gradient_of(model: nn.Module, calls: list[int]) -> Any:
    def gradient(images: Tensor, labels: Tensor) -> list[Tensor]:
        calls.append(len(labels))
        return list(torch.autograd.grad(cross_entropy(model(images), labels), list(model.parameters())))

    return gradient


def square(gradients: list[Tensor]) -> float:
    return float(sum(gradient.double().square().sum() for gradient in gradients))


def test_two_halves_tell_what_two_micro_batches_would() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3)).double()  # the squared gradient is a small difference
    images, labels = data(13)
    images = images.double()
    gradient = gradient_of(model, [])
    meter = NoiseMeter(model.parameters(), model.buffers())
    meter.measure_halves(images, labels, gradient)
    small = [square(gradient(images[:7], labels[:7])), square(gradient(images[7:], labels[7:]))]
    expected = estimate_moments(small, [7, 6], square(gradient(images, labels)))
    found = meter.read()
    assert found.trace / found.weight == pytest.approx(expected.noise_trace, rel=1e-5)
    assert found.square / found.weight == pytest.approx(expected.squared_gradient, rel=1e-4)


def test_windows_that_are_not_looked_at_accumulate_all_the_same() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 3))
    parts = [data(5, seed) for seed in range(2)]
    meter = NoiseMeter(model.parameters(), windows_every=3)
    looked_at = []
    for window in range(7):
        before = meter.read().trace
        gradients = []
        for is_metered in (True, False):
            model.zero_grad()
            for images, labels in parts if window != 4 else parts[:1]:  # a single one is no turn
                loss = cross_entropy(model(images), labels) / 2
                if is_metered and window != 4:
                    meter.backward(loss, 5, torch.tensor(0.5))
                else:
                    torch.autograd.backward(loss)
            if is_metered:
                meter.close_window(torch.tensor(1.0))
            gradients.append([parameter.grad for parameter in model.parameters()])
        assert all(map(torch.equal, *gradients))
        looked_at += [window] if meter.read().trace != before else []
        with torch.no_grad():
            model[1].weight *= 1.1
    assert looked_at == [0, 3]


def test_halves_leave_statistics_generators_and_gradients_as_they_were() -> None:
    model, (images, labels), calls = small_model(), data(16), []
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model[5].weight.grad = torch.ones_like(model[5].weight)
    generator = torch.get_rng_state()
    NoiseMeter(model.parameters(), model.buffers()).measure_halves(images, labels, gradient_of(model, calls))
    assert calls == [8, 8]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(generator, torch.get_rng_state())
    assert torch.equal(model[5].weight.grad, torch.ones_like(model[5].weight))
    assert model[0].weight.grad is None


def test_halves_are_taken_every_48th_step_and_not_of_smaller_batches() -> None:
    model, calls = small_model(), []
    meter, gradient = NoiseMeter(model.parameters(), model.buffers()), gradient_of(model, calls)
    meter.measure_halves(*data(8), gradient)  # the rehearsal's
    assert calls == [4, 4]
    meter.reset()
    taken = []
    for step in range(100):
        calls.clear()
        # its turn comes twice while batches are small
        meter.measure_halves(*data(6 if step in {24, 25} else 8), gradient)
        taken += [step] if calls else []
    assert taken == [26, 74]
    other = NoiseMeter(model.parameters(), model.buffers())
    other.load_state_dict(meter.state_dict())
    for step in range(100, 124):
        calls.clear()
        other.measure_halves(*data(8), gradient)
        assert bool(calls) == (step == 122)
    meter.reset()
    for _ in range(60):
        calls.clear()
        meter.measure_halves(*data(3), gradient)  # batch statistics want two of each half
        assert not calls


DEFAULTS = {"data.subset": 250, "budget.epochs": 8.0, "batch.micro": 16, "seed": 3}


def run(**values: object) -> tuple[list[Evaluation], Ending]:
    return train_whole(make_config(DEFAULTS, **values))


RECIPES: list[dict[str, object]] = [
    {"optimizer__lr": 0.002},
    {"batch__accumulation": 3, "data__augment": "crop_flip", "regularization__mixup": 0.2},
    {"budget__epochs": 3.0, "model__name": "vit_micro", "model__dropout": 0.1, "optimizer__name": "adamw",
     "optimizer__lr": 0.001},
    # a bfloat16 ResNet is slow on a CPU
    {"budget__epochs": 4.0, "optimizer__lr": 0.002, "model__dropout": 0.3, "precision__dtype": "bf16",
     "regularization__ema_decay": 0.9},
]  # fmt: skip


@pytest.mark.parametrize("values", RECIPES)
def test_measuring_changes_nothing_of_the_training(values: dict[str, object]) -> None:
    plain, plain_ending = run(**values)
    measured, ending = run(**values, diagnostics__noise_scale=True)
    # the memory of a step decides how many images are evaluated at once, which changes sums by rounding
    assert [each.val_loss for each in measured] == pytest.approx([each.val_loss for each in plain], rel=1e-6)
    not_compared: dict[str, Any] = {"noise_scale": None, "train_seconds": 0.0, "val_loss": 0.0}
    assert [replace(each, **not_compared) for each in measured] == [replace(each, **not_compared) for each in plain]
    known = [each.noise_scale for each in measured if each.noise_scale is not None]
    assert known
    assert all(scale > 0 for scale in known)
    assert all(each.noise_scale is None for each in plain)
    assert not {"noise_scale", "noise_scale_run"} & plain_ending.measurements.keys()
    assert ending.measurements.get("noise_scale") == measured[-1].noise_scale
    assert ending.measurements["noise_scale_run"] > 0
    assert ending.measurements["train_accuracy"] == plain_ending.measurements["train_accuracy"]


def test_a_trial_that_goes_on_measures_what_an_unbroken_one_does(tmp_path: Path) -> None:
    whole, whole_ending = run(diagnostics__noise_scale=True, optimizer__lr=0.002)
    config = make_config(DEFAULTS, diagnostics__noise_scale=True, optimizer__lr=0.002)
    task = TrialTask(number=0, config=config, device="cpu", checkpoint_dir=str(tmp_path), checkpoint_seconds=0.0)
    for message in (broken := run_trial(task)):
        if isinstance(message, Evaluation) and message.step > 70:
            break
    broken.close()
    *messages, ending = run_trial(task)
    again = [message for message in messages if isinstance(message, Evaluation)]
    assert [each.noise_scale for each in again] == [each.noise_scale for each in whole]
    for name in ("noise_scale_run", "num_noise_steps"):
        assert ending.measurements[name] == whole_ending.measurements[name] > 0


def test_no_step_shows_nothing_where_none_is_taken_apart() -> None:
    # 16 steps, and the first halves are those of the 25th
    told, ending = run(budget__epochs=1.0, diagnostics__noise_scale=True)
    assert [each.noise_scale for each in told] == [None]
    assert not {"noise_scale", "noise_scale_run"} & ending.measurements.keys()
    assert ending.measurements["num_noise_steps"] == 0


@pytest.mark.parametrize(("values", "message"), [
    ({"distributed.world_size": 2}, "diagnostics.noise_scale cannot be had"),
    ({"precision.cuda_graphs": True, "batch.accumulation": 2}, "one micro batch per optimizer step"),
])  # fmt: skip
def test_what_cannot_be_measured_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_config({"diagnostics.noise_scale": True, **values}, "test")


def test_an_evaluation_keeps_its_noise_scale_on_the_way_into_a_frame(tmp_path: Path) -> None:
    store = make_store(tmp_path / "study.sqlite")
    add_trials(store, [None])
    known: Message = make_evaluation(30, noise_scale=123.5)
    assert decode_message(encode_message(known)) == known
    store.add_evaluation("s", 0, 1, make_evaluation(30, noise_scale=123.5))
    assert [each.noise_scale for each in store.evaluations("s", 0)] == [None, None, 123.5]
    store.close()
    scales = load_frames(tmp_path, evaluations=True).evaluations["noise_scale"]
    assert scales.dtype == "float64"
    assert np.array_equal(scales.to_numpy(), [np.nan, np.nan, 123.5], equal_nan=True)
