"""Which trials are of one configuration."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.intervals import Spread, pooled_spread
from sweep.analysis.statistics.pareto import Mask, Values

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """Complete trials by configuration. ``members`` (shape ``[trials]``) is each trial's configuration, in the order of
    first appearance; ``first`` (shape ``[size]``) the first trial of each; ``is_basis`` the trials that its values
    rest on: the confirming ones, otherwise the first search trial, because the seed that was picked overestimates."""

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

    def seed_spread(self, values: Values) -> Spread:
        """The spread of ``values`` (shape ``[trials]``) between confirming seeds, pooled over the configurations."""
        return pooled_spread(np.where(self.is_confirm, values, np.nan), self.members)

    def basis_values(self, values: Numbers) -> list[tuple[int, ...]]:
        """The values of the trials that each configuration's values rest on, in order; ``size`` tuples."""
        rows = np.flatnonzero(self.is_basis)
        rows = rows[np.argsort(self.members[rows], kind="stable")]
        ends = np.cumsum(np.bincount(self.members[rows], minlength=self.size)).tolist()
        every = values[rows].tolist()
        return [tuple(every[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def group_configurations(done: pd.DataFrame, groups: Numbers) -> Grouping:
    """The complete trials ``done`` by their number in ``groups`` (shape ``[len(done)]``)."""
    members = np.asarray(pd.factorize(groups)[0], dtype=np.int64)
    first = np.unique(members, return_index=True)[1]
    is_confirm = np.asarray(read_text(done, "phase") == "confirm", dtype=np.bool_)
    confirmed = np.bincount(members, is_confirm, minlength=len(first)) > 0
    is_first = np.zeros(len(done), dtype=np.bool_)
    is_first[first] = True
    is_basis = np.where(confirmed[members], is_confirm, is_first)
    return Grouping(members=members, first=first, is_confirm=is_confirm, is_basis=is_basis)


def varying_keys(trials: pd.DataFrame) -> tuple[str, ...]:
    """The keys of the configuration, but for the seed, that have several values in ``trials``."""
    names = (name for name in trials.columns if name.startswith("config.") and name != "config.seed")
    return tuple(name.removeprefix("config.") for name in names if trials[name].nunique(dropna=False) > 1)


def configuration_groups(
    trials: pd.DataFrame, ignored: Collection[str] = (), switches: Collection[str] = ()
) -> Numbers:
    """The same number for trials whose configuration is equal but for the seed and the keys ``ignored``; of the keys
    ``switches`` only whether they are on (neither missing nor 0 nor false) counts. Shape ``[len(trials)]``."""
    keys = [key for key in varying_keys(trials) if key not in ignored]
    if not keys:
        return np.zeros(len(trials), dtype=np.int64)
    names = [f"config.{key}" for key in keys if key in switches]
    is_on = {name: np.nan_to_num(read_numbers(trials, name)) != 0 for name in names}
    varying = [f"config.{key}" for key in keys]
    numbers = trials[varying].assign(**is_on).groupby(varying, dropna=False, sort=False).ngroup()
    return np.asarray(numbers.to_numpy(), dtype=np.int64)
