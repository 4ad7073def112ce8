"""Evaluations: which weights are evaluated and saved, by which views of an image, how many images at once."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from training_factory import CPU, make_batch, make_config, make_step, train_whole

from sweep.config.trial import TrialConfig
from sweep.training.evaluation import (
    EvalFit,
    averaged_model,
    count_most_images,
    evaluate_model,
    fit_eval_batch,
    predict,
)
from sweep.training.finish import evaluate_images
from sweep.training.setup import prepare_training
from sweep.training.step import Step


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return copy.deepcopy(model.state_dict())


def accuracy_of(step: Step) -> tuple[float, float]:
    with averaged_model(step, lambda: [make_batch(seed=9)]) as model:
        return evaluate_model(model, step, [make_batch(seed=2)])


def test_ema_has_its_closed_form_and_counts_optimizer_steps() -> None:
    step = make_step(make_config(regularization__ema_decay=0.5, precision__dtype="fp64"))
    expected = tensors(step.model)
    for index in range(8):
        images, labels = make_batch(seed=index)
        step([(images[:40], labels[:40]), (images[40:], labels[40:])], 64)
        decay = min(0.5, (1 + index) / (10 + index))
        for name, value in step.model.state_dict().items():
            if value.is_floating_point():
                expected[name] = decay * expected[name] + (1 - decay) * value
    assert step.ema.num_updates == 8
    averages = step.ema.model.state_dict()
    assert averages["1.num_batches_tracked"] == 16
    for name, value in expected.items():
        if value.is_floating_point():
            assert torch.allclose(averages[name], value, rtol=1e-12), name
    assert not torch.allclose(averages["0.weight"], step.model.state_dict()["0.weight"])


@pytest.mark.parametrize("settings", [{}, {"regularization__ema_decay": 0.9}, {"optimizer__name": "schedule_free"}])
@pytest.mark.parametrize("norm", ["batch", "group"])
def test_evaluation_leaves_no_trace(settings: dict[str, object], norm: str) -> None:
    step = make_step(make_config(model__norm=norm, model__dropout=0.1, **settings))
    for index in range(3):
        step([make_batch(seed=index)], 64)
    before, state = tensors(step.model), copy.deepcopy(step.optimizer.state_dict())
    random_state = torch.get_rng_state()
    accuracy_of(step)
    assert all(torch.equal(tensor, before[name]) for name, tensor in step.model.state_dict().items())
    assert str(step.optimizer.state_dict()) == str(state)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(module.training for module in step.model.modules())


def test_schedule_free_is_evaluated_at_its_average_with_statistics_of_it() -> None:
    step = make_step(make_config(optimizer__name="schedule_free", optimizer__lr=0.01, precision__dtype="fp64"))
    for index in range(6):
        step([make_batch(seed=index)], 64)
    trained = tensors(step.model)
    images = step.normalize(make_batch(seed=9)[0])
    with averaged_model(step, lambda: [make_batch(seed=9)]) as model:
        for name, parameter in model.named_parameters():
            assert not torch.equal(parameter, trained[name]), name
        model.eval()
        first_norm = nn.Sequential(*model.children())[1]
        features = nn.Sequential(*model.children())[0](images)
        assert torch.allclose(first_norm.running_mean, features.mean((0, 2, 3)))
        assert torch.allclose(first_norm.running_var, features.var((0, 2, 3)))
        model.train()
    y = step.model.get_parameter("0.weight")
    z, x = step.optimizer.state[y]["z"], step.optimizer.average(y)
    assert torch.allclose(0.1 * z + 0.9 * x, y)


def test_frozen_statistics_are_not_measured_anew() -> None:
    step = make_step(make_config(optimizer__name="schedule_free", model__freeze_stages=1))
    step([make_batch()], 64)
    before = step.model.get_buffer("1.running_mean").clone()
    later = step.model.get_buffer("5.0.bn1.running_mean").clone()
    with averaged_model(step, lambda: [make_batch(seed=9)]):
        assert torch.equal(step.model.get_buffer("1.running_mean"), before)
        assert not torch.equal(step.model.get_buffer("5.0.bn1.running_mean"), later)


def configure(**values: object) -> TrialConfig:
    return make_config({"data.subset": 300, "budget.epochs": 4.0, "batch.micro": 32}, **values)


@pytest.mark.parametrize("settings", [
    {"regularization__ema_decay": 0.9},
    {"optimizer__name": "schedule_free", "optimizer__lr": 0.01, "schedule__name": "constant"},
    {"optimizer__name": "schedule_free_sgd", "optimizer__lr": 0.3, "schedule__name": "constant"},
])  # fmt: skip
def test_a_trial_saves_the_weights_that_it_evaluated(tmp_path: Path, settings: dict[str, object]) -> None:
    path = tmp_path / "model.safetensors"
    config = configure(**settings)
    evaluations, ending = train_whole(config, weights_path=str(path))
    assert ending.measurements["val_accuracy"] > 0.7
    setup = prepare_training(config, CPU)
    setup.model.load_state_dict(load_file(path))
    validation = setup.batches_of(setup.splits.validation)
    found = evaluate_model(setup.model, setup.step, validation())
    assert found == pytest.approx((evaluations[-1].val_loss, evaluations[-1].val_accuracy), rel=1e-5)


class HostReads(TorchDispatchMode):
    """Counts how often the host waits for a value of a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_the_average_stands_still_where_the_loss_scaler_skips_a_step() -> None:
    step = make_step(make_config(precision__dtype="fp16", regularization__ema_decay=0.5))
    expected = [value.detach().clone() for value in step.model.parameters()]
    for index in range(6):
        step.clear_gradients()
        step.accumulate([make_batch(seed=index)], 64)
        if index in {1, 4}:
            for parameter in step.model.parameters():
                parameter.grad = torch.full_like(parameter, torch.inf)
        before = [value.clone() for value in step.ema.tensors()]
        with HostReads() as reads:
            step.ema.update(torch.zeros((), dtype=torch.bool))
        assert reads.count == 0
        step.update()
        number = {0: 0, 2: 1, 3: 2, 5: 3}.get(index)
        if number is None:
            pairs = zip(before, step.ema.tensors(), strict=True)
            assert all(torch.equal(old, new) for old, new in pairs if old.is_floating_point())
            continue
        decay = min(0.5, (1 + number) / (10 + number))
        for average, value in zip(expected, step.model.parameters(), strict=True):
            average.copy_(decay * average + (1 - decay) * value.detach())
        for average, found in zip(expected, step.ema.model.parameters(), strict=True):
            assert torch.allclose(average, found, rtol=1e-5, atol=1e-7)
    assert (step.ema.num_updates, step.ema.state_dict()["num_updates"]) == (4, 4)
    assert step.precision.num_skipped_steps == 2


