"""The trials whose times, memory and accuracy may be compared: those of one data set, on one device."""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from sweep.analysis.costs import SOURCE_NAMES, WEIGHED, apply_times, read_observed
from sweep.analysis.gain import find_gain_scale, limit_gains, turn_interval, turn_trials
from sweep.analysis.posterior import Posterior, ValidationImages, fit_posterior
from sweep.analysis.shortfalls import count_searched
from sweep.analysis.statistics import (
    SCALES,
    Grouping,
    Interval,
    Mask,
    Numbers,
    Scale,
    Spread,
    Values,
    configuration_groups,
    difference_unit,
    find_failed,
    find_fresh,
    group_configurations,
    half_width,
    median_errors,
    most_common,
    non_dominated,
    read_numbers,
    read_text,
    varying_keys,
)
from sweep.config.commands import StudyCommands
from sweep.config.errors import InputError
from sweep.config.metrics import IMAGES, METRICS, Quality, find_metric, format_count
from sweep.config.study import FEWEST_SEEDS, AnswerRules, Confirm, StudySpec
from sweep.records.frames import Frames
from sweep.records.inputs import DataSummary
from sweep.records.quality import BATCH_NOT_FOLLOWED, RATE_NOT_FOLLOWED, name_flags

ACCURACY, SECONDS, MEMORY = USUAL_OBJECTIVES = ("val_accuracy", "train_seconds", "peak_memory_bytes")
_SOON = Quality(name="seconds_to_target", unit="number", direction="minimize")
_LEAST_TOLERANCE = 1e-6  # of the best value: seeds that do not scatter at all
RECIPE_COLUMNS = ["config.model.name", "config.optimizer.name"]
_SIZES = ("config.batch.micro", "config.batch.global", "global_batch_size")
# Shown beside the objectives wherever they were measured.
USUAL_METRICS = ("val_accuracy", "train_seconds", "peak_memory_bytes", "test_accuracy", "generalization_gap")


