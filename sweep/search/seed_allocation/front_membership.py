"""Whether it is settled which configurations are on the front, as far as seeds go.

Plausible true means of every objective are drawn from Student's t distribution around what was measured, with a spread
between seeds that is pooled over all configurations; a place on the front is settled when it is taken in 95 % of the
draws, or in 5 %.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from sweep.analysis.statistics.intervals import CONFIDENCE, Spread, front_probabilities, pooled_spread
from sweep.analysis.statistics.pareto import Values, non_dominated
from sweep.analysis.statistics.scales import scale_of
from sweep.config.metrics import METRICS

_NUM_DRAWS = 1000
_SEED = 20_260_101
_FAR = 2.8  # standard deviations; two seeds of one configuration differ by more in 1 of 20 cases

Measured = Mapping[str, float]


@dataclass(frozen=True)
class Candidate:
    """A configuration, by what each of its seeds measured."""

    seeds: tuple[Measured, ...]


def estimate_noise(groups: Iterable[Sequence[Measured]], objectives: Sequence[str]) -> list[Spread] | None:
    """The spread between seeds of each objective on its scale, pooled over ``groups`` of one configuration each;
    None where no configuration has two."""
    rows = [(index, measured) for index, seeds in enumerate(groups) for measured in seeds]
    groups_of = np.array([index for index, _ in rows], dtype=np.int64)
    spreads = [pooled_spread(_on_scale(name, [measured for _, measured in rows]), groups_of) for name in objectives]
    return spreads if all(spread.degrees for spread in spreads) else None


@final
class FrontMembership:
    """Runners against each other, under a noise that is known."""

    def __init__(self, objectives: Sequence[str], noise: Sequence[Spread], runners: Sequence[Candidate]) -> None:
        self._objectives, self._noise, self._runners = list(objectives), list(noise), list(runners)
        self._signs = [METRICS[name].sign for name in objectives]

    def settled(self) -> list[bool]:
        """Of each runner, whether its place is settled; never without a seed that was measured."""
        known = [index for index, runner in enumerate(self._runners) if runner.seeds]
        shares = np.full(len(self._runners), 0.5)
        if known:
            shares[known] = front_probabilities(self._draws([self._runners[index] for index in known]), self._signs)
        return [bool(share >= CONFIDENCE or share <= 1.0 - CONFIDENCE) for share in shares]

    def could_be_on_front(self, runner: Candidate) -> bool:
        """Whether a runner that is beaten would not be, had noise been as kind to it as it plausibly can be."""
        lift = np.array([_FAR * spread.sd for spread in self._noise])
        own = self._centre(runner) * self._signs - lift
        others = np.array([self._centre(other) * self._signs for other in self._runners if other.seeds])
        return bool(non_dominated(np.vstack([others, own]))[-1])

    def _draws(self, runners: list[Candidate]) -> Values:
        generator = np.random.default_rng(_SEED)
        centres = np.array([self._centre(runner) for runner in runners])
        errors = np.array([[spread.sd / np.sqrt(len(runner.seeds)) for spread in self._noise] for runner in runners])
        degrees = np.array([spread.degrees for spread in self._noise])
        shape = (_NUM_DRAWS, len(runners), len(self._noise))
        return np.asarray(centres + errors * generator.standard_t(degrees, size=shape))

    def _centre(self, runner: Candidate) -> Values:
        return np.array([float(np.mean(_on_scale(name, runner.seeds))) for name in self._objectives])


def _on_scale(name: str, seeds: Sequence[Measured]) -> Values:
    return scale_of(name).forward(np.array([float(measured[name]) for measured in seeds], dtype=np.float64))
