"""Whether more seeds could change which configurations are on the front.

Plausible true means of every objective are drawn from Student's t distribution around the measured ones, with a spread
between seeds that is pooled over all configurations. The place of a configuration is settled when it is on the front
in at least 95 % of the draws, or in at most 5 %. Unlike the posteriors behind the answer's ``p_front``, these means are
not corrected by a prior: which seeds are spent depends on the measurements of the candidates alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import final

import numpy as np

from sweep.analysis.statistics.intervals import CONFIDENCE, Spread, pooled_spread
from sweep.analysis.statistics.pareto import Values, front_probabilities, non_dominated
from sweep.analysis.statistics.scales import scale_of
from sweep.config.metrics import METRICS

_NUM_DRAWS = 1000
_SEED = 20_260_101
_MAX_LUCK = 2.8  # standard deviations; two seeds of one configuration differ by more in 1 of 20 cases

Measurements = Mapping[str, float]
Candidate = Sequence[Measurements]  # a configuration: the measurements of each of its seeds


def estimate_noise(candidates: Iterable[Candidate], objectives: Sequence[str]) -> list[Spread] | None:
    """The spread between seeds of each objective on its scale, pooled over ``candidates``; None where none of them has
    two seeds."""
    rows = [(index, measured) for index, seeds in enumerate(candidates) for measured in seeds]
    groups = np.array([index for index, _ in rows], dtype=np.int64)
    spreads = [pooled_spread(_to_scale(name, [measured for _, measured in rows]), groups) for name in objectives]
    return spreads if all(spread.degrees for spread in spreads) else None


@final
class FrontMembership:
    """The places of candidates relative to each other, where the spread between seeds is known."""

    def __init__(self, objectives: Sequence[str], noise: Sequence[Spread], candidates: Sequence[Candidate]) -> None:
        self._objectives, self._noise, self._candidates = list(objectives), list(noise), list(candidates)
        self._signs = [METRICS[name].sign for name in objectives]

    def settled(self) -> list[bool]:
        """Whether the place of each candidate is settled; never without a seed."""
        measured = [index for index, seeds in enumerate(self._candidates) if seeds]
        shares = np.full(len(self._candidates), 0.5)
        if measured:
            draws = self._draw_means([self._candidates[index] for index in measured])
            shares[measured] = front_probabilities(draws, self._signs)
        return [bool(share >= CONFIDENCE or share <= 1.0 - CONFIDENCE) for share in shares]

    def could_be_on_front(self, candidate: Candidate) -> bool:
        """Whether ``candidate`` would be on the front if it had had the worst and the others no luck."""
        lift = np.array([_MAX_LUCK * spread.sd for spread in self._noise])
        own = self._mean(candidate) * self._signs - lift
        others = np.array([self._mean(other) * self._signs for other in self._candidates if other])
        return bool(non_dominated(np.vstack([others, own]))[-1])

    def _draw_means(self, candidates: list[Candidate]) -> Values:
        """Plausible true means, shape ``[draws, candidates, objectives]``."""
        generator = np.random.default_rng(_SEED)
        centers = np.array([self._mean(seeds) for seeds in candidates])
        errors = np.array([[spread.sd / np.sqrt(len(seeds)) for spread in self._noise] for seeds in candidates])
        degrees = np.array([spread.degrees for spread in self._noise])
        shape = (_NUM_DRAWS, len(candidates), len(self._noise))
        return np.asarray(centers + errors * generator.standard_t(degrees, size=shape))

    def _mean(self, candidate: Candidate) -> Values:
        return np.array([float(np.mean(_to_scale(name, candidate))) for name in self._objectives])


def _to_scale(name: str, candidate: Candidate) -> Values:
    return scale_of(name).forward(np.array([float(measured[name]) for measured in candidate], dtype=np.float64))
