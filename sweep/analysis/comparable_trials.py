"""The trials whose times, memory and accuracy may be compared: those of one data set, on one device."""

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd

from sweep.analysis.costs import SOURCE_NAMES, apply_times
from sweep.analysis.posterior import Posterior, fit_posterior
from sweep.analysis.statistics.column_reading import most_common, read_numbers, read_text
from sweep.analysis.statistics.grouping import (
    Grouping,
    Numbers,
    configuration_groups,
    group_configurations,
    varying_keys,
)
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.validation_images import ValidationImages
from sweep.config.command_lines import StudyCommands
from sweep.config.errors import InputError
from sweep.config.study import FEWEST_SEEDS, Confirm, StudySpec
from sweep.config.units import format_count
from sweep.records.data_summary import DataSummary
from sweep.records.frames.study_frames import Frames
from sweep.records.quality_flags import name_flags

ACCURACY, SECONDS, MEMORY = USUAL_OBJECTIVES = ("val_accuracy", "train_seconds", "peak_memory_bytes")
RECIPE_COLUMNS = ["config.model.name", "config.optimizer.name"]


@dataclass(frozen=True, kw_only=True)
class ComparableTrials:
    """``trials`` are all trials of the most common data set and device, ``done`` the complete ones among them, with the
    times to use (:func:`sweep.analysis.costs.apply_times`); ``notes`` describe what was left out."""

    frames: Frames
    study: str
    trials: pd.DataFrame
    done: pd.DataFrame
    grouping: Grouping
    images: ValidationImages
    notes: tuple[str, ...]
    _posteriors: dict[str, Posterior] = field(default_factory=dict, init=False)

    @property
    def spec(self) -> StudySpec | None:
        """The study's specification where it is on record."""
        return self.frames.spec

    @cached_property
    def commands(self) -> StudyCommands:
        """Commands that would add to the records."""
        return _find_commands(self.frames)

    @property
    def planned_trials(self) -> int:
        """Search trials that the study asked for; at least 10 where that is not on record."""
        return self.spec.trials if self.spec else max(10, len(self.trials))

    @property
    def command_for_more(self) -> str:
        """The command that runs twice the planned trials."""
        return self.commands.run_more(2 * self.planned_trials)

    @cached_property
    def command_for_more_seeds(self) -> str:
        """The command that trains more fresh seeds: twice the share of time; the other limits are named only where they
        are in its way, and then no less than the defaults. All that began count, those on another device too."""
        usual, given = Confirm(), self.spec.confirm if self.spec else Confirm()
        num_begun = np.bincount(configuration_groups(_of_confirming(self.frames.trials)))
        changes: dict[str, object] = {"confirm.share": 2 * given.share}
        reached = {
            "max_configurations": len(num_begun),
            "seeds": max(int(num_begun.max(initial=0)), FEWEST_SEEDS - 1),
        }
        changes |= {
            f"confirm.{key}": max(getattr(usual, key), 2 * getattr(given, key))
            for key, value in reached.items()
            if value >= getattr(given, key)
        }
        return self.commands.confirm_more(changes)

    @cached_property
    def num_seeds(self) -> Numbers:
        """The complete confirming trials with an accuracy of each configuration; shape ``[configurations]``."""
        grouping = self.grouping
        is_counted = grouping.is_confirm & np.isfinite(read_numbers(self.done, ACCURACY))
        return np.bincount(grouping.members, is_counted, minlength=grouping.size).astype(np.int64)

    @cached_property
    def has_doubtful_time(self) -> Mask:
        """Of which configurations no trial has a time that can be used for certain; shape ``[configurations]``."""
        is_usable = read_text(self.done, "time_source") != ""
        return np.asarray(np.bincount(self.grouping.members, is_usable, minlength=self.grouping.size) == 0)

    def posterior(self, name: str) -> Posterior:
        """The posterior of the metric ``name``, fitted once; of the accuracy, on new images."""
        if name not in self._posteriors:
            covariance = self.images.covariance if name == ACCURACY else None
            self._posteriors[name] = fit_posterior(name, self.done, self.grouping, covariance)
        return self._posteriors[name]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """``number``, ``config.*`` and ``global_batch_size`` of each configuration: those of its first trial."""
        return self.done.iloc[self.grouping.first].reset_index(drop=True)

    def basis_of(self, configuration: int) -> Numbers:
        """The rows of ``done`` that a configuration's values rest on; shape ``[seeds]``."""
        return np.flatnonzero(self.grouping.is_basis & (self.grouping.members == configuration))

    @cached_property
    def swept(self) -> tuple[str, ...]:
        """The keys that vary, but for the seed, which repeats the others."""
        return tuple(key for key in self.spec.space if key != "seed") if self.spec else varying_keys(self.done)


def find_common_data(frames: Frames) -> DataSummary | None:
    """The images that all trials read; None where no study has them on record.

    Raises:
        InputError: trials of two studies are known to have read different images.
    """
    with_trials = set(read_text(frames.trials, "study").tolist())
    known = {name: each.data for name, each in frames.inputs.items() if each.data and name in with_trials}
    first = next(((name, data) for name, data in known.items() if data.digest), None)
    for name, data in known.items():
        if first and data.is_other_than(first[1]):
            place = frames.place.partition("#")[0] or "PLACE"
            raise InputError(
                f"studies {first[0]} and {name} read different data: {first[1].describe()} and {data.describe()}. "
                f"Results on different data are never compared; name one study, as in '{place}#{name}'."
            )
    return first[1] if first else next(iter(known.values()), None)


