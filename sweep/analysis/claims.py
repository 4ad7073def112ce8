"""What a common claim about batch sizes is: a statement, the effect that it allows, the function that measures the
effect on records, and the smallest study that settles it. The rows are in :mod:`sweep.analysis.claim_table`."""

import itertools
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from sweep.analysis.comparable import ComparableTrials
from sweep.analysis.costs import num_accumulation
from sweep.analysis.statistics import POWER, Measurement, Region, plain_value, read_numbers
from sweep.config.metrics import METRICS, find_unit, join_words
from sweep.config.trial import Scalar, default_settings, name_key

# Assumed standard deviations where a study has no records. Of the accuracy of one training: 0.006 over the seeds of
# ResNet-8 on the digits. Of the logarithm of a time: 0.05 on a machine with other tenants.
ACCURACY_SPREAD, TIME_SPREAD, MEMORY_SPREAD = 0.007, 0.05, 0.005
PAIRED_ACCURACY, PAIRED_TIME, PAIRED_MEMORY = (
    math.sqrt(2) * spread for spread in (ACCURACY_SPREAD, TIME_SPREAD, MEMORY_SPREAD)
)
TUNED_ACCURACY = 0.85 * PAIRED_ACCURACY  # the best of several rates scatters less than one training
SEED, EFFECTIVE = "seed", "global_batch_size"


Measure = Callable[[ComparableTrials], Measurement]


@dataclass(frozen=True, kw_only=True)
class Design:
    """The smallest study that settles a claim: the keys ``base`` are fixed, the keys of ``space`` take every
    combination of their values, all of it once for each value of ``repeated``, which are seeds, or evenly spaced in the
    logarithm from ``low`` to ``high``. ``spread`` is the standard deviation (of a ratio: of its logarithm) of the
    effect that one repetition measures, assumed where there are no records; ``lost`` by how many the degrees of freedom
    of the test are fewer than the repetitions, ``fewest`` the repetitions that it requires."""

    space: Mapping[str, tuple[Scalar, ...]]
    spread: float = PAIRED_ACCURACY
    base: Mapping[str, Scalar] = field(default_factory=dict)
    repeated: str = SEED
    low: float = 0.0
    high: float = 0.0
    lost: int = 1
    fewest: int = 3

    def list_space(self, repetitions: int) -> dict[str, tuple[Scalar, ...]]:
        """The values of each key that varies; fewer repetitions where whole numbers lie too close."""
        if self.repeated == SEED:
            return {**self.space, SEED: tuple(range(repetitions))}
        step = math.log(self.high / self.low) / max(repetitions - 1, 1)
        values = [self.low * math.exp(step * i) for i in range(repetitions)]
        is_whole = self.repeated.startswith("batch.")
        rounded = dict.fromkeys(round(value) if is_whole else float(f"{value:.4g}") for value in values)
        return {**self.space, self.repeated: tuple(rounded)}

    def count_trainings(self, repetitions: int) -> int:
        return math.prod(len(values) for values in self.list_space(repetitions).values())

    def list_points(self, repetitions: int) -> list[dict[str, Scalar]]:
        """The configuration keys of each training."""
        space = self.list_space(repetitions)
        points = itertools.product(*space.values())
        return [{**self.base, **dict(zip(space, values, strict=True))} for values in points]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """``region`` is what the statement allows, in ``unit``; ``matters`` the distance from a bound at which an effect
    has to be found (of a ratio: a factor); ``published`` what others measured, with the source.

    A study tests it only if it varies every key of ``varies`` (``global_batch_size`` is the effective batch size,
    whichever keys it follows from), has every key of ``sets`` at another value than the default in some
    training, and measures one metric of ``metrics``; ``val_loss`` stands for whatever loss a study of a script has, and
    ``in_scripts`` has the names that such a study gives to keys. ``design`` is the smallest such study.
    """

    name: str
    statement: str
    published: str
    region: Region
    unit: str = "fraction difference"
    matters: float = 0.005
    measure: Measure
    design: Design
    varies: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("val_accuracy",)
    in_scripts: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ratio(self) -> bool:
        """Whether the effect is tested by its logarithm."""
        return find_unit(self.unit).scale == "log"

    def list_distances(self, region: Region | None = None) -> list[tuple[float, float]]:
        """The distances from a bound of the region at which an effect has to be found, on the scale of the test, each
        with the power. In a region with two bounds both have to be rejected, so each with a higher one."""
        low, high = self.scale_bounds(region or self.region)
        matters = math.log(self.matters) if self.is_ratio else self.matters
        if math.isinf(low) or math.isinf(high):
            return [(matters, POWER)]
        return [(matters, POWER), ((high - low) / 2, (1 + POWER) / 2)]

    def scale_bounds(self, region: Region) -> tuple[float, float]:
        """The bounds on the scale of the test."""
        if not self.is_ratio:
            return region.low, region.high
        return math.log(region.low) if region.low > 0 else -math.inf, math.log(region.high)

    def name_of(self, key: str, records: ComparableTrials) -> str:
        """The name of the key in the study of the records."""
        return self.in_scripts.get(key, key) if records.is_script else key

    def is_measured(self, records: ComparableTrials) -> bool:
        """Whether a complete training has one of the metrics."""
        columns = [records.loss_column if name == "val_loss" else name for name in self.metrics]
        return any(np.isfinite(read_numbers(records.done, name)).any() for name in columns)

    def find_lack(self, records: ComparableTrials) -> str:
        """What the records lack so that the claim is not measured, with what a study would have to do; "" where they
        lack nothing."""
        own = {key: self.name_of(key, records) for key in (*self.varies, *self.sets)}
        values = {key: _list_values(records, f"config.{own[key]}") for key in self.sets}
        lack = _describe_needs(
            [own[key] for key in self.varies if not _is_varied(records, own[key])],
            [own[key] for key in self.sets if not values[key] - {None, default_settings()[key]}],
            () if self.is_measured(records) else self.metrics,
        )
        return f"not measured by this study: to test it, a study has to {lack}" if lack else ""

    @property
    def needs(self) -> str:
        """What a study has to do so that the claim is measured, in words."""
        return _describe_needs(self.varies, self.sets, self.metrics)


def _describe_needs(varies: Collection[str], sets: Collection[str], metrics: Collection[str]) -> str:
    parts = [f"{verb} {join_words([*map(name_key, keys)])}" for verb, keys in (("vary", varies), ("set", sets)) if keys]
    labels = [f"{METRICS[name].label[:1].lower()}{METRICS[name].label[1:]} ({name})" for name in metrics]
    parts += [f"measure {' or '.join(labels)}"] if labels else []
    return ", and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def _is_varied(records: ComparableTrials, key: str) -> bool:
    if key == "batch.accumulation":  # however it follows from the other keys of a batch
        return len(np.unique(num_accumulation(records.trials))) > 1
    return len(_list_values(records, key if key == EFFECTIVE else f"config.{key}")) > 1


def _list_values(records: ComparableTrials, name: str) -> set[Scalar]:
    trials = records.trials
    return set(map(plain_value, trials[name].unique())) if name in trials.columns else set()