@dataclass(frozen=True, kw_only=True)
class ComparableTrials:
    """``trials`` are all trials of the most common data set and device, ``done`` the complete ones among them, with the
    times to use (:func:`sweep.analysis.costs.apply_times`); ``notes`` describe what was left out. Their ``quality`` is
    a gain in both (:mod:`sweep.analysis.gain`), at most ``target`` where every training ended at this one."""

    frames: Frames
    study: str
    trials: pd.DataFrame
    done: pd.DataFrame
    grouping: Grouping
    images: ValidationImages
    notes: tuple[str, ...]
    quality: Quality = IMAGES
    target: float | None = None
    _posteriors: dict[str, Posterior] = field(default_factory=dict, init=False)

    @property
    def spec(self) -> StudySpec | None:
        return self.frames.spec

    @property
    def is_script(self) -> bool:
        """Whether a program of the user's trained."""
        return self.spec is not None and self.spec.script is not None

    def sign_of(self, name: str) -> float:
        """-1 where more of the metric ``name`` is better, as of every gain."""
        return -1.0 if name == self.quality.column else METRICS[name].sign

    def show(self, name: str, value: Interval) -> Interval:
        """A value or a difference of the metric ``name`` as the records have it."""
        return turn_interval(value, self.quality) if name == self.quality.column else value

    def name_unit(self, name: str) -> str:
        """The unit of a difference of the metric ``name``."""
        return self.quality.unit if name == self.quality.column else difference_unit(name)

    @property
    def loss_column(self) -> str:
        """The column of the loss: of the quality where less of it is better."""
        return self.quality.column if self.quality.sign < 0 else "val_loss"

    def read_losses(self, trials: pd.DataFrame) -> Values:
        """The losses of trainings of a fixed length, NaN for those until a target; shape ``[trials]``."""
        column = self.loss_column  # where it is the quality, the trials have it as a gain
        return read_accuracies(trials, column) * (-1.0 if column == self.quality.column else 1.0)

    @cached_property
    def until_target(self) -> bool:
        """Whether the time tells the trainings apart, not the quality, because every one ended at one target."""
        return self.target is not None and bool(np.isfinite(read_numbers(self.done, SECONDS)).any())

    @property
    def objectives(self) -> tuple[str, ...]:
        """The study's objectives; the usual ones where the study is not on record."""
        return self.spec.objectives if self.spec else USUAL_OBJECTIVES

    @property
    def judged(self) -> tuple[str, ...]:
        """The metrics that depend on every setting, and by which settings are told apart."""
        return (SECONDS, "seconds_to_target") if self.until_target else (self.quality.column,)

    def judge_by_time(self) -> "ComparableTrials":
        """The same trials with their time as the quality, of which less is better."""
        done = self.done.assign(quality=-read_observed(SECONDS, self.done))
        images = ValidationImages(replace(self.frames, find_correct=None), done, self.grouping, None, _SOON)
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.init}
        return _TimedTrials(**own | {"done": done, "images": images, "quality": _SOON})

    @property
    def data_text(self) -> str:
        """What a statement holds for where the sampling error of the validation data is not known."""
        is_unknown = self.until_target or (self.is_script and not self.images.are_sampled)
        return " on these validation data" if is_unknown else ""

    @property
    def target_text(self) -> str:
        """The value at which every training ended."""
        return f"{self.quality.format_value(self.quality.sign * (self.target or 0.0))} (budget.target)"

    @property
    def tolerance_text(self) -> str:
        """The tolerance as the end of "loses at most", and what that holds for."""
        return f"{self.quality.format_amount(self.tolerance)}{self.data_text}"

    @cached_property
    def scale(self) -> Scale:
        """The scale of the quality's noise."""
        return find_gain_scale(self.quality)

    @cached_property
    def tolerance(self) -> float:
        """The difference of the quality that does not matter."""
        declared = self.spec.tolerance if self.spec else AnswerRules().tolerance.accuracy
        if declared is not None:
            return declared
        posterior = self.posterior(self.quality.column)
        size = abs(float(np.nanmax(posterior.estimates, initial=-np.inf)))
        size = size if math.isfinite(size) else 1.0
        spread = posterior.spread.sd * (size if self.quality.scale == "log" else 1.0)
        return float(f"{max(spread, _LEAST_TOLERANCE * size, 1e-12):.2g}")

    def resize(self, share: float, *, on_scale: bool = False) -> float:
        """What the ``share``, a difference of an accuracy or of its angle, is of the quality or ``on_scale`` near its
        best."""
        size = self.quality.resize(share, self.tolerance)
        if not on_scale or self.quality.scale != "log":
            return size
        return size / abs(float(np.nanmax(self.posterior(self.quality.column).estimates)))

    @cached_property
    def commands(self) -> StudyCommands:
        """Commands that would add to the records."""
        return _find_commands(self.frames)

    @property
    def planned_trials(self) -> int:
        """Search trials that the study asked for; at least 10 where that is not on record."""
        return self.spec.trials if self.spec else max(10, len(self.trials))

    @cached_property
    def is_unfinished(self) -> bool:
        """Whether the study's own command trains more: a trial has no result, or the search has fewer trials than
        planned because of its ``search_timeout``, or without one confirming trial."""
        spec, trials = self.spec, self.frames.trials
        if spec is None or self.commands.is_foreign:
            return False
        has_seeds = "confirm" in read_text(trials, "phase")
        is_early = spec.search_timeout is not None or (bool(spec.confirm.most_trials) and not has_seeds)
        is_open = count_searched(trials) < spec.trials and is_early and self._has_points(spec)
        return is_open or "" in read_text(trials, "outcome")

    def _has_points(self, spec: StudySpec) -> bool:
        points = None
        with suppress(InputError):  # a model of a plug-in that is not here
            points = spec.list_points()
        return points is None or self._num_tried < len(points)

    @property
    def _num_tried(self) -> int:
        return int(configuration_groups(self.frames.trials).max(initial=-1)) + 1

    @property
    def command_for_more(self) -> str:
        """The command that continues the study, or runs twice the planned trials, of a wider space where this one has
        no further point."""
        return (
            self.commands.run()
            if self.is_unfinished
            else self.commands.run_more(2 * self.planned_trials, self._num_tried)
        )

    @cached_property
    def command_for_more_seeds(self) -> str:
        """The command that continues the study, or trains more fresh seeds. All that began count, those on another
        device too."""
        if self.is_unfinished:
            return self.commands.run()
        confirm = self.spec.confirm if self.spec else Confirm()
        trials = self.frames.trials
        num_begun = np.bincount(configuration_groups(trials[find_fresh(trials, configuration_groups(trials))]))
        most_seeds = max(int(num_begun.max(initial=0)), FEWEST_SEEDS - 1)
        return self.commands.confirm_more(confirm.list_raises(len(num_begun), most_seeds))

    @property
    def lack_of_evaluations(self) -> str:
        """Why there is no evaluation."""
        return "the evaluations are not loaded" if self.frames.evaluations is None else "no evaluation is on record"

    @cached_property
    def num_seeds(self) -> Numbers:
        """The complete confirming trials with a quality of each configuration; shape ``[configurations]``."""
        grouping = self.grouping
        is_counted = grouping.is_confirm & np.isfinite(read_numbers(self.done, self.quality.column))
        return np.bincount(grouping.members, is_counted, minlength=grouping.size).astype(np.int64)

    @cached_property
    def num_failed_seeds(self) -> Numbers:
        """The confirming trials of each configuration with another outcome; shape ``[configurations]``."""
        groups = pd.Series(configuration_groups(self.trials), index=self.trials.index)
        return _failed_seeds(self.trials, groups.to_numpy(), groups[self.done.index].to_numpy()[self.grouping.first])

    @cached_property
    def own_errors(self) -> Values:
        """The error of each complete trial's quality beside the luck of seeds, on its scale; shape ``[len(done)]``."""
        return np.zeros(len(self.done))

    @cached_property
    def failed(self) -> Mask:
        """Which complete trials failed: they are far below other seeds of their configuration, and count in no
        estimate of its quality; shape ``[len(done)]``."""
        return find_failed(self.scale.forward(read_numbers(self.done, self.quality.column)), self.grouping)

    @cached_property
    def has_doubtful_time(self) -> Mask:
        """Of which configurations no trial has a time that can be used for certain; shape ``[configurations]``."""
        is_usable = read_text(self.done, "time_source") != ""
        return np.asarray(np.bincount(self.grouping.members, is_usable, minlength=self.grouping.size) == 0)

    def posterior(self, name: str) -> Posterior:
        """The posterior of the metric ``name``, fitted once; of the quality, on new images."""
        if name not in self._posteriors:
            is_quality = name == self.quality.column
            of_quality = (self.images.covariance, self.failed, self.quality) if is_quality else ()
            posterior = fit_posterior(name, self.done, self.grouping, *of_quality)
            if is_quality and self.until_target:  # the target is no estimate
                known: dict[str, Any] = {"is_assumed": False, "prior": None, "images": None, "degrees": None}
                posterior = replace(posterior, spread=Spread(0.0, 1), **known)
            self._posteriors[name] = posterior
        return self._posteriors[name]

    @cached_property
    def frame(self) -> pd.DataFrame:
        """``number``, ``config.*`` and ``global_batch_size`` of each configuration, from its first trial."""
        return self.done.iloc[self.grouping.first].reset_index(drop=True)

    @cached_property
    def swept(self) -> tuple[str, ...]:
        """The keys that vary, but for the seed, which repeats the others."""
        return tuple(key for key in self.spec.space if key != "seed") if self.spec else varying_keys(self.done)


