"""Expected hypervolume improvement of candidates, for any number of objectives (Emmerich et al. 2011).

The space between the front and a reference point is sampled at quasi-random places. A candidate dominates a place with
the product of its normal distribution functions there, because the predictions of the objectives are independent; the
mean over the places estimates the expected improvement.
"""

from dataclasses import dataclass
from typing import final

import numpy as np
from scipy.special import ndtr
from scipy.stats import qmc

from sweep.analysis.statistics.gaussian_process import Floats
from sweep.analysis.statistics.scales import LINEAR, Scale, scale_of
from sweep.config.metrics import METRICS

_NUM_PLACES = 4096
_MAX_OPEN = 800  # places that are used: more would be more exact than the predictions are
_LEAST = 1e-300  # a lower bound of all seconds and bytes
_REACH = 0.1  # how far beyond the best and the worst of each objective, as a share of their range


@final
@dataclass(frozen=True)
class CostAxis:
    """The metric ``name`` as a cost (smaller is better), on the scale on which its noise is even; an empty name is a
    plain number."""

    name: str

    def of_values(self, values: Floats) -> Floats:
        """Measured values, in the metric's unit, on this axis; not finite outside the scale."""
        return np.asarray(self._sign * self._scale.forward(values))

    def of_costs(self, costs: Floats) -> Floats:
        """Costs (values, or minus those of a metric to be maximized) on this axis, clipped to it."""
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
        """The lowest cost that is likely for a candidate, and the highest that is expected of one; shape ``[2]``."""
        return self.axis.costs(np.array([(self.mean - self.deviation).min(), self.mean.max()]))


@final
class UndominatedSpace:
    """The space that no row of ``costs`` (shape ``[n, m]``, smaller is better) dominates, between the best and the
    worst that was measured or is predicted for a candidate."""

    def __init__(self, costs: Floats, predictions: list[GaussianPrediction], seed: int) -> None:
        self._predictions = predictions
        reach = np.array([prediction.reach for prediction in predictions])
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
        """Expected gain of each candidate, as a share of the sampled space; shape ``[k]``."""
        predictions = self._predictions
        if not len(self._places):
            return np.zeros(len(predictions[0].mean))
        chance = np.ones((len(predictions[0].mean), len(self._places)))
        for index, prediction in enumerate(predictions):
            places = prediction.axis.of_costs(self._places[:, index])
            chance *= ndtr((places[None] - prediction.mean[:, None]) / prediction.deviation[:, None])
        return np.asarray(self._weight * chance.mean(axis=1))
