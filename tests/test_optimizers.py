"""Optimizers: by the formulas of their papers and as others have written them; groups, state, rules of scaling.

Others' are compared over twenty steps of random gradients, in float64. Where a paper and a package differ, ours follows
the paper, and the package is set so that the difference is gone:

- Schedule-free AdamW: ``schedulefree`` divides the mean square by 1 - beta2^t and averages by the highest rate so far;
  algorithm 1 of the paper, and ours, has sqrt(1 - beta2^t) in the rate, and so in weight decay and averaging too.
- LARS: ``pytorch_optimizer`` multiplies the velocity by the rate; algorithm 1 of the paper, and ours, has it inside.
- LAMB: ``pytorch_optimizer`` corrects the bias of the first moment alone, after the trust ratio, and limits a weight's
  norm to 10; algorithm 2 of the paper, and ours, corrects both moments before it.
- Muon: torch iterates in bfloat16, ours on a CPU in the precision of the parameters.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import pytorch_optimizer
import schedulefree
import torch
from torch import Tensor, nn
from training_factory import make_config, train_whole

from sweep.config.errors import InputError
from sweep.config.scaling import AdamConstants, resolve_lr_rule, scale_adam_constants, scale_lr, scale_weight_decay
from sweep.config.sections import OptimizerSection
from sweep.config.study_file import build_study
from sweep.config.tables import ImageShape
from sweep.config.trial import build_config
from sweep.training.models.build import build_model
from sweep.training.optimizers import (
    OPTIMIZERS,
    Lamb,
    Lars,
    Muon,
    RmsProp,
    ScheduleFree,
    build_optimizer,
    orthogonalize_matrices,
)

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


@pytest.mark.parametrize("name", ["nesterov", "schedule_free", "schedule_free_sgd"])
def test_momentum_that_is_needed_and_something_to_train(name: str) -> None:
    with pytest.raises(InputError, match=r"optimizer\.momentum"):
        build_optimizer(make_config(optimizer__name=name, optimizer__momentum=0.0), small_model())
    with pytest.raises(InputError, match="frozen"):
        build_optimizer(make_config(optimizer__name=name), small_model().requires_grad_(False))


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


def test_betas_and_epsilon_follow_square_root_scaling() -> None:
    settings = make_config(optimizer__name="adamw", rules__betas="sqrt", optimizer__eps=1e-6)
    scaled = {256: (0.9, 0.999, 1e-6), 1024: (0.6, 0.996, 5e-7), 64: (0.975, 0.99975, 2e-6)}
    for batch, expected in (scaled | {256 * 16: (0.0, 0.984, 2.5e-7)}).items():
        assert scale_adam_constants(settings.optimizer, settings.rules, batch) == pytest.approx(expected)
    settings = make_config(optimizer__name="adamw", rules__betas="sqrt", batch__micro=1024)
    group = build_optimizer(settings, small_model()).param_groups[0]
    assert (*group["betas"], group["eps"]) == pytest.approx((0.6, 0.996, 5e-9))


@pytest.mark.parametrize(("power", "batch", "factor"), [
    (0.7, 1024, 4**0.7), (0.0, 1024, 1.0), (1.0, 64, 0.25), ("none", 1024, 1.0), ("linear", 1024, 4.0),
])  # fmt: skip
def test_a_power_of_the_batch_for_rate_weight_decay_and_betas(power: object, batch: int, factor: float) -> None:
    powers = {f"rules__{key}": power for key in ("lr", "weight_decay", "betas")}
    decay = {"optimizer__weight_decay": 0.05, "optimizer__lr": 0.3, "optimizer__eps": 1e-7}
    settings = make_config(optimizer__name="adamw", batch__micro=batch, **powers, **decay)
    section, rules = settings.optimizer, settings.rules
    assert scale_lr(section, rules, batch) == pytest.approx(0.3 * factor)
    assert scale_weight_decay(section, rules, batch) == pytest.approx(0.05 * factor)
    assert scale_adam_constants(section, rules, batch) == pytest.approx((1 - 0.1 * factor, 1 - 0.001 * factor, 1e-7))
    groups = build_optimizer(settings, small_model()).param_groups
    assert [group["weight_decay"] for group in groups] == [pytest.approx(0.05 * factor), 0.0]


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


RATE, DECAY = 0.1, 0.5


def make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = build_model(build_config({"model.name": name}, "test").model, ImageShape(1, 8, 10)).double()
    if name == "vit_micro":
        nn.init.normal_(model.class_token)  # torchvision begins at zero, which no decay would move
        model.add_module("words", nn.Embedding(5, 4, dtype=torch.float64))
    return model


def take_step(model: nn.Module, optimizer: str, gradients: float = 0.0) -> dict[str, tuple[Tensor, Tensor]]:
    """Each parameter before and after one step with normal ``gradients`` of that deviation."""
    values = {"optimizer.name": optimizer, "optimizer.lr": RATE, "optimizer.weight_decay": DECAY, "batch.micro": 256}
    stepper = build_optimizer(build_config(values, "test"), model)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.grad = gradients * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    stepper.step()
    return {name: (before[name], parameter.detach()) for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "muon", "lamb"])
def test_weight_decay_spares_positions_class_tokens_and_tables_of_embeddings(optimizer: str) -> None:
    steps = take_step(make_model("vit_micro"), optimizer)
    spared = {name for name, (before, after) in steps.items() if torch.equal(before, after)}
    assert {"class_token", "encoder.pos_embedding", "words.weight"} <= spared
    weights = {name for name, (before, _) in steps.items() if before.ndim > 1}
    assert steps.keys() - weights <= spared  # norms and biases
    assert weights - spared == weights - {"class_token", "encoder.pos_embedding", "words.weight", "heads.head.weight"}
    if optimizer in {"sgd", "adamw"}:
        before, after = steps["conv_proj.weight"]
        assert torch.allclose(after, before * (1 - RATE * DECAY), rtol=1e-12)


def orthogonal_step(before: Tensor, gradient: Tensor) -> Tensor:
    """One step of Muon from rest, at its beta of 0.9: decay, and the orthogonalized matrix (rows, columns)."""
    ahead = (1 - 0.9**2) * gradient.reshape(len(gradient), -1)
    scale = 0.2 * math.sqrt(max(ahead.shape))
    update = orthogonalize_matrices(ahead[None])[0].reshape(before.shape) * scale
    return before * (1 - RATE * DECAY) - RATE * update


def adam_step(before: Tensor, gradient: Tensor, decay: float) -> Tensor:
    return before * (1 - RATE * decay) - RATE * gradient / (gradient.abs() + 1e-8)


@pytest.mark.parametrize(("name", "first"), [("vit_micro", "conv_proj.weight"), ("resnet8", "0.weight")])
def test_muon_leaves_the_first_convolution_to_adamw_and_takes_the_inner_ones(name: str, first: str) -> None:
    model = make_model(name)
    steps = take_step(model, "muon", gradients=1.0)
    inner = "encoder.layers.encoder_layer_0.mlp.0.weight" if name == "vit_micro" else "3.0.conv1.weight"
    for key, step in ((first, lambda *both: adam_step(*both, DECAY)), (inner, orthogonal_step)):
        gradient = model.get_parameter(key).grad
        before, after = steps[key]
        assert torch.allclose(after, step(before, gradient), rtol=1e-7, atol=1e-9), key


def test_muon_orthogonalizes_queries_keys_and_values_apart() -> None:
    model = make_model("vit_micro")
    key = "encoder.layers.encoder_layer_1.self_attention.in_proj_weight"
    before, after = take_step(model, "muon", gradients=1.0)[key]
    gradient = model.get_parameter(key).grad
    parts = zip(before.chunk(3), gradient.chunk(3), strict=True)
    assert torch.allclose(after, torch.cat([orthogonal_step(*part) for part in parts]), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(after, orthogonal_step(before, gradient), atol=1e-3)


def test_a_study_that_sweeps_the_optimizer_gives_each_its_own_momentum() -> None:
    spec = build_study({"name": "a", "question": "b", "space": {"optimizer.name": {"choice": ["muon", "adamw"]}}}, "t")
    found = {name: spec.config({"optimizer.name": name}).optimizer.momentum for name in ("muon", "adamw")}
    assert found == {"muon": 0.95, "adamw": 0.9}


NUM_STEPS = 20
SHAPES = ((6, 4), (3, 8), (4, 4))
Before = Callable[[int], object]


def of(build: Callable[..., Any], groups: list[dict[str, Any]], lr: float, *adam: float, **section: Any) -> Any:
    """The optimizer with ``adam``: beta1, beta2 and epsilon, and ``section`` for the configured values."""
    return build(groups, OptimizerSection(**section), lr, AdamConstants(*(adam or (0.9, 0.999, 1e-8))))


def make_parameters(shapes: Iterable[tuple[int, ...]] = SHAPES) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator, dtype=torch.float64)) for shape in shapes]


def compare(ours: Any, theirs: Any, before: Before = lambda _step: None, tolerance: float = 1e-10) -> None:
    """Takes steps of both with equal gradients, ``before`` each of which the rates may be set; compares all
    parameters after each of them."""
    pairs = [
        (one, other)
        for first, second in zip(ours.param_groups, theirs.param_groups, strict=True)
        for one, other in zip(first["params"], second["params"], strict=True)
    ]
    starts = [one.detach().clone() for one, _ in pairs]
    generator = torch.Generator().manual_seed(1)
    for step in range(1, NUM_STEPS + 1):
        for one, other in pairs:
            gradient = torch.randn(one.shape, generator=generator, dtype=torch.float64)
            one.grad, other.grad = gradient, gradient.clone()
        before(step)
        ours.step()
        theirs.step()
        for one, other in pairs:
            assert (one - other).abs().max() < tolerance
    assert all((one - start).abs().max() > 1e-2 for (one, _), start in zip(pairs, starts, strict=True))


def set_rate(optimizer: torch.optim.Optimizer, rate: float, key: str = "lr") -> None:
    for group in optimizer.param_groups:
        group[key] = rate


def warmed_up(step: int) -> float:
    return 0.05 * min(1.0, step / 5)


def compare_averages(ours: ScheduleFree, theirs: Any, before: Before) -> None:
    theirs.train()
    compare(ours, theirs, before)
    theirs.eval()
    for one, other in zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True):
        assert torch.allclose(ours.average(one), other, rtol=1e-10, atol=1e-12)


def test_schedule_free_sgd_is_that_of_its_authors() -> None:
    ours = of(ScheduleFree, [{"params": make_parameters(), "weight_decay": 0.1}], 0.05, name="schedule_free_sgd")
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "warmup_steps": 5}
    theirs = schedulefree.SGDScheduleFree(make_parameters(), **settings)
    compare_averages(ours, theirs, lambda step: set_rate(ours, warmed_up(step)))


@pytest.mark.parametrize("beta2", [0.0, 0.95])
def test_schedule_free_adamw_is_that_of_its_authors(beta2: float) -> None:
    ours = of(
        ScheduleFree, [{"params": make_parameters(), "weight_decay": 0.1}], 0.05, 0.9, beta2, 1e-8, name="schedule_free"
    )
    settings = {"lr": 0.05, "betas": (0.9, beta2), "eps": 1e-8, "weight_decay": 0.1}
    theirs = schedulefree.AdamWScheduleFree(make_parameters(), **settings)
    if beta2:  # without it nothing is corrected, and the package is compared as it is
        set_rate(theirs, 10**9, "k")  # the number of steps behind it: its own bias correction is 1

    def set_rates(step: int) -> None:
        set_rate(ours, warmed_up(step))
        set_rate(theirs, warmed_up(step) * math.sqrt(1 - beta2**step))

    compare_averages(ours, theirs, set_rates)


def test_lars_is_that_of_a_package_at_a_constant_rate() -> None:
    (*matrices, bias), (*others, other) = (make_parameters([*SHAPES, (5,)]) for _ in range(2))
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": [bias], "adapt": False}]
    ours = of(Lars, groups, 0.5, momentum=0.8, trust_coefficient=0.02)
    settings = {"lr": 0.5, "momentum": 0.8, "trust_coefficient": 0.02}
    theirs = pytorch_optimizer.LARS([{"params": others, "weight_decay": 0.1}, {"params": [other]}], **settings)
    compare(ours, theirs)


def test_lars_has_a_changing_rate_inside_its_velocity() -> None:
    ours = of(Lars, [{"params": make_parameters(), "weight_decay": 0.1}], 0.5, momentum=0.8, trust_coefficient=0.02)
    theirs = pytorch_optimizer.LARS(make_parameters(), lr=1.0, momentum=0.8, weight_decay=0.1)

    def set_rates(step: int) -> None:
        set_rate(ours, 10 * warmed_up(step))
        set_rate(theirs, 10 * warmed_up(step) * 0.02, "trust_coefficient")

    compare(ours, theirs, set_rates)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lamb_is_that_of_a_package(weight_decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_optimizer.Lamb, "clamp", math.inf)
    parameters = make_parameters()
    ours = of(Lamb, [{"params": parameters, "weight_decay": weight_decay}], 0.05, 0.8, 0.95, 1e-12)
    if weight_decay:  # without it the trust ratio cancels the bias correction
        many = torch.tensor(1e9, dtype=torch.float64)  # steps behind it: the correction is 1
        ours.state[parameters[0]]["num_steps"] = many
    settings = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-12, "weight_decay": weight_decay}
    # adam_debias: no correction of the step length, which would undo the trust ratio
    compare(ours, pytorch_optimizer.Lamb(make_parameters(), weight_decouple=False, adam_debias=True, **settings))


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.8, 0.1)])
def test_rmsprop_is_that_of_torch(momentum: float, weight_decay: float) -> None:
    ours = of(
        RmsProp, [{"params": make_parameters(), "weight_decay": weight_decay}], 0.01, 0.0, 0.95, 1e-6, momentum=momentum
    )
    settings = {"lr": 0.01, "alpha": 0.95, "eps": 1e-6, "momentum": momentum, "weight_decay": weight_decay}
    compare(ours, torch.optim.RMSprop(make_parameters(), **settings))


@pytest.mark.parametrize(("is_exact", "tolerance"), [(True, 1e-10), (False, 5e-2)])
def test_muon_is_that_of_torch(is_exact: bool, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_exact:  # torch's iterations in float64 too
        monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    ours = of(Muon, [{"params": make_parameters(), "weight_decay": 0.2, "matrix": True}], 0.05)
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.2, "adjust_lr_fn": "match_rms_adamw"}
    compare(ours, torch.optim.Muon(make_parameters(), **settings), tolerance=tolerance)
