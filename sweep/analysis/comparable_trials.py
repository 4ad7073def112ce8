"""The trials that one answer may compare: of one data set, on one device."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd

from sweep.analysis.answer.commands import Called, called
from sweep.analysis.statistics.frame_columns import format_count, read_numbers, read_text
from sweep.analysis.statistics.grouping import Grouping, Numbers, configuration_groups, group_configurations
from sweep.analysis.statistics.pareto import Mask
from sweep.analysis.statistics.posterior import Posterior, fit_posterior
from sweep.config.study import StudySpec


class Records(Protocol):
    """What the answer and the findings read of loaded frames."""

    @property
    def place(self) -> str: ...
    @property
    def spec(self) -> StudySpec | None: ...
    @property
    def trials(self) -> pd.DataFrame: ...
    @property
    def probes(self) -> pd.DataFrame: ...
    @property
    def evaluations(self) -> pd.DataFrame | None: ...


@dataclass(frozen=True)
class ComparableTrials:
    """``trials`` are all trials of the commonest data set and device, ``done`` the complete ones among them; ``notes``
    say what was left out."""

    called: Called
    spec: StudySpec | None
    trials: pd.DataFrame
    done: pd.DataFrame
    grouping: Grouping
    notes: tuple[str, ...]
    _beliefs: dict[str, Posterior]

    def belief(self, name: str) -> Posterior:
        """The belief about a metric, worked out once."""
        if name not in self._beliefs:
            self._beliefs[name] = fit_posterior(name, self.done, self.grouping)
        return self._beliefs[name]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """``number``, ``config.*`` and ``global_batch_size`` of each configuration: those of its first trial."""
        return self.done.iloc[self.grouping.first].reset_index(drop=True)

    def basis_of(self, configuration: int) -> Numbers:
        """The rows of ``done`` that a configuration's values rest on."""
        return np.flatnonzero(self.grouping.is_basis & (self.grouping.members == configuration))

    @cached_property
    def swept(self) -> tuple[str, ...]:
        """The keys that vary."""
        if self.spec is not None:
            return tuple(self.spec.space)
        names = [name for name in self.done.columns if name.startswith("config.") and name != "config.seed"]
        return tuple(name.removeprefix("config.") for name in names if self.done[name].nunique(dropna=False) > 1)


def select_comparable(records: Records) -> ComparableTrials:
    """The largest part of the records within which times, memory and accuracy may be compared."""
    trials = records.trials
    complete = np.asarray(read_text(trials, "outcome") == "complete", dtype=np.bool_)
    kept, notes = np.ones(len(trials), dtype=np.bool_), []
    for name, what in (("config.data.name", "data set"), ("device", "device")):
        chosen, note = _commonest(trials, kept & complete, name, what)
        # a trial that ended badly may not know its device
        kept &= chosen | (~complete & (read_text(trials, name) == ""))
        notes += note
    done = trials if (kept & complete).all() else trials[kept & complete]
    notes += _doubts(done)
    grouping = group_configurations(done, configuration_groups(done))
    names = read_text(trials, "study")
    study = records.spec.name if records.spec else str(names[0]) if len(names) else "study"
    return ComparableTrials(
        called(study, records.spec, records.place),
        records.spec,
        trials if kept.all() else trials[kept],
        done,
        grouping,
        tuple(notes),
        {},
    )


def _doubts(done: pd.DataFrame) -> list[str]:
    flags = [str(each).split(",") for each in read_text(done, "quality_flags") if each]
    if not flags:
        return []
    counts = Counter(name.strip() for names in flags for name in names)
    parts = ", ".join(f"{name} ({count})" for name, count in sorted(counts.items()))
    return [f"The measurement itself raised doubts in {len(flags):,} of {format_count(len(done), 'trial')}: {parts}."]


def _commonest(trials: pd.DataFrame, among: Mask, name: str, what: str) -> tuple[Mask, list[str]]:
    values = read_text(trials, name)
    names, counts = np.unique([str(value) for value in values[among]], return_counts=True)
    if len(names) < 2:
        return np.asarray(np.isin(values, list(names)) if len(names) else values == values, dtype=np.bool_), []
    chosen = names[int(np.argmax(counts))]
    others = int(counts.sum() - counts.max())
    left_out = format_count(others, "complete trial")
    note = f"Only trials of the {what} {chosen!r} are compared; {left_out} of others left out."
    return np.asarray(values == chosen, dtype=np.bool_), [note]


def positions(ground: ComparableTrials, key: str) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]]":
    """The key's value of each configuration as a number; ``global_batch_size`` is one of the keys."""
    name = key if key in ground.frame.columns else f"config.{key}"
    return read_numbers(ground.frame, name)
