"""How much hypervolume a point is expected to add to a front, for any number of objectives.

The space between the front and a reference point is probed at quasi-random places. A candidate gains a place when it
is at least as good there in every objective; with independent normal beliefs that is a product of their distribution
functions, so that the mean over the places is the expected gain itself (Emmerich et al. 2011), up to the places.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import ndtr
from scipy.stats import qmc

from sweep.analysis.statistics.scales import LINEAR, Scale, scale_of
from sweep.config.metrics import METRICS
from sweep.search.samplers.gaussian_process import Floats

_NUM_PLACES = 4096
_MAX_OPEN = 800  # places that are looked at: beyond them the gain is sharper than the beliefs
_LEAST = 1e-300  # nothing that is measured in seconds or bytes is below it
_REACH = 0.1  # how far beyond the best and the worst of each objective, as a share of their range


@final
@dataclass(frozen=True)
class CostAxis:
    """The metric ``name``, of which smaller is better; an empty name is a plain number."""

    name: str

    def of_values(self, values: Floats) -> Floats:
        """Measured values, in the metric's unit, on this axis; not finite where the scale has no place for one."""
        return np.asarray(self._sign * self._scale.forward(values))

    def of_costs(self, costs: Floats) -> Floats:
        """Costs (values, or minus those of a metric to be made large) on this axis; the nearest place for any beyond
        its end."""
        values = self._sign * costs
        return self.of_values(np.maximum(values, _LEAST) if self._scale.is_ratio else values)

    def costs(self, places: Floats) -> Floats:
        """The costs at places on this axis."""
        return np.asarray(self._sign * self._scale.backward(self._sign * places))

    @property
    def _scale(self) -> Scale:
        return scale_of(self.name) if self.name else LINEAR

    @property
    def _sign(self) -> float:
        return METRICS[self.name].sign if self.name else 1.0


@dataclass(frozen=True)
class GaussianPrediction:
    """Means and deviations of one objective for each candidate, shape ``[k]``, on the ``axis`` where it is normal."""

    mean: Floats
    deviation: Floats
    axis: CostAxis

    @property
    def reach(self) -> Floats:
        """The cost of the best that is likely for any candidate, and of the worst that is expected of one."""
        return self.axis.costs(np.array([(self.mean - self.deviation).min(), self.mean.max()]))


@final
class OpenSpace:
    """What no row of ``costs`` (shape ``[n, m]``, smaller is better) reaches yet, between the best and the worst that
    was seen or is believed of a candidate."""

    def __init__(self, costs: Floats, beliefs: list[GaussianPrediction], seed: int) -> None:
        self._beliefs = beliefs
        reach = np.array([belief.reach for belief in beliefs])
        low, high = np.minimum(costs.min(axis=0), reach[:, 0]), np.maximum(costs.max(axis=0), reach[:, 1])
        spread = np.where(high > low, high - low, np.maximum(np.abs(high), 1e-12))
        low, high = low - _REACH * spread, high + _REACH * spread
        shares = qmc.Sobol(costs.shape[1], rng=seed).random(_NUM_PLACES)
        places = low + shares * (high - low)
        taken = np.zeros(len(places), dtype=np.bool_)
        for row in costs:
            taken |= (row <= places).all(axis=1)
        is_open = np.flatnonzero(~taken)
        self._weight = max(len(is_open), 1) / _NUM_PLACES
        self._places = places[is_open[:_MAX_OPEN]]

    def gains(self) -> Floats:
        """Expected gain of each candidate, as a share of the space that is looked at; shape ``[k]``."""
        beliefs = self._beliefs
        if not len(self._places):
            return np.zeros(len(beliefs[0].mean))
        chance = np.ones((len(beliefs[0].mean), len(self._places)))
        for index, belief in enumerate(beliefs):
            places = belief.axis.of_costs(self._places[:, index])
            chance *= ndtr((places[None] - belief.mean[:, None]) / belief.deviation[:, None])
        return np.asarray(self._weight * chance.mean(axis=1))