def test_the_logits_of_an_image_and_its_mirror_image_are_averaged() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2 * 3 * 4, 5)).double()
    images = torch.randn(6, 2, 3, 4, dtype=torch.float64)
    mirrored = torch.stack([images[..., column] for column in (3, 2, 1, 0)], dim=-1)
    expected = (model(images) + model(mirrored)) / 2
    torch.testing.assert_close(predict(model, images, "flip"), expected, rtol=0, atol=1e-15)
    assert (predict(model, images, "none") - expected).abs().max() > 0.01
    torch.testing.assert_close(predict(model, mirrored, "flip"), expected, rtol=0, atol=1e-15)


def test_a_trial_is_judged_by_both_views_and_trained_as_before(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    defaults = {"data.subset": 300, "budget.epochs": 2.0, "optimizer.lr": 0.05}
    plain, _ = train_whole(make_config(defaults))
    config = make_config(defaults, evaluation__tta="flip")
    seen, ending = train_whole(config, weights_path=str(path), read_test=True)
    assert [each.train_loss for each in seen] == [each.train_loss for each in plain]
    assert [each.val_loss for each in seen] != [each.val_loss for each in plain]
    setup = prepare_training(config, CPU)
    setup.model.load_state_dict(load_file(path))
    found = evaluate_images(setup, setup.batches_of(setup.splits.validation))
    assert found == pytest.approx((seen[-1].val_loss, seen[-1].val_accuracy), rel=1e-5)
    for split, name in ((setup.train_batches, "train"), (setup.batches_of(setup.splits.read_test()), "test")):
        assert evaluate_images(setup, split)[1] == pytest.approx(ending.measurements[f"{name}_accuracy"], rel=1e-5)


class Measured:
    """Peaks of 100 bytes and 10 for each image, and more from ``steep`` images on; remembers the sizes."""

    def __init__(self, steep: int = 10**6) -> None:
        self.sizes: list[int] = []
        self._steep = steep

    def __call__(self, size: int) -> int:
        self.sizes.append(size)
        return 100 + 10 * size + (1000 if size >= self._steep else 0)


def fit(micro: int, limit: int, expected: EvalFit, sizes: list[int], most: int = 1024, steep: int = 10**6) -> None:
    measured = Measured(steep)
    assert fit_eval_batch(measured, micro, most, 100, limit) == expected
    assert measured.sizes == sizes


def test_the_batch_is_the_largest_that_fits_into_the_memory_of_a_step() -> None:
    fit(8, 100 + 10 * 83, EvalFit(80, 900), [8, 80])  # in whole micro batches


def test_no_batch_is_larger_than_the_images_or_than_what_is_fast() -> None:
    assert fit_eval_batch(Measured(), 8, 50, 100, 10**9) == EvalFit(50, 600)
    fit(64, 10**9, EvalFit(50, 600), [50], most=50)
    assert [count_most_images(10**6, side) for side in (32, 224, 10**4)] == [1024, 167, 1]
    assert count_most_images(0, 32) == 1


def test_a_size_that_requires_more_than_was_predicted_is_halved() -> None:
    fit(8, 100 + 10 * 83, EvalFit(20, 300), [8, 80, 40, 20], steep=30)
    assert fit_eval_batch(Measured(steep=9), 8, 1024, 100, 100 + 10 * 20) == EvalFit(8, 180)


def test_a_micro_batch_that_does_not_fit_is_halved_down_to_one_image() -> None:
    fit(8, 125, EvalFit(2, 120), [8, 4, 2])
    assert fit_eval_batch(Measured(), 8, 1024, 100, 90) == EvalFit(1, 110)  # more than a step: told, not hidden