@dataclass(frozen=True, kw_only=True)
class _TimedTrials(ComparableTrials):
    """Trials until a target with their time as the quality: less is better, and a late one is no failure."""

    @cached_property
    def until_target(self) -> bool:
        return False

    @cached_property
    def tolerance(self) -> float:
        rules = self.spec.answer if self.spec else AnswerRules()
        return rules.tolerance.time * abs(float(np.nanmax(self.posterior(self.quality.column).estimates)))

    @cached_property
    def own_errors(self) -> Values:
        return np.nan_to_num(read_numbers(self.done, "time_error"))

    @cached_property
    def failed(self) -> Mask:
        return np.zeros(len(self.done), dtype=np.bool_)


def find_common_data(frames: Frames) -> DataSummary | None:
    """The images that all trials read; None where no study has them on record. Raises ``InputError``: trials of two
    studies are known to have read different images."""
    with_trials = set(read_text(frames.trials, "study").tolist())
    known = {name: given.data for name, given in frames.inputs.items() if given.data and name in with_trials}
    first = next(((name, data) for name, data in known.items() if data.digest), None)
    for name, data in known.items():
        if first and data.is_other_than(first[1]):
            raise InputError(
                f"studies {first[0]} and {name} read different data: {first[1].describe()} and {data.describe()}. "
                f"Results on different data are never compared; name one study, as in '{_find_address(frames)}#{name}'."
            )
    return first[1] if first else next(iter(known.values()), None)


