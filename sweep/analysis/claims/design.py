"""The smallest study that settles a claim: what it holds fixed, what it varies, and how often it repeats that."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sweep.config.trial_config import Scalar

SEED = "seed"
# Assumed standard deviations where a study has no records. Of the accuracy of one training: 0.006 over the seeds of
# ResNet-8 on the digits. Of the logarithm of a time: 0.05 on a machine with other tenants.
ACCURACY_SPREAD, TIME_SPREAD, MEMORY_SPREAD = 0.007, 0.05, 0.005
PAIRED_ACCURACY = math.sqrt(2) * ACCURACY_SPREAD
TUNED_ACCURACY = 0.85 * PAIRED_ACCURACY  # the best of several rates scatters less than one training
PAIRED_TIME = math.sqrt(2) * TIME_SPREAD
PAIRED_MEMORY = math.sqrt(2) * MEMORY_SPREAD


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """The key that has as many values as there are repetitions: those of the seed are counted, those of any other are
    evenly spaced in the logarithm from ``low`` to ``high``, or 1 less these where ``is_complement``."""

    key: str = SEED
    low: float = 0.0
    high: float = 0.0
    is_whole: bool = False
    is_complement: bool = False

    def list_values(self, count: int) -> tuple[Scalar, ...]:
        """``count`` different values, fewer where whole numbers lie too close."""
        if self.key == SEED:
            return tuple(range(count))
        step = math.log(self.high / self.low) / max(count - 1, 1)
        values = [self.low * math.exp(step * place) for place in range(count)]
        if self.is_whole:
            return tuple(dict.fromkeys(round(value) for value in values))
        rounded = (float(f"{value:.4g}") for value in values)
        return tuple(round(1 - value, 8) if self.is_complement else value for value in rounded)


@dataclass(frozen=True, kw_only=True)
class Design:
    """The keys ``base`` are fixed, those of ``space`` take every combination of their values, all of it once for each
    value of ``repeated``. ``spread`` is the standard deviation (of a ratio: of its logarithm) of the effect that one
    repetition measures, assumed where there are no records; ``lost`` by how many the degrees of freedom of the test are
    fewer than the repetitions, ``fewest`` the repetitions that the test requires."""

    space: Mapping[str, tuple[Scalar, ...]]
    spread: float
    base: Mapping[str, Scalar] = field(default_factory=dict)
    repeated: Repetition = field(default_factory=Repetition)
    lost: int = 1
    fewest: int = 3

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that vary."""
        return (*self.space, self.repeated.key)

    def list_space(self, repetitions: int) -> dict[str, tuple[Scalar, ...]]:
        """The values of each key that varies."""
        return {**self.space, self.repeated.key: self.repeated.list_values(repetitions)}

    def count_trainings(self, repetitions: int) -> int:
        """The trainings of the whole study."""
        return math.prod(len(values) for values in self.list_space(repetitions).values())

    def list_points(self, repetitions: int) -> list[dict[str, Scalar]]:
        """The configuration keys of each training."""
        space = self.list_space(repetitions)
        points = itertools.product(*space.values())
        return [{**self.base, **dict(zip(space, values, strict=True))} for values in points]
