"""What candidates are worth for the batch-size curve: the expected improvement (Mockus 1978; Jones et al. 1998) of the
tuned accuracy at their own model and batch size.

The front alone is no reason to tune a batch size that others dominate, but what a batch size costs and gives is known
only once it is tuned. An improvement counts from the least useful accuracy on, so that a batch size which is not
expected to reach it gets no more trials.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from scipy.special import ndtr

from sweep.analysis.statistics.gaussian_process import Floats
from sweep.search.samplers.hypervolume_gain import GaussianPrediction


def find_curve_gains(
    groups: Sequence[Hashable], prediction: GaussianPrediction, known: dict[Hashable, float], least_useful: float
) -> Floats:
    """The expected improvement of each of k candidates over the best of its group, on the axis of ``prediction``; shape
    ``[k]``. ``known`` holds the lowest place on the axis of each group that was tried, ``least_useful`` the place below
    which an improvement counts."""
    limits = np.array([min(known.get(group, least_useful), least_useful) for group in groups])
    deviations = np.maximum(prediction.deviation, 1e-12)
    distances = (limits - prediction.mean) / deviations
    density = np.exp(-0.5 * distances**2) / np.sqrt(2.0 * np.pi)
    return np.asarray(np.maximum(deviations * (distances * ndtr(distances) + density), 0.0))
