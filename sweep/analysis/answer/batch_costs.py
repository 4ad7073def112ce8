"""What tuned training costs at each effective batch size: steps, samples and time of the training, and to an accuracy
that is common to all batches (Shallue et al. 2019)."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.batch_curve import cross_target
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.analysis.statistics.grouping import Numbers
from sweep.analysis.statistics.intervals import Interval, pooled_spread, seed_interval
from sweep.analysis.statistics.pareto import Values

UNKNOWN = Interval(np.nan, np.nan, np.nan, 0)
_SHARE_REACHED = 0.75  # of a model's batches reach the common target by their tuned accuracy


class BatchCosts(NamedTuple):
    """Of the trainings that stand for one batch. ``remark`` is why the last three are not known, "" where they are."""

    num_steps: Interval
    num_samples: Interval
    steps_to_target: Interval
    samples_to_target: Interval
    share_to_target: Interval  # of the steps
    remark: str


def find_common_target(tuned: Values, tolerance: float) -> float:
    """The accuracy to compare the batches by: ``tolerance`` below what three quarters of the tuned accuracies (shape
    ``[b]``) reach, rounded down to a tenth of a point; NaN without a batch."""
    if not len(tuned):
        return math.nan
    reached = float(np.sort(tuned)[::-1][math.ceil(_SHARE_REACHED * len(tuned)) - 1])
    return math.floor(1000 * (reached - tolerance)) / 1000


def measure_batch_costs(candidates: Candidates, places: Numbers, target: float) -> list[BatchCosts]:
    """The costs of the candidates ``places`` (shape ``[b]``), each by its own trainings. Intervals are by the spread
    between trainings, pooled over the batches; a batch with one training has none."""
    done, evaluations = candidates.records.done, candidates.records.frames.evaluations
    tables, remarks = [], []
    for place in places:
        rows = candidates.basis_of(int(place))
        curves = [_read_curve(evaluations, done.iloc[row]) for row in rows]
        ends = read_numbers(done, "num_steps")[rows]
        batch = read_numbers(done, "global_batch_size")[rows]
        samples = np.array([curve[-1, 1] if len(curve) else np.nan for curve in curves])
        crossed = np.array([_cross(curve, target) for curve in curves]).reshape(-1, 2)
        whole = np.where(np.isfinite(samples), samples, ends * batch)
        tables.append(np.column_stack([ends, whole, crossed, crossed[:, 0] / ends]))
        remarks.append(_explain(curves, target))
        if remarks[-1]:
            tables[-1][:, 2:] = np.nan
    columns = [_describe([table[:, column] for table in tables]) for column in range(5)]
    all_steps, all_samples, steps, seen, shares = columns
    parts = zip(all_steps, all_samples, steps, seen, shares, remarks, strict=True)
    return [BatchCosts(*values) for values in parts]


def combine_ratio(value: Interval, share: Interval) -> Interval:
    """``value`` times ``share``, whose errors are independent and even in their logarithms."""
    middle = value.median * share.median
    if not math.isfinite(middle):
        return UNKNOWN
    halves = [np.log(each.high / each.low) / 2 for each in (value, share)]
    half = float(np.hypot(*halves))
    return Interval(middle, middle * math.exp(-half), middle * math.exp(half), share.n)


def _read_curve(evaluations: pd.DataFrame | None, trial: pd.Series) -> Values:
    # steps, samples and accuracies of one training in order, shape [evaluations, 3]
    if evaluations is None or not len(evaluations):
        return np.empty((0, 3))
    own = evaluations[(evaluations["number"] == trial["number"]) & (evaluations["study"] == trial["study"])]
    table = np.column_stack([read_numbers(own, name) for name in ("step", "samples", "val_accuracy")])
    return np.asarray(table[np.argsort(table[:, 0], kind="stable")])


def _cross(curve: Values, target: float) -> tuple[float, float]:
    if not len(curve):
        return math.nan, math.nan
    return cross_target(curve[:, 0], curve[:, 2], target), cross_target(curve[:, 1], curve[:, 2], target)


def _explain(curves: Sequence[Values], target: float) -> str:
    shown = f"{100 * target:.1f} %"
    if not all(len(curve) for curve in curves):
        return f"the evaluations between which {shown} was reached are not loaded"
    missed = sum(not (curve[:, 2] >= target).any() for curve in curves)
    if missed:
        return f"{missed} of {len(curves)} trainings did not reach {shown}, so the steps and time to it are unknown"
    if any(curve[0, 2] >= target for curve in curves):
        return f"the first evaluation was already at {shown}, so the steps and time to it are unknown"
    return ""


def _describe(values: Sequence[Values]) -> list[Interval]:
    # of each batch, by the spread of the logarithms within batches
    logarithms = [np.log(np.where(each > 0, each, np.nan)) for each in values]
    groups = np.repeat(np.arange(len(values)), [len(each) for each in values])
    spread = pooled_spread(np.concatenate([np.empty(0), *logarithms]), groups)
    found = []
    for each in logarithms:
        middle, low, high, n = seed_interval(each, spread if spread.degrees else None)
        bounds = (low, high) if n > 1 else (np.nan, np.nan)
        value, low, high = np.exp([middle, *bounds]).tolist()
        found.append(Interval(value, low, high, n))
    return found
