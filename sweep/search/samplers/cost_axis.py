"""A metric as a model sees it: as a cost, on the scale on which its noise is even."""

from dataclasses import dataclass
from typing import final

import numpy as np

from sweep.analysis.statistics.scales import LINEAR, Scale, scale_of
from sweep.config.metrics import METRICS
from sweep.search.samplers.gaussian_process import Floats

_LEAST = 1e-300  # nothing that is measured in seconds or bytes is below it


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
