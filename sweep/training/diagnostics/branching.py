"""The local critical batch: how far the batch may grow from one point of a training, by short branches of it.

Merrill et al. 2025, "Critical batch size revisited" (arXiv:2505.23971): from one checkpoint the training continues with
k times the batch and the learning rate scaled for it; the largest k whose smoothed loss after the same number of
samples is within a tolerance of that of k = 1 is the local critical batch. Here a branch begins from the whole state
of the trial, momentum included, which is restored afterwards. The loss is that of the validation split, and the mean
over repeats with other samples smooths it; the branches of a repeat have the same samples in the same order. What it
estimates depends on the point, on the length of the branches, on the tolerance and on how the rate is scaled: it is not
B_crit of McCandlish et al. 2018, which is of a whole training with the best rate at each batch.
"""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from sweep.config.recipe_sections import OptimizerSection
from sweep.config.scaling import RULE_POWERS, resolve_lr_rule
from sweep.config.tables.recipes import OPTIMIZERS
from sweep.config.trial_config import TrialConfig
from sweep.training.checkpoints.checkpoint import Stateful
from sweep.training.checkpoints.saver import RandomState
from sweep.training.diagnostics.branch_batches import (
    HALVINGS,
    REPEATS,
    count_branch_samples,
    list_doubled_batches,
)
from sweep.training.outcomes import DivergedError
from sweep.training.steps.setup import TrainingSetup
from sweep.training.steps.step import ignore_lap, set_lr

_CONFIDENCE = 0.95
_LEAST_LOSS = 1e-12  # in nats, so that it has a logarithm

Losses = NDArray[np.float64]
Evaluate = Callable[[], float]
RateOf = Callable[[int], float]  # effective batch size -> learning rate


class LocalBatch(NamedTuple):
    """The local critical batch in samples with its 95 % interval; NaN where the branches do not bound it."""

    value: float
    low: float
    high: float


def find_local_batch(batches: Losses, losses: Losses, tolerance: float) -> LocalBatch:
    """Where the loss first exceeds that of the first batch by the share ``tolerance``.

    Logarithms of the ratio of losses are compared within a repeat and interpolated in the logarithm of the batch. Their
    scatter is pooled over the batches, for the repeats are few; the interval is by Student's t.

    Args:
        batches: shape ``[b]``, ascending.
        losses: shape ``[repeats, b]``, infinite where a branch diverged.
    """
    from scipy.special import stdtrit

    with np.errstate(invalid="ignore"):
        excesses = np.log(losses) - np.log(losses[:, :1])
    means = excesses.mean(axis=0)
    usable = np.isfinite(means)
    usable[0] = False
    degrees = (len(losses) - 1) * int(usable.sum())
    half = math.inf
    if degrees:
        variance = excesses[:, usable].var(axis=0, ddof=1).mean()
        half = float(stdtrit(degrees, (1 + _CONFIDENCE) / 2) * math.sqrt(variance / len(losses)))
    beside = np.where(np.arange(len(means)) > 0, half, 0.0)
    limit = math.log1p(tolerance)
    upper = np.where(np.isfinite(means), means + beside, means)
    lower = np.where(np.isfinite(means), means - beside, means)
    value, low, high = (_cross(batches, curve, limit) for curve in (means, upper, lower))
    return LocalBatch(value, low, high)


def _cross(batches: Losses, excesses: Losses, limit: float) -> float:
    beyond = np.flatnonzero(excesses > limit)
    if not len(beyond):
        return math.nan
    first = int(beyond[0])
    below, above = excesses[first - 1], excesses[first]
    share = (limit - below) / (above - below) if np.isfinite(above) else 0.0
    return float(batches[first - 1] * (batches[first] / batches[first - 1]) ** share)


def measure_branches(config: TrialConfig, setup: TrainingSetup, lr: float, evaluate: Evaluate) -> dict[str, float]:
    """The local critical batch by metric, at the present state, which is restored. ``lr`` is the present learning
    rate, ``evaluate`` returns the loss of the validation split or raises ``DivergedError``.

    The batch doubles until one exceeds the tolerance, it is the training split, or a branch would have fewer than 4
    steps; then the interval that holds the critical one is halved twice.
    """
    tolerance, own = config.diagnostics.branch_tolerance, config.global_batch_size
    power = _find_power(config.optimizer)
    branches = _Branches(setup, config.diagnostics.branch_epochs, evaluate, lambda size: lr * (size / own) ** power)

    try:
        doubled = list_doubled_batches(own, setup.planner.num_samples, branches.num_samples)
        losses = _bracket(branches.measure_losses, doubled, math.log1p(tolerance))
    finally:
        branches.restore()
    batches = np.array(sorted(losses), dtype=np.float64)
    found = {"num_branches": float(REPEATS * len(batches))}
    return found | _describe(batches, np.array([losses[batch] for batch in sorted(losses)]).T, tolerance)