def select_comparable(frames: Frames) -> ComparableTrials:
    """The largest part of the records within which times, memory and accuracy may be compared. Raises ``InputError``:
    trials of two studies are known to have read different images, or several studies measure something else than
    accuracies."""
    data, quality = find_common_data(frames), _find_quality(frames)
    trials = turn_trials(apply_observed(name_scripts(frames)), quality)
    complete = np.asarray(read_text(trials, "outcome") == "complete", dtype=np.bool_)
    kept, notes = np.ones(len(trials), dtype=np.bool_), []
    for name, what in (("config.data.name", "data set"), ("device", "device")):
        chosen, note = _select_most_common(trials, kept & complete, name, what)
        # a trial that ended early may not have recorded its device
        kept &= chosen | (~complete & (read_text(trials, name) == ""))
        notes += note
    # what a time is worth depends on all trials, so that it is the same wherever it is shown
    done, num_repeated = _leave_out_repeated(apply_times(trials, frames.probes)[kept & complete])
    if num_repeated:
        said = "1 trial repeats another one" if num_repeated == 1 else f"{num_repeated:,} trials repeat other ones"
        notes.append(f"{said} with equal settings and seed, which give the same result; each result counts once.")
    target = _find_target(frames.spec, done, quality)
    trials, done = (limit_gains(each, quality, target) for each in (trials, done))
    grouping = group_configurations(done, configuration_groups(done))
    return ComparableTrials(
        frames=frames,
        study=find_study_name(frames),
        trials=trials if kept.all() else trials[kept],
        done=done,
        grouping=grouping,
        images=ValidationImages(frames, done, grouping, data, quality),
        quality=quality,
        target=target,
        notes=(*notes, *_note_flags(done, _find_commands(frames).examine())),
    )


def _find_target(spec: StudySpec | None, done: pd.DataFrame, quality: Quality) -> float | None:
    # the gain at which every complete training ended; None where they ended otherwise, or a study compares targets
    targets = np.unique(read_numbers(done, "config.budget.target"))
    if len(targets) != 1 or not math.isfinite(targets[0]) or (spec and "budget.target" in spec.space):
        return None
    return quality.sign * float(targets[0])


def _find_quality(frames: Frames) -> Quality:
    if frames.spec:
        return frames.spec.quality
    for name, spec in frames.specs.items():
        if spec.quality.column != IMAGES.column:
            raise InputError(
                f"study {name} reports {spec.quality.name}, and studies are answered together by their accuracy alone; "
                f"name one study, as in '{_find_address(frames)}#{name}'."
            )
    return IMAGES


def name_scripts(frames: Frames) -> pd.DataFrame:
    """The trials with the name of the script, where that is what a trial ran, in the place of a model that it was not
    given."""
    scripts = {study: (spec.script, spec.given_keys) for study, spec in frames.specs.items()}
    names = {study: script.name for study, (script, keys) in scripts.items() if script and "model.name" not in keys}
    if not names:
        return frames.trials
    models = frames.trials["study"].map(names).fillna(frames.trials["config.model.name"])
    return frames.trials.assign(**{"config.model.name": models})


def _find_address(frames: Frames) -> str:
    return frames.place.partition("#")[0] or "PLACE"


def apply_observed(trials: pd.DataFrame) -> pd.DataFrame:
    """``trials`` of scripts that did something else than they were asked, under the batch size and the learning rate
    that were observed; without those whose batch size changed while they trained, which is no single one."""
    flags = read_text(trials, "quality_flags")
    if not any("not_followed" in text for text in flags):
        return trials
    is_other_batch, is_other_rate = (
        np.array([flag in text.split(",") for text in flags], dtype=np.bool_)
        for flag in (BATCH_NOT_FOLLOWED, RATE_NOT_FOLLOWED)
    )
    sizes, rates = read_numbers(trials, "observed_batch_size"), read_numbers(trials, "observed_lr")
    has_changed = is_other_batch & (sizes == read_numbers(trials, "global_batch_size"))
    new = {name: trials[name].mask(is_other_batch, sizes) for name in _SIZES if name in trials}
    if "config.batch.accumulation" in trials:
        new["config.batch.accumulation"] = trials["config.batch.accumulation"].mask(is_other_batch, 1)
    if "config.optimizer.lr" in trials:
        new["config.optimizer.lr"] = trials["config.optimizer.lr"].mask(is_other_rate, rates)
    kept: pd.DataFrame = trials.assign(**new)[~has_changed]
    return kept


