"""What a configuration will cost, from probes: seconds of a whole trial, and bytes where probes cover its size.

The time of a micro batch is taken to be linear between the sizes that were probed, a + b * micro, for each model,
precision and so on apart; that of an update is added once a step.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import final

from sweep.config.trial_config import TrialConfig
from sweep.measurement.quality import MIN_WINDOWS
from sweep.probing.shape import Shape, micro_batch, num_micro_batches, shape_of
from sweep.records.probe_records import ProbeRecord
from sweep.search.forecast.workload import Amount, amount_of, num_evaluations

# Of a micro batch's time, what does not grow with it, where one size alone is known: launching operations, which is
# nothing beside a long computation.
_FIXED_SHARE = 0.3
_FIXED_SECONDS = 3e-3
_TRAIN_PART = 10_000  # images that the accuracy on the training split is measured on, at most
_REFERENCE_SECONDS = 0.05  # of the work that tells how fast the machine is now
_VERDICT_STEPS = 40  # about; taken once more to see what held the training up, within the bounds of the next two
_VERDICT_SECONDS = 1.0
_VERDICT_SHARE = 0.1
_FP32_BYTES = 4
_FAR = 2  # times the largest micro batch that was probed, or below the smallest
_FIRST_STEPS = 5  # before the clock, the memory pass counted twice for its bookkeeping
_SIDE_SECONDS = 0.3  # of a probe: the update, the images and the evaluation by themselves


@final
@dataclass(frozen=True)
class TrialCost:
    """Seconds of one trial. ``is_guess``: nothing of its kind was probed, and another model's figures stand in, or the
    nearest probe is of less than half or more than twice its micro batch."""

    train_seconds: float
    other_seconds: float
    is_cap: bool = False
    is_guess: bool = False

    @property
    def seconds(self) -> float:
        """From the start of its process to its end."""
        return self.train_seconds + self.other_seconds


@final
class CostModel:
    """Predicts from the complete probes that it was given; nothing until the first."""

    def __init__(self, probes: Iterable[ProbeRecord] = ()) -> None:
        self._groups: dict[Shape, dict[tuple[int, int], ProbeRecord]] = defaultdict(dict)
        for probe in probes:
            self.add(probe)

    def add(self, probe: ProbeRecord) -> None:
        """Takes a probe into account; one that is not complete tells no time."""
        if not probe.is_complete or probe.step_seconds_mean is None:
            return
        shape = Shape.from_text(probe.shape)
        self._groups[shape.group][_size_of(shape)] = probe

    def is_measured(self, config: TrialConfig) -> bool:
        """Whether a probe differs from ``config`` in the size of a step alone."""
        return shape_of(config).group in self._groups

    def predict_seconds(self, config: TrialConfig) -> float | None:
        """Seconds that a trial of ``config`` will take in all; None while nothing is known.

        Until a target accuracy: those of its cap. A trial that is pruned, fails or is stopped takes less.
        """
        cost = self.predict(config)
        return cost.seconds if cost else None

    def predict(self, config: TrialConfig, *, reads_test: bool = False) -> TrialCost | None:
        """The cost of a trial of ``config``; with ``reads_test``, of a confirming one."""
        group = shape_of(config).group
        probes = self._groups.get(group) or self._nearest(group)
        if not probes:
            return None
        sizes, micro = [size for size, _ in probes], micro_batch(config)
        is_far = micro > _FAR * max(sizes) or _FAR * micro < min(sizes)
        is_guess = group not in self._groups or is_far
        return _cost(config, list(probes.values()), reads_test=reads_test, is_guess=is_guess)

    def known(self, name: str, config: TrialConfig) -> float | None:
        """One of :data:`sweep.search.samplers.base.PREDICTED_METRICS` where probes of the configuration's own kind and
        size tell it."""
        if name == "peak_memory_bytes":
            return self.predict_peak_memory_bytes(config)
        cost = self.predict(config)
        if cost is None or cost.is_guess:
            return None
        return cost.train_seconds if name == "train_seconds" else cost.seconds

    def predict_probe_seconds(self, config: TrialConfig, timed_seconds: float) -> float | None:
        """Seconds that probing the shape of ``config`` will take; None while nothing is known."""
        group = shape_of(config).group
        probes = self._groups.get(group) or self._nearest(group)
        if not probes:
            return None
        several = list(probes.values())
        update = _typical(probe.update_seconds for probe in several)
        by_size = _by_size(several, update)
        step = update + min(num_micro_batches(config), 2) * interpolate(by_size, micro_batch(config))
        timed = max(timed_seconds, MIN_WINDOWS * step)
        return _before(config, several, by_size) + timed + _SIDE_SECONDS

    def predict_peak_memory_bytes(self, config: TrialConfig) -> int | None:
        """The peak of a training step of ``config`` where probes of its kind lie on both sides of its micro batch.

        Between them memory is linear in the micro batch, for only activations grow with it. From the second micro batch
        of a step on its gradients are held beside them.
        """
        probes = self._groups.get(shape_of(config).group, {})
        wanted, micro = min(num_micro_batches(config), 2), micro_batch(config)
        known: dict[int, float] = {}
        for (size, accumulation), probe in sorted(probes.items(), key=lambda item: item[0][1] == wanted):
            if probe.peak_memory_bytes is not None:
                gradients = _FP32_BYTES * (probe.num_parameters or 0) * max(wanted - accumulation, 0)
                known[size] = probe.peak_memory_bytes + gradients
        if not known or not min(known) <= micro <= max(known):
            return None
        return round(interpolate(known, micro))

    def _nearest(self, group: Shape) -> dict[tuple[int, int], ProbeRecord] | None:
        def likeness(other: Shape) -> tuple[bool, int]:
            return other.of("model.name") == group.of("model.name"), len(set(other.facts) & set(group.facts))

        nearest = max(self._groups, key=likeness, default=None)
        return self._groups[nearest] if nearest else None


def interpolate(known: Mapping[int, float], size: int) -> float:
    """The value at ``size`` on straight lines between ``known`` ones. Beyond the last the line goes on, but the value
    never falls with the size, and below the first never faster than in proportion."""
    points = sorted(known.items())
    if len(points) == 1:
        at, value = points[0]
        fixed = min(_FIXED_SHARE * value, _FIXED_SECONDS)
        return fixed + (value - fixed) * size / at
    index = next((i for i, (at, _) in enumerate(points) if at >= size), len(points) - 1)
    (left, low), (right, high) = points[max(index - 1, 0)], points[max(index, 1)]
    value = low + (high - low) * (size - left) / (right - left)
    if size < left:
        return min(max(value, low * size / left), low)
    return max(value, high) if size > right else value


def _cost(config: TrialConfig, probes: list[ProbeRecord], *, reads_test: bool, is_guess: bool) -> TrialCost:
    num_train = _num_train(config, probes)
    amount = amount_of(config, num_train)
    update = _typical(probe.update_seconds for probe in probes)
    by_size = _by_size(probes, update)
    epoch = amount.steps_per_epoch * update + sum(
        count * interpolate(by_size, size) for size, count in amount.micro_batches
    )
    train = amount.epochs * epoch if amount.seconds is None else amount.seconds
    step = epoch / amount.steps_per_epoch
    verdict = min(_VERDICT_STEPS * step, _VERDICT_SECONDS, _VERDICT_SHARE * train)
    other = _before(config, probes, by_size) + _evaluating(
        amount, train / epoch, probes, num_train, reads_test=reads_test
    )
    return TrialCost(train, other + _REFERENCE_SECONDS + verdict, amount.is_cap, is_guess)


def _by_size(probes: list[ProbeRecord], update_seconds: float) -> dict[int, float]:
    """Seconds of one micro batch, by its size."""
    found: dict[int, list[float]] = defaultdict(list)
    for probe in probes:
        micro, accumulation = _size(probe)
        step = probe.step_seconds_mean or 0.0
        found[micro].append(max(step - min(update_seconds, 0.9 * step), 0.0) / accumulation)
    return {micro: sum(seconds) / len(seconds) for micro, seconds in found.items()}


def _before(config: TrialConfig, probes: list[ProbeRecord], by_size: Mapping[int, float]) -> float:
    """Loading, building, the first steps, the memory pass, and a process of its own; of the probe whose micro batch is
    nearest, and as many steps more or less long."""
    alone = _typical(probe.setup_seconds for probe in probes) + _typical(probe.launch_seconds for probe in probes)
    micro = micro_batch(config)
    nearest = min(probes, key=lambda probe: abs(math.log(micro / _size(probe)[0])))
    first_steps = (nearest.warmup_seconds or 0.0) + (nearest.memory_seconds or 0.0)
    size, accumulation = _size(nearest)
    step, probed = min(num_micro_batches(config), 2) * interpolate(by_size, micro), accumulation * by_size[size]
    return alone + max(first_steps + _FIRST_STEPS * (step - probed), min(first_steps, step))


def _evaluating(amount: Amount, epochs: float, probes: list[ProbeRecord], num_train: int, *, reads_test: bool) -> float:
    rate = _typical(probe.eval_images_per_second for probe in probes)
    size = _typical(probe.num_validation for probe in probes)
    count = amount.num_evaluations if amount.seconds is None else num_evaluations(epochs)
    train_part = min(num_train, size, _TRAIN_PART)
    images = count * size + train_part + (size if reads_test else 0.0)
    return images / rate if rate else 0.0


def _num_train(config: TrialConfig, probes: list[ProbeRecord]) -> int:
    known = round(_typical(probe.num_train for probe in probes)) or 1
    return min(config.data.subset or known, known)


def _typical(values: Iterable[float | None]) -> float:
    return median([value for value in values if value is not None] or [0.0])


def _size(probe: ProbeRecord) -> tuple[int, int]:
    return _size_of(Shape.from_text(probe.shape))


def _size_of(shape: Shape) -> tuple[int, int]:
    facts = dict(shape.facts)
    micro, accumulation = facts["batch.micro"], facts["batch.accumulation"]
    assert isinstance(micro, int)
    assert isinstance(accumulation, int)
    return micro, accumulation
