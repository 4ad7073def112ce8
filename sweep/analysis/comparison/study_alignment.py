"""The configurations that two studies share, and the trials that their values rest on."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from sweep.analysis.comparison.study_changes import NOT_TRAINED
from sweep.analysis.costs import MEASURED, UNDISTURBED, apply_times
from sweep.analysis.statistics.column_reading import plain_value, read_numbers, read_text
from sweep.analysis.statistics.grouping import (
    Grouping,
    Numbers,
    configuration_groups,
    group_configurations,
    varying_keys,
)
from sweep.analysis.statistics.intervals import Spread, pooled_spread
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.scales import scale_of
from sweep.config.data_sections import BudgetSection
from sweep.config.metrics import METRICS
from sweep.config.trial_config import config_keys

# Keys that no recipe may differ in: trials of other lengths or on other images are trials of other configurations.
_NO_RECIPE = frozenset({"data.name", *(f"budget.{name}" for name in BudgetSection.model_fields)})


@dataclass(frozen=True)
class Side:
    """The complete trials of one study by configuration."""

    done: pd.DataFrame
    grouping: Grouping

    def is_measured(self, name: str) -> bool:
        """Whether any trial has the metric."""
        return bool(np.isfinite(read_numbers(self.done, name)).any())

    def evidence_of(self, name: str) -> Values:
        """The metric of the trials that a configuration's value rests on, NaN of all others: of a time that is not the
        trial's own, and of a reused trial, which is another run's. Shape ``[len(done)]``."""
        is_used = self.grouping.is_basis & (self._has_own_time if METRICS[name].is_speed else True)
        return np.where(is_used, read_numbers(self.done, name), np.nan)

    def basis_of(self, configuration: int) -> Numbers:
        """The rows that a configuration's values rest on."""
        return np.flatnonzero(self.grouping.is_basis & (self.grouping.members == configuration))

    @property
    def _has_own_time(self) -> Mask:
        is_own = np.isin(read_text(self.done, "time_source"), [MEASURED, UNDISTURBED])
        return is_own & np.asarray(read_text(self.done, "reused_from") == "", dtype=np.bool_)


Sides = tuple[Side, Side]


def align_studies(a: pd.DataFrame, b: pd.DataFrame) -> tuple[Sides, list[tuple[int, int]]]:
    """Both sides of the trials ``a`` and ``b``, and the pairs of equal configurations by their number on each side."""
    # copied, because pandas warns where a column is added to over 100 separate ones
    both = pd.concat([a.copy().assign(side="a"), b.copy().assign(side="b")], ignore_index=True)
    complete = both[np.asarray(read_text(both, "outcome") == "complete", dtype=np.bool_)]
    in_a = np.asarray(complete["side"] == "a", dtype=np.bool_)
    groups = configuration_groups(complete, NOT_TRAINED | _recipe_keys(complete[in_a], complete[~in_a]))
    names, sides = [], []
    for chosen in (in_a, ~in_a):
        done = apply_times(complete[chosen], pd.DataFrame())
        grouping = group_configurations(done, groups[chosen])
        sides.append(Side(done, grouping))
        names.append({int(name): place for place, name in enumerate(groups[chosen][grouping.first])})
    pairs = [(place, names[1][name]) for name, place in names[0].items() if name in names[1]]
    return (sides[0], sides[1]), pairs


def pool_spread(sides: Sides, name: str) -> Spread:
    """The spread between the seeds of one configuration of one study, over all that have several, on the metric's
    scale."""
    scale, values, groups, offset = scale_of(name), [], [], 0
    for side in sides:
        values.append(scale.forward(side.evidence_of(name)))
        groups.append(side.grouping.members + offset)
        offset += side.grouping.size
    return pooled_spread(np.concatenate(values), np.concatenate(groups))


def list_settings(sides: Sides) -> tuple[str, ...]:
    """The keys that vary in either study."""
    varying = {key for side in sides for key in varying_keys(side.done)} - NOT_TRAINED
    return tuple(key for key in config_keys() if key in varying)


def _recipe_keys(a: pd.DataFrame, b: pd.DataFrame) -> set[str]:
    # settings that each study keeps and in which they differ: what is compared, so that it aligns nothing
    found = set()
    for name in (name for name in a.columns if name.startswith("config.")):
        values = [{plain_value(value) for value in side[name].unique()} for side in (a, b)]
        if len(values[0]) == len(values[1]) == 1 and values[0] != values[1]:
            found.add(name.removeprefix("config."))
    return found - _NO_RECIPE
