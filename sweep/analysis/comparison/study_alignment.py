"""The configurations that two studies share, and the trials that their values rest on."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from sweep.analysis.comparison.study_changes import NOT_TRAINED
from sweep.analysis.statistics import (
    Grouping,
    Mask,
    Numbers,
    Spread,
    Values,
    configuration_groups,
    group_configurations,
    plain_value,
    pooled_spread,
    read_numbers,
    read_text,
    scale_of,
    varying_keys,
)
from sweep.analysis.statistics.time_evidence import has_measured_time
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
        """The metric of the trials that a configuration's value rests on, NaN of all others: of a time that is no
        evidence, of that of a probe, which both runs may share, and of that of a reused trial, which is another run's.
        Shape ``[len(done)]``."""
        is_evidence = self.grouping.is_basis & (self._is_time_evidence if METRICS[name].is_speed else True)
        return np.where(is_evidence, read_numbers(self.done, name), np.nan)

    def basis_of(self, configuration: int) -> Numbers:
        """The rows that a configuration's values rest on."""
        return np.flatnonzero(self.grouping.is_basis & (self.grouping.members == configuration))

    @property
    def _is_time_evidence(self) -> Mask:
        return has_measured_time(self.done) & np.asarray(read_text(self.done, "reused_from") == "", dtype=np.bool_)


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
        done = complete[chosen]
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
