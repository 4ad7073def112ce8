"""Which trials are of one configuration, and columns as numpy reads them."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from sweep.analysis.statistics.pareto import Mask, Values
from sweep.config.trial_config import Scalar

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Grouping:
    """Complete trials by configuration. ``members`` (shape ``[trials]``) is each trial's configuration, in the order of
    first appearance; ``first`` (shape ``[size]``) the first trial of each; ``is_basis`` the trials that its values
    rest on: the confirming ones, otherwise the first search trial, because the seed that was picked flatters."""

    members: Numbers
    first: Numbers
    is_confirm: Mask
    is_basis: Mask

    @property
    def size(self) -> int:
        """Number of configurations."""
        return len(self.first)

    @property
    def confirmed(self) -> Mask:
        """Which configurations have a confirming trial; shape ``[size]``."""
        return np.bincount(self.members, self.is_confirm, minlength=self.size) > 0

    def medians(self, values: Values) -> tuple[Values, Numbers]:
        """Median of each configuration's finite basis values and how many they are, both of shape ``[size]``."""
        rows = np.flatnonzero(self.is_basis & np.isfinite(values))
        rows = rows[np.lexsort((values[rows], self.members[rows]))]
        counts = np.bincount(self.members[rows], minlength=self.size).astype(np.int64)
        starts = np.cumsum(counts) - counts
        medians = np.full(self.size, np.nan)
        some = counts > 0
        ordered = values[rows]
        low = ordered[(starts + (counts - 1) // 2)[some]]
        high = ordered[(starts + counts // 2)[some]]
        medians[some] = low + (high - low) / 2
        return medians, counts

    def basis_values(self, values: Numbers) -> list[tuple[int, ...]]:
        """The values of the trials that each configuration's values rest on, in order; ``size`` tuples."""
        rows = np.flatnonzero(self.is_basis)
        rows = rows[np.argsort(self.members[rows], kind="stable")]
        ends = np.cumsum(np.bincount(self.members[rows], minlength=self.size)).tolist()
        every = values[rows].tolist()
        return [tuple(every[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def group(done: pd.DataFrame, groups: Numbers) -> Grouping:
    """The complete trials ``done`` by their number in ``groups`` (shape ``[len(done)]``)."""
    kept, first, members = np.unique(groups, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(kept), dtype=np.int64)
    rank[order] = np.arange(len(kept))
    members = rank[members]
    is_confirm = np.asarray(text(done, "phase") == "confirm", dtype=np.bool_)
    confirmed = np.bincount(members, is_confirm, minlength=len(kept)) > 0
    is_first = np.zeros(len(done), dtype=np.bool_)
    is_first[first] = True
    return Grouping(members, first[order], is_confirm, np.where(confirmed[members], is_confirm, is_first))


def configuration_groups(trials: pd.DataFrame, ignored: Collection[str] = ()) -> Numbers:
    """The same number for trials whose configuration is equal but for the seed and the keys ``ignored``; shape
    ``[len(trials)]``."""
    left_out = {"config.seed", *(f"config.{key}" for key in ignored)}
    names = [name for name in trials.columns if name.startswith("config.") and name not in left_out]
    varying = [name for name in names if trials[name].nunique(dropna=False) > 1]
    if not varying:
        return np.zeros(len(trials), dtype=np.int64)
    numbers = trials.groupby(varying, dropna=False, sort=False).ngroup()
    return np.asarray(numbers.to_numpy(), dtype=np.int64)


def column(frame: pd.DataFrame, name: str) -> Values:
    """A numeric column as floats with NaN for what is missing; all NaN when there is no such column."""
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    values = frame[name]
    if values.dtype == np.float64:
        return values.to_numpy()
    return pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def text(frame: pd.DataFrame, name: str) -> npt.NDArray[np.object_]:
    """A column of text with "" for what is missing; all "" when there is no such column."""
    if name not in frame.columns:
        return np.full(len(frame), "", dtype=object)
    return frame[name].astype(object).where(frame[name].notna(), "").to_numpy(dtype=object)


def counted(n: int, what: str) -> str:
    """So many of ``what`` in words."""
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def plain_value(value: object) -> Scalar:
    """A cell of a configuration as Python's own type; None for what is missing."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, str | int | float | bool) else str(plain)
