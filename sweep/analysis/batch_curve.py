"""The best that each global batch reached, its learning rate and the like chosen for it."""

from dataclasses import dataclass

import numpy as np

from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.statistics.frame_columns import read_numbers
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.pareto import Mask, Values

ACCURACY = "val_accuracy"


@dataclass(frozen=True)
class BatchCurve:
    """For each global batch in ascending order (all of shape ``[b]``): its best configuration, the accuracy that is
    expected of it, on the scale of its noise and as a fraction, and its standard error on that scale."""

    batches: Values
    rows: Numbers
    centres: Values
    accuracies: Values
    errors: Values
    num_configurations: int


def build_batch_curve(ground: ComparableTrials, chosen: Mask, at_least: int = 1) -> BatchCurve:
    """Among the configurations ``chosen`` (shape ``[configurations]``), for batches that have ``at_least`` so many.

    The expected accuracy has the luck of single seeds taken out, so that a batch is not ahead for having been tried
    more often.
    """
    belief = ground.belief(ACCURACY)
    sizes = read_numbers(ground.frame, "global_batch_size")
    usable = np.flatnonzero(chosen & np.isfinite(belief.expected) & np.isfinite(sizes))
    rows = usable[np.lexsort((-belief.expected[usable], sizes[usable]))]
    batches, first, counts = np.unique(sizes[rows], return_index=True, return_counts=True)
    kept = counts >= at_least
    best = rows[first[kept]]
    errors = belief.standard_errors()[best]
    return BatchCurve(
        batches[kept], best, belief.expected[best], belief.estimates[best], errors, int(counts[kept].sum())
    )