def _find_power(section: OptimizerSection) -> float:
    # of the batch that the learning rate follows; without a rule the one that fits the optimizer
    rule = resolve_lr_rule(section)
    if rule == "power":
        return section.lr_power
    return RULE_POWERS[OPTIMIZERS[section.name].lr_rule if rule == "none" else rule]


def _bracket(measure: Callable[[int], list[float]], batches: Iterable[int], limit: float) -> dict[int, list[float]]:
    # the losses of each batch that was tried, the last ones around the first that exceeds the limit
    losses: dict[int, list[float]] = {}
    below = above = 0
    for batch in batches:
        losses[batch] = measure(batch)
        if not all(map(math.isfinite, next(iter(losses.values())))):
            return losses
        if _is_beyond(losses, batch, limit):
            above = batch
            break
        below = batch
    for _ in range(HALVINGS if above else 0):
        middle = round(math.sqrt(below * above))
        if middle in losses:
            break
        losses[middle] = measure(middle)
        below, above = (below, middle) if _is_beyond(losses, middle, limit) else (middle, above)
    return losses


def _is_beyond(losses: dict[int, list[float]], batch: int, limit: float) -> bool:
    return float(np.mean(np.log(losses[batch]) - np.log(losses[min(losses)]))) > limit


def _describe(batches: Losses, losses: Losses, tolerance: float) -> dict[str, float]:
    if not np.isfinite(losses[:, 0]).all():
        return {}
    local = find_local_batch(batches, losses, tolerance)
    if math.isnan(local.low):  # the largest that was tried loses nothing
        local = local._replace(low=float(batches[-1]))
    named = zip(("", "_low", "_high"), local, strict=True)
    return {f"local_critical_batch{end}": value for end, value in named if not math.isnan(value)}


@final
class _Branches:
    """Branches of ``epochs`` from the present state of a training; ``rate_of`` gives the learning rate of a step."""

    def __init__(self, setup: TrainingSetup, epochs: float, evaluate: Evaluate, rate_of: RateOf) -> None:
        self._setup, self._evaluate, self._rate_of = setup, evaluate, rate_of
        self._step = replace(setup.step, noise=None, lap=ignore_lap)
        self.num_samples = count_branch_samples(epochs, setup.planner.num_samples)
        self._epochs = math.ceil(epochs)
        random = RandomState(setup.step.normalize.mean.device)
        self._parts: dict[str, Stateful] = {**setup.stateful_parts(), "random_state": random}
        self._state = {name: copy.deepcopy(part.state_dict()) for name, part in self._parts.items()}
        self._first_epoch = int(self._state["planner"]["epoch"]) + 1
        self._seed = int(torch.randint(2**62, ()))  # other draws than the training has

    def measure_losses(self, batch: int) -> list[float]:
        """The loss of the validation split after each repeat of a branch, infinite where it diverged."""
        return [self._measure_loss(batch, repeat) for repeat in range(REPEATS)]

    def _measure_loss(self, batch: int, repeat: int) -> float:
        self.restore()
        planner = self._setup.planner
        epoch = self._first_epoch + repeat * self._epochs
        planner.load_state_dict({"epoch": epoch, "taken": 0, "micro": planner.micro})
        torch.manual_seed(self._seed + repeat)
        self._train(batch)
        try:
            return max(self._evaluate(), _LEAST_LOSS)
        except DivergedError:
            return math.inf

    def restore(self) -> None:
        """Restores the state as it was before the branches."""
        for name, part in self._parts.items():
            part.load_state_dict(copy.deepcopy(self._state[name]))

    def _train(self, batch: int) -> None:
        left = self.num_samples
        while left > 1 or left == self.num_samples:  # a single sample has no batch statistics
            window = self._setup.planner.next_window(partial(_constant, min(batch, left)))
            set_lr(self._step.optimizer, self._rate_of(window.samples))  # of a smaller last step less
            self._step(self._setup.feeder.micro_batches(window), window.samples)
            left -= window.samples


def _constant(size: int, _windows: int, _samples: int) -> int:
    return size
