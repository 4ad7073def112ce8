"""Optimizers against implementations by others: equal parameters over twenty steps of random gradients, in float64.

Where a paper and a package differ, ours follows the paper, and the package is set so that the difference is gone:

- Schedule-free AdamW: ``schedulefree`` divides the mean square by 1 - beta2^t and averages by the highest rate so far;
  algorithm 1 of the paper, and ours, has sqrt(1 - beta2^t) in the rate, and so in weight decay and averaging too.
- LARS: ``pytorch_optimizer`` multiplies the velocity by the rate; algorithm 1 of the paper, and ours, has it inside.
- LAMB: ``pytorch_optimizer`` corrects the bias of the first moment alone, after the trust ratio, and limits a weight's
  norm to 10; algorithm 2 of the paper, and ours, corrects both moments before it.
- Muon: torch iterates in bfloat16, ours on a CPU in the precision of the parameters.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import pytorch_optimizer
import schedulefree
import torch
from torch import Tensor, nn

from sweep.training.optimizers import Lamb, Lars, Muon, RmsProp, ScheduleFree

NUM_STEPS = 20
SHAPES = ((6, 4), (3, 8), (4, 4))
Before = Callable[[int], object]


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
    ours = ScheduleFree([{"params": make_parameters(), "weight_decay": 0.1}], 0.05, (0.9, 0.0), 1e-8, adaptive=False)
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "warmup_steps": 5}
    theirs = schedulefree.SGDScheduleFree(make_parameters(), **settings)
    compare_averages(ours, theirs, lambda step: set_rate(ours, warmed_up(step)))


@pytest.mark.parametrize("beta2", [0.0, 0.95])
def test_schedule_free_adamw_is_that_of_its_authors(beta2: float) -> None:
    ours = ScheduleFree([{"params": make_parameters(), "weight_decay": 0.1}], 0.05, (0.9, beta2), 1e-8, adaptive=True)
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
    ours = Lars(groups, 0.5, 0.8, 0.02)
    settings = {"lr": 0.5, "momentum": 0.8, "trust_coefficient": 0.02}
    theirs = pytorch_optimizer.LARS([{"params": others, "weight_decay": 0.1}, {"params": [other]}], **settings)
    compare(ours, theirs)


def test_lars_has_a_changing_rate_inside_its_velocity() -> None:
    ours = Lars([{"params": make_parameters(), "weight_decay": 0.1}], 0.5, 0.8, 0.02)
    theirs = pytorch_optimizer.LARS(make_parameters(), lr=1.0, momentum=0.8, weight_decay=0.1)

    def set_rates(step: int) -> None:
        set_rate(ours, 10 * warmed_up(step))
        set_rate(theirs, 10 * warmed_up(step) * 0.02, "trust_coefficient")

    compare(ours, theirs, set_rates)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_lamb_is_that_of_a_package(weight_decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch_optimizer.Lamb, "clamp", math.inf)
    parameters = make_parameters()
    ours = Lamb([{"params": parameters, "weight_decay": weight_decay}], 0.05, (0.8, 0.95), 1e-12)
    if weight_decay:  # without it the trust ratio cancels the bias correction
        many = torch.tensor(1e9, dtype=torch.float64)  # steps behind it: the correction is 1
        ours.state[parameters[0]]["num_steps"] = many
    settings = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-12, "weight_decay": weight_decay}
    # adam_debias: no correction of the step length, which would undo the trust ratio
    compare(ours, pytorch_optimizer.Lamb(make_parameters(), weight_decouple=False, adam_debias=True, **settings))


@pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.8, 0.1)])
def test_rmsprop_is_that_of_torch(momentum: float, weight_decay: float) -> None:
    ours = RmsProp([{"params": make_parameters(), "weight_decay": weight_decay}], 0.01, 0.95, 1e-6, momentum)
    settings = {"lr": 0.01, "alpha": 0.95, "eps": 1e-6, "momentum": momentum, "weight_decay": weight_decay}
    compare(ours, torch.optim.RMSprop(make_parameters(), **settings))


@pytest.mark.parametrize(("is_exact", "tolerance"), [(True, 1e-10), (False, 5e-2)])
def test_muon_is_that_of_torch(is_exact: bool, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_exact:  # torch's iterations in float64 too
        monkeypatch.setattr(Tensor, "bfloat16", Tensor.clone)
    ours = Muon([{"params": make_parameters(), "weight_decay": 0.2, "matrix": True}], 0.05, (0.9, 0.999), 1e-8)
    settings = {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.2, "adjust_lr_fn": "match_rms_adamw"}
    compare(ours, torch.optim.Muon(make_parameters(), **settings), tolerance=tolerance)
