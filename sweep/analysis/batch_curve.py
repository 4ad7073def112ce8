"""The batch-size curve: the best that was reached at each effective batch size, everything else chosen for it."""

from dataclasses import dataclass

import numpy as np

from sweep.analysis.comparable_trials import ACCURACY, ComparableTrials
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.pareto import Mask, Values


@dataclass(frozen=True, kw_only=True)
class BatchCurve:
    """For each effective batch size in ascending order (all of shape ``[b]``): ``rows``, its best configuration; the
    accuracy that is expected of it on new images, as ``centers`` on the scale of its noise with the standard ``errors``
    there, and as a fraction, ``accuracies``. Errors of differences are smaller, because all are measured on the same
    images: :meth:`sweep.analysis.posterior.Posterior.compare` gives them."""

    batches: Values
    rows: Numbers
    centers: Values
    accuracies: Values
    errors: Values
    num_configurations: int


def fit_batch_curve(records: ComparableTrials, chosen: Mask, at_least: int = 1) -> BatchCurve:
    """The curve over the configurations ``chosen`` (shape ``[configurations]``), for batches that have ``at_least`` as
    many.

    The expected accuracy is corrected for the luck of single seeds, so that a batch is not ahead for having been tried
    more often.
    """
    posterior = records.posterior(ACCURACY)
    sizes = read_numbers(records.frame, "global_batch_size")
    usable = np.flatnonzero(chosen & np.isfinite(posterior.expected) & np.isfinite(sizes))
    rows = usable[np.lexsort((-posterior.expected[usable], sizes[usable]))]
    batches, first, counts = np.unique(sizes[rows], return_index=True, return_counts=True)
    kept = counts >= at_least
    best = rows[first[kept]]
    return BatchCurve(
        batches=batches[kept],
        rows=best,
        centers=posterior.expected[best],
        accuracies=posterior.estimates[best],
        errors=np.sqrt(posterior.covariance(best).diagonal()),
        num_configurations=int(counts[kept].sum()),
    )


def cross_target(steps: Values, accuracies: Values, target: float) -> float:
    """The step at which accuracy reached ``target``, linear between the evaluation before and the one after; NaN where
    the first evaluation had reached it or none did. Both of shape ``[evaluations]``, in the order of steps."""
    reached = np.flatnonzero(accuracies >= target)
    if not len(reached) or reached[0] == 0:
        return np.nan
    before, after = reached[0] - 1, reached[0]
    share = (target - accuracies[before]) / (accuracies[after] - accuracies[before])
    return float(steps[before] + share * (steps[after] - steps[before]))