def select_comparable(frames: Frames) -> ComparableTrials:
    """The largest part of the records within which times, memory and accuracy may be compared.

    Raises:
        InputError: trials of two studies are known to have read different images.
    """
    data = find_common_data(frames)
    trials = frames.trials
    complete = np.asarray(read_text(trials, "outcome") == "complete", dtype=np.bool_)
    kept, notes = np.ones(len(trials), dtype=np.bool_), []
    for name, what in (("config.data.name", "data set"), ("device", "device")):
        chosen, note = _select_most_common(trials, kept & complete, name, what)
        # a trial that ended early may not have recorded its device
        kept &= chosen | (~complete & (read_text(trials, name) == ""))
        notes += note
    done = trials if (kept & complete).all() else trials[kept & complete]
    done = apply_times(done, frames.probes)
    grouping = group_configurations(done, configuration_groups(done))
    return ComparableTrials(
        frames=frames,
        study=find_study_name(frames),
        trials=trials if kept.all() else trials[kept],
        done=done,
        grouping=grouping,
        images=ValidationImages(frames, done, grouping, data),
        notes=(*notes, *_note_flags(done, _find_commands(frames).examine())),
    )


def _of_confirming(trials: pd.DataFrame) -> pd.DataFrame:
    chosen: pd.DataFrame = trials[read_text(trials, "phase") == "confirm"]
    return chosen


def find_study_name(frames: Frames) -> str:
    """The name of the study by its specification, otherwise by its first trial; "study" where neither is on record."""
    names = read_text(frames.trials, "study")
    return frames.spec.name if frames.spec else str(names[0]) if len(names) else "study"


def _find_commands(frames: Frames) -> StudyCommands:
    return frames.find_commands(find_study_name(frames))


def _note_flags(done: pd.DataFrame, doctor: str) -> list[str]:
    flags = [str(each).split(",") for each in read_text(done, "quality_flags") if each]
    if not flags:
        return []
    counts = Counter(name.strip() for names in flags for name in names)
    notes = []
    sources = Counter(read_text(done, "time_source")[np.isfinite(read_numbers(done, SECONDS))].tolist())
    if sources[""]:
        notes.append(
            f"The times of {format_count(sources[''], 'trial')} are not reliable, and nothing stands for them: they "
            "count only where no trial of equal cost has another time, and then with their uncertainty. Accuracy and "
            "memory are not affected."
        )
    for source, words in SOURCE_NAMES.items():
        if sources[source]:
            notes.append(
                f"The measured times of {format_count(sources[source], 'trial')} are not reliable: those of {words} "
                "stand for them. Accuracy and memory are not affected."
            )
    parts = ", ".join(f"{name_flags(name)} ({count})" for name, count in sorted(counts.items()))
    return [
        *notes,
        f"{len(flags):,} of {format_count(len(done), 'trial')} {'has' if len(done) == 1 else 'have'} quality warnings: "
        f"{parts}. For the trials and what to do, run {doctor}",
    ]


def _select_most_common(trials: pd.DataFrame, among: Mask, name: str, what: str) -> tuple[Mask, list[str]]:
    values = read_text(trials, name)
    if not among.any():
        return np.ones(len(trials), dtype=np.bool_), []
    chosen, num_others = most_common(values[among])
    left_out = format_count(num_others, "complete trial")
    note = f"Only trials of the {what} {chosen!r} are compared; {left_out} of others are not in the estimates."
    return np.asarray(values == chosen, dtype=np.bool_), [note] if num_others else []


def read_accuracies(trials: pd.DataFrame) -> Values:
    """The accuracies of trainings of a fixed length, NaN for those until a target; shape ``[trials]``."""
    has_target = np.isfinite(read_numbers(trials, "config.budget.target_accuracy"))
    return np.where(has_target, np.nan, read_numbers(trials, ACCURACY))


def find_main_recipe(frame: pd.DataFrame, chosen: Mask) -> tuple[Mask, str]:
    """Which of the rows ``chosen`` are of the model and optimizer that most of them have, and both names; shape
    ``[len(frame)]``. The best learning rate, noise and sharpness of two models or optimizers have nothing in common.
    """
    names = [read_text(frame, name) for name in RECIPE_COLUMNS]
    recipes = np.array([", ".join(filter(None, pair)) for pair in zip(*names, strict=True)], dtype=object)
    main = most_common(recipes[chosen])[0] if chosen.any() else ""
    return np.asarray(chosen & (recipes == main), dtype=np.bool_), str(main)


def is_main_model(frame: pd.DataFrame) -> Mask:
    """Which rows are of the model that most rows have, shape ``[len(frame)]``: models differ in accuracy, so batches
    are compared within one."""
    names = read_text(frame, "config.model.name")
    return np.asarray(names == most_common(names)[0], dtype=np.bool_)
