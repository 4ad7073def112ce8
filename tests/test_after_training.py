"""What is looked at after a training: sharpness against exact Hessians and known boxes, and what limited its speed."""

import copy
import itertools
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from records_factory import make_config as make_record_config
from records_factory import make_ending, make_spec, make_store
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from training_factory import make_config, train_whole

from sweep.cli.app import run_app
from sweep.cli.check import Check, check_trials
from sweep.config.metrics import METRICS, SHARPNESS
from sweep.config.tables import ImageShape
from sweep.config.trial import TrialConfig, build_config
from sweep.measurement.clock import Ledger, StepWindow
from sweep.measurement.memory import MemoryUse
from sweep.records.loading import load_frames
from sweep.records.messages import Ending
from sweep.search.session import keep_portable
from sweep.training import finish
from sweep.training.data.feeders import ReadyFeeder
from sweep.training.evaluation import EvalFit
from sweep.training.finish import CachedSteps, classify_bottleneck, find_fixed_share
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


def ledger_of(step_seconds: float, waited: float = 0.0) -> Ledger:
    """Thirty windows of ten steps each; ``waited`` is the share of data wait."""
    ledger = Ledger()
    ledger.windows = [StepWindow(10 * step_seconds, 10, 640, True)] * 30
    ledger.seconds["data_wait"] = 300 * step_seconds * waited
    ledger.seconds["step"] = 300 * step_seconds * (1 - waited)
    return ledger


@pytest.mark.parametrize(("cached", "share", "waited", "expected"), [
    (0.0079, 0.1, 0.2, "data_bound"), (0.0081, 0.1, 0.2, "compute_bound"), (0.0100, 0.49, 0.0, "compute_bound"),
    (0.0100, 0.51, 0.0, "launch_bound"),
    (0.0020, 0.9, 0.2, "data_bound"),  # what a step waits for comes first
    (0.0150, 0.0, 0.0, "compute_bound"),
    (0.0100, None, 0.0, ""),  # a smaller micro batch could not be tried
    (0.0050, 0.1, 0.051, "data_bound"),
    (0.0050, 0.1, 0.049, "compute_bound"),  # nearly no wait: cached steps were faster for another reason
    (0.0050, None, 0.006, ""),
    (None, None, 0.3, "data_bound"), (None, None, 0.1, ""),  # without cached steps only waiting can be seen
])  # fmt: skip
def test_the_bottleneck_of_a_step_of_10_ms(
    cached: float | None, share: float | None, waited: float, expected: str
) -> None:
    steps = None if cached is None else CachedSteps(cached, share)
    assert classify_bottleneck(ledger_of(0.01, waited), steps) == expected


def test_a_long_step_that_does_not_wait_is_bound_by_computing() -> None:
    assert classify_bottleneck(ledger_of(1.0, waited=0.1), None, is_long=True) == "compute_bound"
    assert classify_bottleneck(ledger_of(1.0), CachedSteps(1.0, None), is_long=True) == "compute_bound"


@pytest.mark.parametrize("size_ratio", [0.5, 2.0, 0.45])
def test_the_fixed_share_is_that_of_a_line(size_ratio: float) -> None:
    fixed, each, micro = 3.0, 0.1, 20
    ratio = (fixed + each * micro * size_ratio) / (fixed + each * micro)
    assert find_fixed_share(ratio, size_ratio) == pytest.approx(0.6)


