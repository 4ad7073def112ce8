"""The errors that the choice of the evaluated images leaves in the accuracies of a study's configurations."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.pareto import Values

# What the choice of images does to all configurations alike is measured on so many of the best ones.
_NUM_BEST = 60
# For configurations (shape [k]): the covariance on the scale of the errors that the evaluated images leave, [k, k].
ImageCovariance = Callable[[Numbers], Values]


@dataclass(frozen=True)
class ImageErrors:
    """The errors that the choice of the evaluated images leaves in a metric: their ``covariance``; the variance
    ``common`` to the best configurations, a shift that changes no order; and the variance beside it that one has on
    average, ``own``, which makes the best of many look better than it is. 0 where that was not measured."""

    covariance: ImageCovariance
    common: float
    own: float


def measure_image_errors(covariance: ImageCovariance, centers: Values) -> ImageErrors:
    """The image errors of configurations with these ``centers`` on the scale of the accuracy; shape ``[n]``."""
    known = np.flatnonzero(np.isfinite(centers))
    best = known[np.argsort(-centers[known], kind="stable")][:_NUM_BEST]
    found = covariance(best)
    between = found - np.diag(found.diagonal())
    measured = np.flatnonzero(between.any(axis=1))  # of others it is not known which images they got right
    if len(measured) < 2:
        return ImageErrors(covariance, 0.0, 0.0)
    common = max(float(between[np.ix_(measured, measured)].sum()) / (len(measured) * (len(measured) - 1)), 0.0)
    return ImageErrors(covariance, common, max(float(found.diagonal()[measured].mean()) - common, 0.0))
