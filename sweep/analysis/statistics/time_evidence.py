"""Which measured times count: a time that its quality flags make no evidence counts only where there is no other."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from sweep.analysis.statistics import Mask, Numbers, Values, read_text
from sweep.records.quality_flags import PACKED, PROBED_TIME, is_time_evidence


def has_time_evidence(rows: pd.DataFrame) -> Mask:
    """Of which rows of trials or probes the times are evidence by their quality flags; shape ``[len(rows)]``."""
    return _judge(rows, is_time_evidence)


def has_measured_time(rows: pd.DataFrame) -> Mask:
    """Of which trials the times are evidence and their own, not those of probes; shape ``[len(rows)]``."""
    return _judge(rows, lambda flags: is_time_evidence(flags) and {PROBED_TIME, PACKED}.isdisjoint(flags))


def count_copies(done: pd.DataFrame, costs: Numbers) -> Values:
    """Of each trial whose time is that of a probe, how many of equal number in ``costs`` have it, itself included; 0 of
    the others. Arrays have shape ``[trials]``."""
    is_copy = has_time_evidence(done) & ~has_measured_time(done)
    counts = np.bincount(costs[is_copy], minlength=int(costs.max(initial=-1)) + 1)
    return np.where(is_copy, counts[costs], 0.0)


def _judge(rows: pd.DataFrame, rule: Callable[[list[str]], bool]) -> Mask:
    codes, names = pd.factorize(read_text(rows, "quality_flags"))
    verdicts = [rule(str(flags).split(",")) for flags in names]
    return np.array(verdicts, dtype=np.bool_)[codes] if len(codes) else np.ones(0, dtype=np.bool_)


def select_evidence(is_evidence: Mask, groups: Numbers) -> Mask:
    """Whose time counts, among trials whose times are equal where their number in ``groups`` is: those that are
    evidence, and where no trial of a group is, all of the group. Arrays have shape ``[trials]``."""
    size = int(groups.max(initial=-1)) + 1
    is_known = np.bincount(groups[is_evidence], minlength=size) > 0
    return np.asarray(is_evidence | ~is_known[groups], dtype=np.bool_)
