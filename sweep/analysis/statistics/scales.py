"""The scale on which the noise of a metric is even, so that one spread applies to good and bad configurations."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from sweep.analysis.statistics.pareto import Values
from sweep.config.metrics import METRICS
from sweep.config.units import NoiseScale


class Scale(NamedTuple):
    """``forward`` from the metric's unit, ``backward`` to it, element by element. ``is_ratio``: a difference on the
    scale is a ratio."""

    forward: Callable[[Values], Values]
    backward: Callable[[Values], Values]
    is_ratio: bool = False


def _angle(shares: Values) -> Values:
    return np.asarray(np.arcsin(np.sqrt(np.clip(shares, 0.0, 1.0))))


def _share(angles: Values) -> Values:
    return np.asarray(np.sin(np.clip(angles, 0.0, np.pi / 2)) ** 2)


def _log(values: Values) -> Values:
    return np.log(np.where(values > 0, values, np.nan))


LINEAR = Scale(lambda values: values, lambda values: values)
LOG = Scale(_log, lambda values: np.exp(np.clip(values, -600, 600)), is_ratio=True)  # what a float can hold
# asin(sqrt(p)) makes the variance of a binomial share independent of p (Anscombe 1948)
ANGLE = Scale(_angle, _share)
_SCALES: dict[NoiseScale, Scale] = {"linear": LINEAR, "log": LOG, "angle": ANGLE}


def scale_of(name: str) -> Scale:
    """The scale that the metric ``name`` declares."""
    return _SCALES[METRICS[name].scale]


def difference_unit(name: str) -> str:
    """The unit of a difference between two values of the metric ``name``: "ratio" where they are compared by it."""
    return "ratio" if scale_of(name).is_ratio else METRICS[name].unit
