"""How far accuracies on one validation split are from those on new images, from which images each trial got right.

Crossed random effects of trials (a configuration and a seed) and images: a configuration gets image i right with the
probability p(i) over seeds. Its accuracy on new images is the mean of p over all images there may be, so that n images
leave an error of variance var(p) / n, however many seeds it is measured with. That error is common to configurations
as far as they get the same images right, so that a difference of two on the same images is known more exactly than
either. What remains, differences between seeds on one image, is part of the spread between seeds.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.pareto import Mask, Values

_IMAGES_AT_ONCE = 8192
# What the choice of images does to all configurations alike is measured on so many of the best ones.
_NUM_BEST = 60
# For configurations (shape [k]): the covariance on the scale of the errors that the evaluated images leave, [k, k].
ImageCovariance = Callable[[Numbers], Values]


def estimate_image_shares(correct: Mask, members: Numbers, seeds: Numbers) -> Values:
    """Covariance of p(i) between k configurations, over the standard deviations sqrt(a (1 - a)) of a single image's
    outcome at their accuracies a; shape ``[k, k]``, no negative eigenvalue.

    1 on the diagonal means that seeds never differ on an image, so that more seeds do not help against few images;
    that is taken too where an accuracy is 0 or 1. Divided by ``4 n`` it is the covariance of the angles
    asin(sqrt(accuracy)) on n images.

    Args:
        correct: which images each trial got right, shape ``[trials, images]``.
        members: the configuration of each trial, from 0 to k - 1, shape ``[trials]``; each has at least one.
        seeds: the seed of each trial, shape ``[trials]``.

    The covariance over images of two trials with different seeds is that of p, without bias; it is averaged over all
    such pairs. With a single common seed, as search trials have, a part of the covariance is the seed's own: it is
    reduced to the share that it is where both are known, and taken whole (too large a variance, an outcome's own) where
    no configuration has two seeds.
    """
    k = int(members.max(initial=-1)) + 1
    covariances = _covariances(correct)
    is_of = (members[:, None] == np.arange(k)).astype(np.float64)
    other_seed = (seeds[:, None] != seeds[None, :]).astype(np.float64)
    apart = _average(covariances, other_seed, is_of)
    together = _average(covariances, 1.0 - other_seed, is_of)
    is_own = np.eye(k, dtype=np.bool_)
    for chosen in (is_own, ~is_own):
        share = _pooled_share(apart[chosen], together[chosen])
        apart[chosen] = np.where(np.isfinite(apart[chosen]), apart[chosen], share * together[chosen])
    accuracies = (is_of.T @ correct.mean(axis=1)) / is_of.sum(axis=0)
    deviations = np.sqrt(accuracies * (1.0 - accuracies))
    is_known = deviations > 0
    scale = np.where(is_known, deviations, 1.0)
    shares = np.where(is_known[:, None] & is_known, apart / np.outer(scale, scale), is_own)
    own = shares.diagonal()
    # of a few misclassified images one's own share is known too badly to be below the others'
    shares[is_own] = np.maximum(own, own[is_known].mean() if is_known.any() else 1.0)
    return drop_negative(shares)


def drop_negative(matrix: Values) -> Values:
    """The symmetric ``matrix``, shape ``[k, k]``, with 0 for its negative eigenvalues: a covariance again, of variances
    that are no smaller."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2.0)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def draw_normal(covariance: Values, num_draws: int, generator: np.random.Generator) -> Values:
    """Draws of mean 0 with that ``covariance``, shape ``[k, k]``, which may be singular; shape ``[num_draws, k]``."""
    values, vectors = np.linalg.eigh(covariance)
    normal = generator.standard_normal((num_draws, len(values)))
    return np.asarray((normal * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)


def _covariances(correct: Mask) -> Values:
    # over images, between all pairs of trials; in parts, because floats take 4 or 8 bytes an image
    num_trials, num_images = correct.shape
    products = np.zeros((num_trials, num_trials))
    for start in range(0, num_images, _IMAGES_AT_ONCE):
        part = correct[:, start : start + _IMAGES_AT_ONCE].astype(np.float32)  # sums of ones below 2**24 are exact
        products += part @ part.T
    means = correct.mean(axis=1)
    return np.asarray(products / num_images - np.outer(means, means))


def _average(covariances: Values, is_counted: Values, is_of: Values) -> Values:
    # over the counted pairs of trials of each two configurations; NaN where there is none
    counts = is_of.T @ is_counted @ is_of
    sums = is_of.T @ (covariances * is_counted) @ is_of
    return np.asarray(np.where(counts > 0, sums / np.maximum(counts, 1.0), np.nan))


def _pooled_share(apart: Values, together: Values) -> float:
    both = np.isfinite(apart) & np.isfinite(together)
    total = float(together[both].sum())
    return float(np.clip(apart[both].sum() / total, 0.0, 1.0)) if total > 0 else 1.0


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