def train(**settings: Any) -> Ending:
    values = {"data.name": "digits", "budget.epochs": 8.0, "batch.micro": 64}
    if "budget__steps" in settings:
        del values["budget.epochs"]
    return train_whole(make_config(values, **settings))[1]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Looks at short trainings as well, and on however slow a machine."""
    for name, value in (("SHARE", 10.0), ("SECONDS", 60.0), ("STEPS", 4)):
        monkeypatch.setattr(finish, f"BOTTLENECK_{name}", value)
    monkeypatch.setattr(finish, "_LONG_SECONDS", 60.0)
    return monkeypatch


def test_a_training_on_slow_data_is_data_bound(eager: pytest.MonkeyPatch) -> None:
    given = ReadyFeeder.micro_batches

    def slow(self: ReadyFeeder, window: Any) -> Iterator[Any]:
        for batch in given(self, window):
            time.sleep(0.05)
            yield batch

    eager.setattr(ReadyFeeder, "micro_batches", slow)
    ending = train(budget__steps=12, batch__micro=4)
    assert ending.bottleneck == "data_bound"
    assert ending.measurements["diagnostics_seconds"] > 0.0


def test_a_training_that_the_allocator_holds_up_is_thrashing_and_flagged(eager: pytest.MonkeyPatch) -> None:
    num_retries = itertools.count()  # none before the training, and one more at each reading
    eager.setattr("sweep.training.trial.read_memory", lambda _device: MemoryUse(100, 100, 100, next(num_retries)))
    ending = train(budget__steps=12, batch__micro=4)
    assert ending.bottleneck == "thrashing"
    assert "allocator_retries" in ending.quality_flags


@pytest.mark.parametrize(
    ("fixed_seconds", "seconds_each", "expected"), [(0.1, 0.0, "launch_bound"), (0.0, 0.025, "compute_bound")]
)
def test_a_step_is_bound_by_launches_or_computing(eager, fixed_seconds, seconds_each, expected) -> None:
    forward = torch.nn.Linear.forward

    def slow(self: torch.nn.Linear, images: torch.Tensor) -> torch.Tensor:
        time.sleep(fixed_seconds + seconds_each * len(images))
        return forward(self, images)

    eager.setattr(finish, "_DATA_SHARE", 10.0)  # a machine that others leave meanwhile would look like slow data
    eager.setattr(torch.nn.Linear, "forward", slow)
    assert train(budget__steps=12, batch__micro=4).bottleneck == expected


def test_looking_changes_no_measurement_and_may_fail(eager: pytest.MonkeyPatch, caplog) -> None:
    # The measured memory decides how many images are evaluated at once, which changes a loss by rounding.
    eager.setattr("sweep.training.warmup.fit_eval_batch", lambda measure, micro, *_: EvalFit(micro, measure(micro)))
    looked = train(budget__steps=25, batch__micro=16)

    def fail(*_arguments: object) -> None:
        raise torch.OutOfMemoryError("no room for a second batch")

    eager.setattr(finish, "_time_cached_steps", fail)
    failed = train(budget__steps=25, batch__micro=16)
    assert (failed.outcome, failed.bottleneck) == ("complete", "")
    assert "no room" in caplog.text
    assert looked.bottleneck
    for name in ("val_accuracy", "val_loss", "train_accuracy", "peak_memory_bytes", "num_steps"):
        assert looked.measurements[name] == failed.measurements[name]


@pytest.mark.parametrize("seconds_of_a_long_step", [0.0, 60.0])
def test_sixty_steps_are_looked_at_and_fewer_are_not_judged(monkeypatch, seconds_of_a_long_step: float) -> None:
    monkeypatch.setattr(finish, "BOTTLENECK_SECONDS", 60.0)  # on however slow a machine
    monkeypatch.setattr(finish, "_LONG_SECONDS", seconds_of_a_long_step)
    monkeypatch.setattr(finish, "_DATA_SHARE", 10.0)
    small = {"batch__micro": 4, "data__subset": 300, "model__name": "vit_micro"}
    short, long = train(budget__steps=59, **small), train(budget__steps=60, **small)
    assert short.bottleneck == ("" if seconds_of_a_long_step else "compute_bound")
    assert long.bottleneck in ("launch_bound", "compute_bound")


def test_a_bottleneck_is_kept_and_goes_with_a_reused_trial_on_the_same_device_only(tmp_path: Path) -> None:
    store = _study(tmp_path, [make_ending(0, bottleneck="launch_bound", quality_flags=("few_steps",))])
    trials = load_frames(tmp_path).trials
    assert trials["bottleneck"].tolist() == ["launch_bound"]
    known = store.find_by_key("key 0").ending
    assert keep_portable(known, {"device": "cpu"}) == known
    assert keep_portable(known, {"device": "another"}).bottleneck == ""
    assert "train_seconds" not in keep_portable(known, {"device": "another"}).measurements
    store.close()


def _study(folder: Path, endings: list[Ending]) -> Any:
    spec = make_spec()
    store = make_store(folder / "study.sqlite", spec)
    for number, ending in enumerate(endings):
        store.add_trial(spec.name, number, "search", make_record_config(number), f"key {number}")
        store.finish_trial(spec.name, number, ending)
    return store


def test_a_check_says_what_held_trials_up_and_what_to_change(tmp_path: Path) -> None:
    endings = [
        make_ending(0, bottleneck="launch_bound"),
        make_ending(1, bottleneck="launch_bound", quality_flags=("spread", "busy_host")),
        make_ending(2, bottleneck="compute_bound", quality_flags=("spread",)),
        make_ending(3, quality_flags=("slowed_by_others",)), make_ending(4, quality_flags=("slowed_by_others",)),
    ]  # fmt: skip
    endings[3].measurements["slowdown_by_others"] = 0.4
    _study(tmp_path, endings).close()
    launch, compute, spread, slowed, busy, _data = check_trials(load_frames(tmp_path))
    assert (launch.name, launch.status, compute.name) == ("launch bound", "note", "compute bound")
    assert launch.found.startswith("2 of 5 trials: ")
    assert "raise batch.micro" in launch.remedy
    assert spread.found.startswith("2 of 5 trials: ")
    assert slowed.name == "slowed by others"  # nothing stands for one of them
    assert slowed.found.startswith("2 of 5 trials: ")
    assert slowed.found.endswith("(another time stands for 1)")
    assert all("--no-reuse" in check.remedy for check in (slowed, busy))
    assert [check.status for check in (compute, spread, slowed, busy)] == ["ok", "noticed", "note", "noticed"]


def test_a_check_of_a_study_speaks_json_where_nothing_was_looked_for(tmp_path: Path, capsys) -> None:
    _study(tmp_path / "runs" / "made", [make_ending(0)]).close()
    assert run_app(["check", "made", "--root", str(tmp_path / "runs"), "--json"]) == 0
    found, data = json.loads(capsys.readouterr().out)["trials"]
    assert (data["name"], data["status"]) == ("data", "note")
    assert found == Check("bottleneck", "ok", "not determined in any of 1 trial", "train for longer")._asdict()
