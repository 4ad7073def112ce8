"""Optimizers beside the oracles of ``test_optimizer_oracles``: LAMB, Muon, groups, state; rules of scaling."""

import copy
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from training_factory import make_config, train_whole

from sweep.config.errors import InputError
from sweep.config.scaling import resolve_lr_rule, scale_adam_constants, scale_ema_decay, scale_lr, scale_weight_decay
from sweep.config.tables import ImageShape
from sweep.training.models.build import build_model
from sweep.training.optimizers import OPTIMIZERS, build_optimizer, orthogonalize_matrices

RATES = (0.1, 0.3, 0.2, 0.05, 0.02)


def small_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(216, 8), nn.Linear(8, 4)).double()


def train(name: str, model: nn.Module, **values: object) -> Iterator[list[Tensor]]:
    """Steps at the given rates; yields the gradients before each step is taken."""
    optimizer = build_optimizer(make_config(optimizer__name=name, batch__micro=256, **values), model)
    generator = torch.Generator().manual_seed(1)
    for rate in RATES:
        images = torch.randn(16, 3, 8, 8, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        model(images).square().mean().backward()
        yield [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()


def test_lamb_is_algorithm_2_of_its_paper() -> None:
    model = small_model()
    expected, start = ([parameter.detach().clone() for parameter in model.parameters()] for _ in range(2))
    means, squares = ([torch.zeros_like(weight) for weight in expected] for _ in range(2))
    settings = {"optimizer__weight_decay": 0.1, "optimizer__momentum": 0.8, "optimizer__beta2": 0.95}
    for step, (rate, gradients) in enumerate(zip(RATES, train("lamb", model, **settings), strict=True), start=1):
        for index, gradient in enumerate(gradients):
            w = expected[index]
            means[index] = 0.8 * means[index] + 0.2 * gradient
            squares[index] = 0.95 * squares[index] + 0.05 * gradient**2
            m, v = means[index] / (1 - 0.8**step), squares[index] / (1 - 0.95**step)
            update = m / (v.sqrt() + 1e-6)
            if w.ndim > 1:
                update = update + 0.1 * w
                update = update * w.norm() / update.norm()
            expected[index] = w - rate * update
    for parameter, wanted, before in zip(model.parameters(), expected, start, strict=True):
        assert torch.allclose(parameter, wanted, rtol=1e-10, atol=1e-12)
        assert not torch.allclose(parameter, before, atol=1e-6)


@pytest.mark.parametrize("shape", [(24, 60), (60, 24), (32, 32)])
def test_orthogonalization_leaves_singular_vectors_and_levels_their_values(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    matrices = torch.randn(3, *shape, dtype=torch.float64)
    out = orthogonalize_matrices(matrices)
    for before, after in zip(matrices, out, strict=True):
        left, values, right = torch.linalg.svd(before, full_matrices=False)
        levelled = left.T @ after @ right.T
        assert torch.allclose(levelled, torch.diag(levelled.diag()), atol=1e-8)
        kept = levelled.diag()[values > 0.02 * values.norm()]
        assert kept.min() > 0.6
        assert kept.max() < 1.3


@pytest.mark.parametrize("name", ["resnet8", "vit_micro"])
def test_muon_takes_inner_matrices_and_adamw_the_rest(name: str) -> None:
    model = build_model(make_config(model__name=name).model, ImageShape(1, 8, 10))
    settings = make_config(model__name=name, optimizer__name="muon", optimizer__weight_decay=0.1)
    optimizer = build_optimizer(settings, model)
    names = {id(parameter): key for key, parameter in model.named_parameters()}
    chosen = {names[id(p)] for group in optimizer.param_groups if group["matrix"] for p in group["params"]}
    everything = sorted(names[id(p)] for group in optimizer.param_groups for p in group["params"])
    assert everything == sorted(names.values())
    weights = {name for name, parameter in model.named_parameters() if parameter.ndim in {2, 4}}
    outer = {"heads.head.weight", "conv_proj.weight"} if name == "vit_micro" else {"8.weight", "0.weight"}
    assert outer <= weights
    assert chosen == weights - outer


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_state_goes_with_state_dict(name: str) -> None:
    model = small_model()
    optimizer = build_optimizer(make_config(optimizer__name=name), model)
    twin = copy.deepcopy(model)
    other = build_optimizer(make_config(optimizer__name=name), twin)

    def step(network: nn.Module, stepper: torch.optim.Optimizer) -> None:
        stepper.zero_grad()
        network(torch.ones(2, 3, 8, 8, dtype=torch.float64)).square().mean().backward()
        stepper.step()

    for _ in range(3):
        step(model, optimizer)
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for _ in range(2):
        step(model, optimizer)
        step(twin, other)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_frozen_parameters_have_no_state(name: str) -> None:
    model = small_model()
    frozen = next(model.parameters()).requires_grad_(False)
    before = frozen.detach().clone()
    for _ in train(name, model, optimizer__weight_decay=0.1):
        pass
    assert torch.equal(frozen, before)
    optimizer = build_optimizer(make_config(optimizer__name=name), model)
    assert all(parameter is not frozen for group in optimizer.param_groups for parameter in group["params"])


def test_nothing_left_to_train_is_refused() -> None:
    with pytest.raises(InputError, match="frozen"):
        build_optimizer(make_config(), small_model().requires_grad_(False))


@pytest.mark.parametrize("name", ["nesterov", "schedule_free", "schedule_free_sgd"])
def test_momentum_that_is_needed(name: str) -> None:
    with pytest.raises(InputError, match=r"optimizer\.momentum"):
        build_optimizer(make_config(optimizer__name=name, optimizer__momentum=0.0), small_model())


@pytest.mark.parametrize(("name", "rule"), [
    *((name, "linear") for name in ("sgd", "momentum", "nesterov", "lars", "schedule_free_sgd")),
    *((name, "sqrt") for name in ("adam", "adamw", "rmsprop", "lamb", "muon", "schedule_free")),
])  # fmt: skip
def test_auto_is_linear_for_sgd_and_the_root_for_adam(name: str, rule: str) -> None:
    settings = make_config(optimizer__name=name, optimizer__lr=0.3, rules__lr="auto")
    assert resolve_lr_rule(name, settings.rules) == rule
    factor = {"linear": 9, "sqrt": 3}[rule]
    assert scale_lr(settings.optimizer, settings.rules, 256 * 9) == pytest.approx(0.3 * factor)
    assert scale_lr(settings.optimizer, settings.rules, 256) == pytest.approx(0.3)


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_weight_decay_follows_its_rule_and_reaches_the_optimizer(rule: str, factor: float) -> None:
    decay = {"optimizer__weight_decay": 0.05, "rules__weight_decay": rule}
    settings = make_config(optimizer__name="adamw", batch__micro=256, batch__accumulation=4, **decay)
    assert scale_weight_decay(settings.optimizer, settings.rules, 1024) == pytest.approx(0.05 * factor)
    optimizer = build_optimizer(settings, small_model())
    assert [group["weight_decay"] for group in optimizer.param_groups] == [pytest.approx(0.05 * factor), 0.0]


def test_betas_and_epsilon_follow_square_root_scaling() -> None:
    settings = make_config(optimizer__name="adamw", rules__betas="sqrt", optimizer__eps=1e-6)
    scaled = {256: (0.9, 0.999, 1e-6), 1024: (0.6, 0.996, 5e-7), 64: (0.975, 0.99975, 2e-6)}
    for batch, expected in (scaled | {256 * 16: (0.0, 0.984, 2.5e-7)}).items():
        assert scale_adam_constants(settings.optimizer, settings.rules, batch) == pytest.approx(expected)
    settings = make_config(optimizer__name="adamw", rules__betas="sqrt", batch__micro=1024)
    group = build_optimizer(settings, small_model()).param_groups[0]
    assert (*group["betas"], group["eps"]) == pytest.approx((0.6, 0.996, 5e-9))


@pytest.mark.parametrize(("power", "batch", "factor"), [(0.7, 1024, 4**0.7), (0.0, 1024, 1.0), (1.0, 64, 0.25)])
def test_a_power_of_the_batch_for_rate_weight_decay_and_betas(power: float, batch: int, factor: float) -> None:
    powers = {f"rules__{key}": power for key in ("lr", "weight_decay", "betas")}
    decay = {"optimizer__weight_decay": 0.05, "optimizer__lr": 0.3, "optimizer__eps": 1e-7}
    settings = make_config(optimizer__name="adamw", **powers, **decay)
    section, rules = settings.optimizer, settings.rules
    assert scale_lr(section, rules, batch) == pytest.approx(0.3 * factor)
    assert scale_weight_decay(section, rules, batch) == pytest.approx(0.05 * factor)
    assert scale_adam_constants(section, rules, batch) == pytest.approx((1 - 0.1 * factor, 1 - 0.001 * factor, 1e-7))


def test_the_half_life_of_the_second_moment_is_as_many_samples_at_every_batch() -> None:
    settings = make_config(optimizer__name="adamw", rules__betas="half_life", optimizer__beta2=0.95)
    expected = 256 * math.log(0.5) / math.log(0.95)
    for batch in (1, 64, 256, 4096):
        constants = scale_adam_constants(settings.optimizer, settings.rules, batch)
        assert batch * math.log(0.5) / math.log(constants.beta2) == pytest.approx(expected)
        assert (constants.beta1, constants.eps) == (0.9, 1e-8)
    settings = make_config(optimizer__name="adamw", rules__betas="half_life", batch__micro=512)
    group = build_optimizer(settings, small_model()).param_groups[0]
    assert group["betas"] == pytest.approx((0.9, 0.999**2))


@pytest.mark.parametrize("lr_rule", ["none", "linear", "sqrt", "auto"])
def test_the_timescale_of_weight_decay_is_the_same_at_every_batch(lr_rule: str) -> None:
    rules = {"rules__weight_decay": "timescale", "rules__lr": lr_rule}
    settings = make_config(optimizer__name="adamw", optimizer__weight_decay=0.1, optimizer__lr=0.002, **rules)
    section = settings.optimizer
    expected = 256 / (0.002 * 0.1 * 50_000)
    for batch in (32, 256, 2048):
        rate, decay = scale_lr(section, settings.rules, batch), scale_weight_decay(section, settings.rules, batch)
        assert batch / (rate * decay * 50_000) == pytest.approx(expected)  # epochs
    factor = {"none": 8.0, "linear": 1.0, "sqrt": math.sqrt(8), "auto": math.sqrt(8)}[lr_rule]
    assert scale_weight_decay(section, settings.rules, 2048) == pytest.approx(0.1 * factor)


def test_a_rule_that_leaves_no_average_of_squares_is_refused() -> None:
    values = {"optimizer__name": "adamw", "batch__micro": 256, "rules__reference_batch": 1}
    with pytest.raises(InputError, match=r"'linear' brings beta2 to 0 at .* of 256, 256 times .*half_life"):
        make_config(**values, rules__betas="linear", optimizer__beta2=0.99)
    assert make_config(**values, rules__betas="half_life", optimizer__beta2=0.99)
    assert make_config(**values, optimizer__beta2=0.99, rules__betas=0.5)
    assert make_config(**{**values, "optimizer__name": "sgd"}, rules__betas="linear", optimizer__beta2=0.99)
    average = {"optimizer__name": "schedule_free", "rules__reference_batch": 16, "rules__betas": "linear"}
    with pytest.raises(InputError, match=r"'linear' brings beta1 to 0 at .* of 256"):
        make_config(**average, batch__micro=256)
    assert make_config(**average, batch__micro=128)


def test_a_trial_records_what_the_rules_made_of_its_recipe() -> None:
    settings = {
        "data.subset": 300, "batch.micro": 64, "budget.epochs": 1.0, "optimizer.name": "adamw", "optimizer.lr": 0.004,
        "optimizer.weight_decay": 0.1, "rules.reference_batch": 16,
        "rules.lr": 0.25, "rules.weight_decay": "timescale", "rules.betas": "half_life",
    }  # fmt: skip
    evaluations, ending = train_whole(make_config(settings))
    expected = {"scaled_weight_decay": 0.1 * 4 / 4**0.25, "scaled_beta2": 0.999**4}
    assert {name: ending.measurements[name] for name in expected} == pytest.approx(expected)
    rates = [each.learning_rate for each in evaluations]
    assert 0 < max(rates) < 0.004 * 4**0.25  # cosine, after its top


def test_decay_of_the_average_by_its_power() -> None:
    rules = make_config(rules__ema="power").rules
    assert scale_ema_decay(0.99, rules, 256) == pytest.approx(0.99)
    assert scale_ema_decay(0.99, rules, 1024) == pytest.approx(0.99**4)
    assert scale_ema_decay(None, rules, 1024) == 0.0