def _leave_out_repeated(done: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    # the first trial of each configuration and seed of a study, and the number of the others
    keys = done[["study", "phase"]].assign(group=configuration_groups(done), seed=read_numbers(done, "seed"))
    is_repeated = np.asarray(keys.duplicated() & keys["seed"].notna(), dtype=np.bool_)
    return done[~is_repeated] if is_repeated.any() else done, int(is_repeated.sum())


def find_study_name(frames: Frames) -> str:
    """The name of the study by its specification, otherwise by its first trial; "study" where neither is on record."""
    names = read_text(frames.trials, "study")
    return frames.spec.name if frames.spec else str(names[0]) if len(names) else "study"


def _find_commands(frames: Frames) -> StudyCommands:
    return frames.find_commands(find_study_name(frames))


def _note_flags(done: pd.DataFrame, check: str) -> list[str]:
    flags = [str(text).split(",") for text in read_text(done, "quality_flags") if text]
    if not flags:
        return []
    counts = Counter(name.strip() for names in flags for name in names)
    sources = Counter(read_text(done, "time_source")[np.isfinite(read_numbers(done, SECONDS))].tolist())
    instead = {source: f"the times of {words} replace them" for source, words in SOURCE_NAMES.items()}
    instead[WEIGHED] = "they count by their uncertainty, as fewer than 3 trials of equal cost have a reliable one"
    instead[""] = "they count only where no trial of equal cost has another time, and then with their uncertainty"
    notes = [
        f"The measured times of {format_count(sources[source], 'trial')} are not reliable: {words}. Accuracy and "
        "memory are not affected."
        for source, words in instead.items()
        if sources[source]
    ]
    parts = ", ".join(f"{name_flags(name)} ({count})" for name, count in sorted(counts.items()))
    return [
        *notes,
        f"{len(flags):,} of {format_count(len(done), 'trial')} {'has' if len(done) == 1 else 'have'} quality warnings: "
        f"{parts}. For the trials and what to do, run {check}",
    ]


def _select_most_common(trials: pd.DataFrame, among: Mask, name: str, what: str) -> tuple[Mask, list[str]]:
    values = read_text(trials, name)
    if not among.any():
        return np.ones(len(trials), dtype=np.bool_), []
    chosen, num_others = most_common(values[among])
    left_out = format_count(num_others, "complete trial")
    note = f"Only trials of the {what} {chosen!r} are compared; {left_out} of others are not in the estimates."
    return np.asarray(values == chosen, dtype=np.bool_), [note] if num_others else []


def read_accuracies(trials: pd.DataFrame, name: str = ACCURACY) -> Values:
    """The accuracies, or another quality, of trainings of a fixed length, NaN for those until a target; shape
    ``[trials]``."""
    has_target = np.isfinite(read_numbers(trials, "config.budget.target"))
    return np.where(has_target, np.nan, read_numbers(trials, name))


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


def summarize_configurations(
    trials: pd.DataFrame, objectives: Sequence[str], quality: Quality = IMAGES
) -> pd.DataFrame:
    """A row for every configuration with a complete trial, in the order of its first trial.

    ``trials`` have the times to use (:func:`sweep.analysis.costs.apply_times`). Trials are of one configuration when
    all ``config.*`` columns but the seed are equal. Columns:

    ``number`` of the search trial (of the first confirming one where there is none), ``numbers`` and ``seeds`` (tuples)
    of the trials that the values rest on, ``confirmed`` (has a complete confirming trial, by :func:`find_fresh`),
    ``num_seeds``, ``num_failed_seeds`` (confirming trials with another outcome), every ``config.*`` column and
    ``global_batch_size``; for every metric ``<metric>`` (median of the confirming trials, otherwise the value of the
    search trial), ``<metric>_low``, ``<metric>_high`` (95 % confidence interval of that median by the spread between
    seeds, pooled over all confirmed configurations; NaN for what is not confirmed and where no configuration has two
    seeds) and ``<metric>_search``; ``on_search_front`` (among the search values of all) and ``on_front`` (among the
    confirmed medians, or among the search values while nothing is confirmed). The search seed takes no part in a
    confirmed median: it was picked for being good.
    """
    every_group = pd.Series(configuration_groups(trials), index=trials.index)
    complete = np.asarray(read_text(trials, "outcome") == "complete", dtype=np.bool_)
    done, _ = _leave_out_repeated(trials[complete])
    groups = every_group[done.index].to_numpy()
    grouping = group_configurations(done, groups)
    constants = [name for name in done.columns if name.startswith("config.") and name != "config.seed"]
    frame = done.iloc[grouping.first][[*constants, "global_batch_size"]].reset_index(drop=True)
    numbers, seeds = read_numbers(done, "number"), np.nan_to_num(read_numbers(done, "seed"))
    is_search = np.asarray(read_text(done, "phase") != "confirm", dtype=np.bool_)
    searched = _first_search(numbers, grouping, is_search)
    new: dict[str, object] = {
        "number": np.where(np.isfinite(searched), searched, numbers[grouping.first]).astype(np.int64),
        "numbers": grouping.basis_values(numbers.astype(np.int64)),
        "seeds": grouping.basis_values(seeds.astype(np.int64)),
        "confirmed": grouping.confirmed,
        "num_seeds": np.bincount(grouping.members[grouping.is_basis], minlength=grouping.size),
        "num_failed_seeds": _failed_seeds(trials, every_group.to_numpy(), groups[grouping.first]),
    }
    for name in dict.fromkeys((*objectives, *USUAL_METRICS)):
        scale = SCALES[find_metric(name, quality).scale]
        new |= _measured(name, read_numbers(done, name), grouping, scale, is_search)
    frame = pd.concat([pd.DataFrame(new, index=frame.index), frame], axis=1)
    signs, medians = objective_signs(objectives, quality), objective_table(frame, objectives)
    on_front = on_search_front = non_dominated(objective_table(frame, objectives, "_search"), signs)
    if grouping.confirmed.any():
        on_front = non_dominated(np.where(grouping.confirmed[:, None], medians, np.nan), signs)
    return frame.assign(on_search_front=on_search_front, on_front=on_front)


def objective_signs(objectives: Sequence[str], quality: Quality = IMAGES) -> list[float]:
    """-1 for each objective where larger is better."""
    return [find_metric(name, quality).sign for name in objectives]


def objective_table(frame: pd.DataFrame, objectives: Sequence[str], suffix: str = "") -> Values:
    """The objectives' columns side by side, shape ``[len(frame), len(objectives)]``."""
    return np.stack([read_numbers(frame, name + suffix) for name in objectives], axis=1)


def _first_search(values: Values, grouping: Grouping, is_search: Mask) -> Values:
    # the value of each configuration's first search trial; NaN where there is none
    first = np.full(grouping.size, np.nan)
    rows = np.flatnonzero(is_search)[::-1]  # the first is written last and stays
    first[grouping.members[rows]] = values[rows]
    return first


def _failed_seeds(trials: pd.DataFrame, every_group: Numbers, kept: Numbers) -> Numbers:
    failed = find_fresh(trials, every_group) & ~np.isin(read_text(trials, "outcome"), ["", "complete", "cancelled"])
    counts = np.bincount(every_group[failed], minlength=int(kept.max(initial=0)) + 1)
    return np.asarray(counts[kept], dtype=np.int64)


def _measured(name: str, values: Values, grouping: Grouping, scale: Scale, is_search: Mask) -> dict[str, Values]:
    even = scale.forward(values)
    centers, counts = grouping.medians(even)
    halves = np.where(grouping.confirmed, half_width(grouping.seed_spread(even), 1.0) * median_errors(counts), np.nan)
    return {
        name: grouping.medians(values)[0],
        f"{name}_low": scale.backward(centers - halves),
        f"{name}_high": scale.backward(centers + halves),
        f"{name}_search": _first_search(values, grouping, is_search),
    }
