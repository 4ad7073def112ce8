"""Sharpness against exact Hessians, against boxes whose highest corner is known, and in whole trials."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from training_factory import make_config, train_whole

from sweep.config.metrics import METRICS, SHARPNESS
from sweep.config.tables import ImageShape
from sweep.config.trial import TrialConfig, build_config
from sweep.training import finish
from sweep.training.models.build import build_model
from sweep.training.precision import arrange_model, make_precision
from sweep.training.setup import prepare_training
from sweep.training.sharpness import LossLandscape, find_top_eigenvalue, measure_keskar_sharpness, measure_sharpness

Batches = list[tuple[Tensor, Tensor]]


def batches(count: int = 40) -> Batches:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(count, 1, 8, 8, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 4, (count,), generator=generator)
    return list(zip(torch.split(images, 16), torch.split(labels, 16), strict=True))  # 16, 16, 8: shares differ


def landscape(model: nn.Module, data: Batches, left_out: str = "-") -> LossLandscape:
    names = frozenset(name for name, _ in model.named_parameters() if not name.startswith(left_out))
    return LossLandscape(model, names, lambda images: images, lambda: data)


def exact_hessian(model: nn.Module, data: Batches) -> Tensor:
    """Of the mean loss over all images, by torch.func."""
    names, shapes = zip(*((name, value.shape) for name, value in model.named_parameters()), strict=True)
    images, labels = (torch.cat(parts) for parts in zip(*data, strict=True))

    def loss(flat: Tensor) -> Tensor:
        parts = torch.split(flat, [shape.numel() for shape in shapes])
        weights = {name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)}
        return cross_entropy(torch.func.functional_call(model, weights, (images,)), labels)

    return torch.func.hessian(loss)(torch.cat([value.detach().flatten() for value in model.parameters()]))


def small_model() -> nn.Module:
    """Batch norm, dropout; trained a little."""
    torch.manual_seed(1)
    layers = (nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(72, 4))
    model = nn.Sequential(*layers).double()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for images, labels in batches() * 10:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(images), labels))
        optimizer.step()
    optimizer.zero_grad()
    return model


@pytest.mark.filterwarnings("ignore:.torch.jit.script")  # inside torch.func
def test_curvature_and_its_largest_eigenvalue_are_those_of_the_exact_hessian() -> None:
    model, data = small_model(), batches()
    surface = landscape(model, data)
    with surface.fix_model():
        hessian = exact_hessian(model, data)
        direction = surface.random_direction(seed=3)
        assert torch.allclose(surface.hessian_product(direction), hessian @ direction, rtol=1e-9, atol=1e-12)
        value, gradient = surface.loss_and_gradient()
        found = find_top_eigenvalue(surface)
    assert found == pytest.approx(float(torch.linalg.eigvalsh(hessian)[-1]), rel=0.01)
    images, labels = (torch.cat(parts) for parts in zip(*data, strict=True))
    loss = cross_entropy(model.eval()(images), labels)
    assert value == pytest.approx(float(loss.detach()), rel=1e-12)
    exact = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])
    assert np.allclose(gradient, exact.numpy(), rtol=1e-9, atol=1e-12)


class Valley(nn.Module):
    """Cross entropy at label 0 is sum(scale x^2) + 3: logits 0 and log(exp(q) - 1) have the cross entropy q."""

    def __init__(self, scale: list[float], start: list[float]) -> None:
        super().__init__()
        self.scale = torch.tensor(scale, dtype=torch.float64)
        self.weight = nn.Parameter(torch.tensor(start, dtype=torch.float64))

    def forward(self, images: Tensor) -> Tensor:
        loss = (self.scale * self.weight.square()).sum() + 3.0
        return torch.stack([torch.zeros_like(loss), torch.log(torch.expm1(loss))]).expand(len(images), 2)


def valley(scale: list[float], start: list[float]) -> LossLandscape:
    data = [(torch.zeros(count, 1, 1, 1), torch.zeros(count, dtype=torch.int64)) for count in (3, 2)]
    return landscape(Valley(scale, start), data)


@pytest.mark.parametrize(("scale", "largest"), [([1.0, 0.5, 0.1], 2.0), ([-3.0, 0.5, 0.1], 1.0), ([-3.0, -1.0], -2.0)])
def test_the_largest_eigenvalue_is_not_the_one_largest_in_size(scale: list[float], largest: float) -> None:
    surface = valley(scale, [0.1] * len(scale))
    with surface.fix_model():
        assert find_top_eigenvalue(surface) == pytest.approx(largest, rel=0.01)


@pytest.mark.parametrize("epsilon", [1e-3, 5e-4])
def test_keskars_measure_is_the_rise_to_the_highest_corner_of_the_box(epsilon: float) -> None:
    scale, start = [2.0, 0.5, 0.0, 1.0], [1.0, -0.5, 0.3, -2.0]
    surface = valley(scale, start)
    with surface.fix_model():
        found = measure_keskar_sharpness(surface, epsilon)
    base = sum(weight * x * x for weight, x in zip(scale, start, strict=True)) + 3.0
    corner = [abs(x) + epsilon * (abs(x) + 1) for x in start]
    highest = sum(weight * x * x for weight, x in zip(scale, corner, strict=True)) + 3.0
    assert found == pytest.approx((highest - base) / (1 + base) * 100, rel=1e-6)


def test_asking_leaves_the_model_as_it_was() -> None:
    model = small_model()
    model[5].eval()
    model[0].requires_grad_(False)  # as a moving average is, and frozen stages
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    generator = torch.get_rng_state()
    surface = landscape(model, batches(), left_out="0.")
    with surface.fix_model():
        assert len(surface.weights()) == sum(value.numel() for value in model.parameters()) - 20
        find_top_eigenvalue(surface)
        measure_keskar_sharpness(surface)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert modes == [module.training for module in model.modules()]
    assert [value.requires_grad for value in model.parameters()] == [False, False, True, True, True, True]
    assert all(value.grad is None for value in model.parameters())
    assert torch.equal(generator, torch.get_rng_state())


MODELS: list[dict[str, Any]] = [
    {"model.name": "resnet8", "precision.checkpointing": True, "precision.channels_last": True},
    {"model.name": "resnet8", "model.norm": "group"}, {"model.name": "vit_micro", "model.dropout": 0.1},
]  # fmt: skip


@pytest.mark.parametrize("values", MODELS, ids=lambda values: "-".join(map(str, values.values())))
def test_every_kind_of_model_can_be_differentiated_twice(values: dict[str, Any]) -> None:
    config, cpu = build_config({**values, "precision.dtype": "fp64"}, "test"), torch.device("cpu")
    torch.manual_seed(0)
    model = build_model(config.model, ImageShape(1, 8, 4))
    model = arrange_model(model.to(dtype=make_precision(config.precision, cpu).weights), config.precision)
    surface = landscape(model, batches(16))
    with surface.fix_model():
        start, direction = surface.weights(), surface.random_direction(1)
        curved = surface.hessian_product(direction).numpy()
        slopes = []
        for sign in (1, -1):
            surface.set_weights(start + sign * 1e-7 * direction.numpy())  # hardly a ReLU changes sides
            slopes.append(surface.loss_and_gradient()[1])
    difference = (slopes[0] - slopes[1]) / 2e-7
    assert np.linalg.norm(curved - difference) < 1e-3 * np.linalg.norm(difference)


@torch.no_grad()
def rescale_before_norm(model: nn.Module, factor: float) -> None:
    """Multiplies the weights of the convolution, and makes the statistics of the norm those of its new output."""
    convolution, norm = list(model.children())[:2]
    for tensor in (convolution.weight, convolution.bias, norm.running_mean):
        tensor.mul_(factor)
    norm.running_var.copy_((norm.running_var + norm.eps) * factor**2 - norm.eps)


def test_both_measures_change_with_the_scale_of_weights_that_changes_no_loss() -> None:
    # as the metrics, the finding and docs/explanation/pitfalls.md say of them
    measured = []
    for factor in (1.0, 0.2):
        model = small_model()
        rescale_before_norm(model, factor)
        surface = landscape(model, batches())
        with surface.fix_model():
            loss, _ = surface.loss_and_gradient()
            measured.append((loss, find_top_eigenvalue(surface), measure_keskar_sharpness(surface)))
    (loss, curvature, rise), (same, other_curvature, other_rise) = measured
    assert same == pytest.approx(loss, rel=1e-6)
    assert other_curvature > 2 * curvature
    assert other_rise > 1.2 * rise
    assert all("Dinh et al. 2017" in METRICS[name].description for name in SHARPNESS)


def configure(**values: object) -> TrialConfig:
    return make_config({"data.subset": 60, "budget.epochs": 1.0, "diagnostics.sharpness": True}, **values)


def measure(config: TrialConfig, **task: Any) -> dict[str, float]:
    return train_whole(config, **task)[1].measurements


def test_a_trial_records_both_on_request_and_trains_the_same() -> None:
    asked = measure(configure())
    assert all(asked[name] > 0 for name in SHARPNESS)
    # a study asks for them at confirmed trials only
    searched = measure(configure(), measure_costly=False)
    plain = measure(configure(diagnostics__sharpness=False))
    assert not set(SHARPNESS) & (searched.keys() | plain.keys())
    for name in ("val_loss", "train_accuracy", "num_steps"):
        assert asked[name] == searched[name] == plain[name]


@pytest.mark.parametrize("values", [{"regularization__ema_decay": 0.9}, {"optimizer__name": "schedule_free"}])
def test_it_is_measured_at_the_weights_that_are_evaluated(values: dict[str, object], tmp_path: Path) -> None:
    given = configure(model__norm="group", optimizer__lr=0.01, **values)
    saved = tmp_path / "weights.safetensors"
    found = measure(given, weights_path=str(saved))
    work = prepare_training(given, torch.device("cpu"))
    work.model.load_state_dict(load_file(saved))
    plain = replace(work, step=replace(work.step, ema=None, optimizer=torch.optim.SGD(work.model.parameters())))
    again = measure_sharpness(given, plain)
    assert {name: found[name] for name in SHARPNESS} == pytest.approx(again, rel=1e-3)


def test_a_device_without_room_for_it_does_not_spoil_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object) -> dict[str, float]:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(finish, "measure_sharpness", fail)
    assert not set(SHARPNESS) & measure(configure()).keys()
