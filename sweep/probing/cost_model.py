"""Predicts the cost of a configuration from probes: seconds of a whole trial, and bytes where probes cover its size.
That of a script, whose model and data are not known here, is predicted from its complete trials.

The time of a micro batch is taken to be linear between the probed sizes, a + b * micro, separately for each model,
precision and so on; the time of an update is added once per step.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import median
from typing import final

from sweep.config.script import PREFIX
from sweep.config.tables import has_batch_statistics
from sweep.config.trial import Scalar, TrialConfig, flatten_config
from sweep.probing.shape import Shape, derive_shape, find_largest_accumulation
from sweep.records.quality import MIN_WINDOWS
from sweep.records.records import ProbeRecord, TrialRecord
from sweep.training.budget import BatchSchedule, Budget
from sweep.training.constants import (
    BOTTLENECK_SECONDS,
    BOTTLENECK_SHARE,
    BOTTLENECK_STEPS,
    MAX_EVALUATIONS,
    TARGET_EPOCHS,
    TARGET_GROWTH,
    TRAIN_ACCURACY_IMAGES,
)
from sweep.training.data.windows import cut_epoch

_Probes = dict[tuple[int, int], ProbeRecord]  # by micro batch and accumulation
_Sizes = tuple[tuple[int, float], ...]  # micro batches in samples on one rank, each with its number in an epoch

# Where one size was probed, this part of a micro batch's time is taken to be independent of its size: the time to
# launch operations, which is short compared with a long computation.
_FIXED_SHARE = 0.3
_FIXED_SECONDS = 3e-3
_REFERENCE_SECONDS = 0.1  # of the reference work before a trial, which measures the speed of the machine
_FP32_BYTES = 4
_FAR = 2  # times the largest probed micro batch, or below the smallest
_FIRST_STEPS = 5  # before the clock starts; the memory pass counts twice for its bookkeeping
_PROBE_SIDE_SECONDS = 0.4  # of a probe: the reference work, and update, images and evaluation on their own
# What differs in one of these has nothing in common: another model, or other or more images.
_OF_FEWER = ("data.subset", "data.validation_share")
_OF_IMAGES = ("data.name", "data.root", "data.image_size", *_OF_FEWER)
_APART = ("model.name", "model.patch_size", *_OF_IMAGES)


@final
@dataclass(frozen=True, kw_only=True)
class Workload:
    """The work of one training."""

    epochs: float
    steps_per_epoch: float
    micro_batches: _Sizes
    num_evaluations: float
    is_cap: bool = False  # a training until a target accuracy may be shorter
    seconds: float | None = None  # of training, where the budget is in seconds; the epochs then follow from it


@final
@dataclass(frozen=True, kw_only=True)
class TrialCost:
    """Seconds of one trial."""

    train_seconds: float
    other_seconds: float
    is_cap: bool = False  # a training until a target accuracy may be shorter
    is_guess: bool = False  # the nearest probe is of another group, or of less than half or more than twice its size

    @property
    def seconds(self) -> float:
        """From the start of its process to its end."""
        return self.train_seconds + self.other_seconds


@final
class CostModel:
    """Predicts from the complete probes that were added."""

    def __init__(self, probes: Iterable[ProbeRecord] = ()) -> None:
        self._groups: dict[Shape, _Probes] = defaultdict(dict)
        self._num_images: dict[tuple[Scalar, ...], tuple[int, int]] = {}  # for training and validation, by `_OF_IMAGES`
        self._lent: dict[Shape, _Probes] = {}  # for groups without their own
        self._launch_seconds = math.inf
        for probe in probes:
            self.add(probe)

    def add(self, probe: ProbeRecord) -> None:
        """Takes a probe into account, unless it is not complete."""
        if probe.is_complete and probe.step_seconds_mean is not None:
            self._groups[Shape.from_text(probe.shape).group][_size(probe)] = probe
            self._lent.clear()
            # the shortest: in the process of the supervisor the first training loads the libraries for all
            self._launch_seconds = min(self._launch_seconds, probe.launch_seconds or 0.0)

    def set_num_images(self, config: TrialConfig, num_train: int, num_validation: int) -> None:
        """Tells how many images the data of ``config`` have. Probes made with more or fewer of the same images
        are then used for them too, because a step takes as long."""
        group = derive_shape(config).group
        self._num_images[tuple(group.of(key) for key in _OF_IMAGES)] = num_train, num_validation
        self._lent.clear()

    def predict(self, config: TrialConfig, *, read_test: bool = False) -> TrialCost | None:
        """The cost of a trial of ``config``, None where nothing is known of its like; ``read_test`` as in its task.

        With a target accuracy it is the longest training. A trial that is pruned, fails or is stopped takes less.
        """
        group = derive_shape(config).group
        probes = self._find_probes(group)
        if not probes:
            return None
        sizes, micro = [size for size, _ in probes], config.micro_batch
        is_far = micro > _FAR * max(sizes) or _FAR * micro < min(sizes)
        is_guess = not (group in self._groups or self._lend(group)) or is_far
        cost = _cost(config, [probes[size] for size in sorted(probes)], read_test=read_test)
        return replace(cost, other_seconds=cost.other_seconds + self._launch_seconds, is_guess=is_guess)

    def predict_metric(self, name: str, config: TrialConfig) -> float | None:
        """One of :data:`sweep.search.sampler.PREDICTED_METRICS`; None where no probe of the configuration's own group
        is near its size."""
        if name == "peak_memory_bytes":
            return self.predict_peak_memory_bytes(config)
        cost = self.predict(config)
        if cost is None or cost.is_guess:
            return None
        return cost.train_seconds if name == "train_seconds" else cost.seconds

    def predict_probe_seconds(self, config: TrialConfig, timed_seconds: float) -> float | None:
        """Seconds that probing the shape of ``config`` will take; None while nothing is known."""
        listed = [probe for _, probe in sorted(self._find_probes(derive_shape(config).group).items())]
        if not listed:
            return None
        update = _typical(probe.update_seconds for probe in listed)
        by_size = _fit_micro_batches(listed, update)
        step = update + min(find_largest_accumulation(config), 2) * interpolate(by_size, config.micro_batch)
        timed = max(timed_seconds, MIN_WINDOWS * step)
        return self._launch_seconds + _predict_setup(config, listed, by_size) + timed + _PROBE_SIDE_SECONDS

    def predict_peak_memory_bytes(self, config: TrialConfig) -> int | None:
        """The peak of a training step of ``config``; None unless its micro batch is between two probed ones.

        Memory is linear in the micro batch, because only activations grow with it. From the second micro batch of a
        step on, the gradients of the step are held as well.
        """
        probes = self._groups.get(derive_shape(config).group, {})
        accumulation, micro = min(find_largest_accumulation(config), 2), config.micro_batch
        peaks: dict[int, float] = {}
        for (size, probed), probe in sorted(probes.items(), key=lambda item: item[0][1] == accumulation):
            if probe.peak_memory_bytes is not None:
                gradients = _count_gradient_bytes(probe.num_parameters, accumulation, probed)
                peaks[size] = probe.peak_memory_bytes + gradients
        if not peaks or not min(peaks) <= micro <= max(peaks):
            return None
        return round(interpolate(peaks, micro))

    def _find_probes(self, group: Shape) -> _Probes:
        """By size, the probes of ``group``, else those lent, else of the group of the same model and images that is
        most like it. The result does not depend on the order in which probes were added."""
        if probes := self._groups.get(group) or self._lend(group):
            return probes
        related = [other for other in self._groups if all(other.of(key) == group.of(key) for key in _APART)]
        facts = set(group.facts)
        nearest = max(related, key=lambda other: (len(set(other.facts) & facts), other.text), default=None)
        return self._groups[nearest] if nearest else {}

    def _lend(self, group: Shape) -> _Probes:
        """By size, probes of more or fewer of the images of ``group``, with its numbers of images; the nearest number
        counts. Empty where the numbers of ``group`` are not known."""
        counts = self._num_images.get(tuple(group.of(key) for key in _OF_IMAGES))
        if group in self._lent or counts is None:
            return self._lent.get(group, {})
        num_train, num_validation = counts
        own = {key: group.of(key) for key in _OF_FEWER}
        like = [(other, probes) for other, probes in self._groups.items() if other.replace(own) == group]

        def measure_distance(entry: tuple[Shape, _Probes]) -> tuple[float, str]:
            other, probes = entry
            probed = _typical(probe.num_train for probe in probes.values()) or 1.0
            return abs(math.log(probed / max(num_train, 1))), other.text

        lent: _Probes = {}
        for _, probes in sorted(like, key=measure_distance):
            for size, probe in probes.items():
                text = Shape.from_text(probe.shape).replace(own).text
                lent.setdefault(size, replace(probe, shape=text, num_train=num_train, num_validation=num_validation))
        self._lent[group] = lent
        return lent


@final
class ScriptCosts:
    """Predicts from the complete trials of a script, those with most of its own values in common.

    The time of a micro batch and the peak of memory are taken to be linear in its size. Trainings see equally many
    samples or take equally many steps, whichever differs less between the trials.
    """

    def __init__(self) -> None:
        self._trials: dict[int, TrialRecord] = {}

    def learn(self, record: TrialRecord) -> None:
        """Takes a trial into account if it is complete and did what it was asked."""
        measured = record.measurements
        is_followed = measured.get("observed_batch_size") == record.config.global_batch_size
        if record.outcome == "complete" and is_followed and measured.keys() >= {"num_steps", "train_seconds"}:
            self._trials[record.number] = record

    def predict(self, config: TrialConfig, *, read_test: bool = False) -> TrialCost | None:  # noqa: ARG002 - a script's
        """The cost of a trial of ``config``; None before the first complete one."""
        trials, passes = self._find_like(config), defaultdict[int, list[float]](list)
        for each in trials:
            num_passes = each.measurements["num_steps"] * each.config.num_accumulation
            passes[each.config.micro_batch].append(each.measurements["train_seconds"] / num_passes)
        if not trials:
            return None
        by_size, micro = {size: median(seconds) for size, seconds in passes.items()}, config.micro_batch
        num_passes = self._predict_steps(config, trials) * config.num_accumulation
        others = [each.measurements["total_seconds"] - each.measurements["train_seconds"] for each in trials]
        return TrialCost(
            train_seconds=num_passes * interpolate(by_size, micro),
            other_seconds=max(median(others), 0.0),
            is_guess=micro > _FAR * max(by_size) or _FAR * micro < min(by_size),
        )

    def predict_peak_memory_bytes(self, config: TrialConfig) -> int | None:
        """The peak of a training step of ``config``; None unless two micro batches are known, or its own is."""
        accumulation, micro = min(config.num_accumulation, 2), config.micro_batch
        peaks = defaultdict[int, list[float]](list)
        for each in self._find_like(config):
            if (peak := each.measurements.get("peak_memory_bytes")) is not None:
                own = min(each.config.num_accumulation, 2)
                gradients = _count_gradient_bytes(each.measurements.get("num_parameters"), accumulation, own)
                peaks[each.config.micro_batch].append(peak + gradients)
        by_size = {size: median(values) for size, values in peaks.items()}
        return round(interpolate(by_size, micro)) if len(by_size) > 1 or micro in by_size else None

    def _predict_steps(self, config: TrialConfig, trials: list[TrialRecord]) -> float:
        if config.budget.steps is not None:
            return config.budget.steps
        passes = config.budget.epochs or 1.0
        steps, samples = _measure_lengths(self._trials.values())
        are_steps_equal = max(steps) / min(steps) < max(samples) / min(samples)
        steps, samples = _measure_lengths(trials)
        return passes * (median(steps) if are_steps_equal else median(samples) / config.global_batch_size)

    def _find_like(self, config: TrialConfig) -> list[TrialRecord]:
        wanted = _list_own_values(config)
        shared = {number: len(wanted & _list_own_values(each.config)) for number, each in self._trials.items()}
        return [self._trials[number] for number, count in shared.items() if count == max(shared.values())]


def _list_own_values(config: TrialConfig) -> set[tuple[str, object]]:
    return {(key, value) for key, value in flatten_config(config).items() if key.startswith(PREFIX)}


def _measure_lengths(trials: Iterable[TrialRecord]) -> tuple[list[float], list[float]]:
    # steps and samples of an epoch, or of the whole training where the study gives no number of epochs
    pairs = [
        (each.measurements["num_steps"] / (each.config.budget.epochs or 1.0), each.config.global_batch_size)
        for each in trials
    ]
    return [steps for steps, _ in pairs], [steps * size for steps, size in pairs]


def _count_gradient_bytes(num_parameters: float | None, accumulation: int, probed: int) -> float:
    # from the second micro batch on they are held
    return _FP32_BYTES * (num_parameters or 0) * max(accumulation - probed, 0)


def interpolate(values: Mapping[int, float], size: int) -> float:
    """The value at ``size`` on straight lines between ``values`` by size. The lines are extended to both sides, but the
    value never falls with the size, and below the first size never faster than in proportion."""
    points = sorted(values.items())
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


def _cost(config: TrialConfig, probes: list[ProbeRecord], *, read_test: bool) -> TrialCost:
    recorded = round(_typical(probe.num_train for probe in probes)) or 1
    num_train = min(config.data.subset or recorded, recorded)
    work = compute_workload(config, num_train)
    update = _typical(probe.update_seconds for probe in probes)
    by_size = _fit_micro_batches(probes, update)
    passes = sum(count * interpolate(by_size, size) for size, count in work.micro_batches)
    epoch = work.steps_per_epoch * update + passes
    train = work.epochs * epoch if work.seconds is None else work.seconds
    step = epoch / work.steps_per_epoch
    # the bottleneck is measured twice, once with the data at hand
    bottleneck = min(2 * BOTTLENECK_STEPS * step, BOTTLENECK_SECONDS, BOTTLENECK_SHARE * train)
    evaluations = _predict_evaluations(work, train / epoch, probes, num_train, read_test=read_test)
    other = _predict_setup(config, probes, by_size) + evaluations + _REFERENCE_SECONDS + bottleneck
    return TrialCost(train_seconds=train, other_seconds=other, is_cap=work.is_cap)


def _fit_micro_batches(probes: list[ProbeRecord], update_seconds: float) -> dict[int, float]:
    """Seconds of one micro batch, by its size."""
    by_size: dict[int, list[float]] = defaultdict(list)
    for probe in probes:
        micro, accumulation = _size(probe)
        step = probe.step_seconds_mean or 0.0
        by_size[micro].append(max(step - min(update_seconds, 0.9 * step), 0.0) / accumulation)
    return {micro: sum(seconds) / len(seconds) for micro, seconds in by_size.items()}


def _predict_setup(config: TrialConfig, probes: list[ProbeRecord], by_size: Mapping[int, float]) -> float:
    """Seconds of loading, building, the first steps and the memory pass, as of the probe with the nearest micro batch,
    corrected for the length of a step."""
    loading = _typical(probe.setup_seconds for probe in probes)
    micro = config.micro_batch
    nearest = min(probes, key=lambda probe: abs(math.log(micro / _size(probe)[0])))
    first_steps = (nearest.warmup_seconds or 0.0) + (nearest.memory_seconds or 0.0)
    size, accumulation = _size(nearest)
    step, probed = min(find_largest_accumulation(config), 2) * interpolate(by_size, micro), accumulation * by_size[size]
    return loading + max(first_steps + _FIRST_STEPS * (step - probed), min(first_steps, step))


def _predict_evaluations(
    work: Workload, epochs: float, probes: list[ProbeRecord], num_train: int, *, read_test: bool
) -> float:
    size = _typical(probe.num_validation for probe in probes)
    count = work.num_evaluations if work.seconds is None else count_evaluations(epochs)
    train_part = min(num_train, size, TRAIN_ACCURACY_IMAGES)
    images = count * size + train_part + (size if read_test else 0.0)
    rate = _typical(probe.eval_images_per_second for probe in probes)
    return images / rate if rate else 0.0


def _typical(values: Iterable[float | None]) -> float:
    return median([value for value in values if value is not None] or [0.0])


def _size(probe: ProbeRecord) -> tuple[int, int]:
    facts = dict(Shape.from_text(probe.shape).facts)
    micro, accumulation = facts["batch.micro"], facts["batch.accumulation"]
    assert isinstance(micro, int)
    assert isinstance(accumulation, int)
    return micro, accumulation


# ---------------------------------------------------------------------- the work, known before any training


def compute_workload(config: TrialConfig, num_train: int) -> Workload:
    """The work of a trial of ``config`` on ``num_train`` images; a growing batch counts with its average size."""
    micro, ranks = config.micro_batch, config.distributed.world_size
    schedule = BatchSchedule(config.batch, config.global_batch_size, micro * ranks)
    average = round(schedule.average()) if schedule.is_growing else config.global_batch_size
    least = 1 if has_batch_statistics(config.model.name, config.model.norm) is False else 2 * ranks
    steps, sizes = _split_epoch(num_train, average, micro * ranks, least)
    budget = Budget(config.apply_rules().budget, num_train, average, steps, is_growing=False)
    epochs = budget.num_steps / steps
    is_target = config.budget.target is not None
    return Workload(
        epochs=epochs,
        steps_per_epoch=steps,
        micro_batches=tuple((math.ceil(size / ranks), count) for size, count in sizes),
        num_evaluations=_count_target_evaluations(epochs) if is_target else count_evaluations(epochs),
        is_cap=is_target,
        seconds=config.budget.seconds,
    )


def count_epoch_steps(config: TrialConfig, num_train: int) -> int:
    """The optimizer steps of an epoch of ``num_train`` images; where the batch grows, those with its average size."""
    return round(compute_workload(config, num_train).steps_per_epoch)


def count_evaluations(epochs: float) -> int:
    """Evaluations of a training of ``epochs`` epochs, including the one at its end."""
    every = math.ceil(math.ceil(epochs) / MAX_EVALUATIONS)
    return max(1, math.ceil(epochs / every))


def _count_target_evaluations(epochs: float) -> float:
    # One per quarter of an epoch, until a twentieth of the training is longer.
    turn = TARGET_EPOCHS / TARGET_GROWTH
    early = min(epochs, turn) / TARGET_EPOCHS
    return early + (math.log(epochs / turn) / math.log1p(TARGET_GROWTH) if epochs > turn else 0.0)


@lru_cache(maxsize=1024)
def _split_epoch(num_train: int, global_batch: int, micro: int, least: int) -> tuple[int, _Sizes]:
    windows = cut_epoch(num_train, global_batch, micro, least)
    sizes = Counter(part.stop - part.start for window in windows for part in window.slices)
    return len(windows), tuple((size, float(count)) for size, count in sorted(sizes.items()))
