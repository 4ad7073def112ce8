"""The guide at work: it counts images and devices, probes times and memory, and makes the study from them."""

import time
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.study import StudySpec
from sweep.config.study_file import apply_changes, build_study
from sweep.executors.table import check_ranks, device_type
from sweep.records.inputs import DataSummary
from sweep.records.records import decode_correct
from sweep.search.ask import (
    Answers,
    Facts,
    Size,
    StudyDraft,
    check_time_left,
    choose_size,
    cut_images,
    decide,
    describe_left_out,
    describe_part,
    describe_smallest,
    find_full_size,
    hold_out_more,
    list_data_settings,
    list_sizes,
    resize,
    write_study,
)
from sweep.search.session import Options, Session, open_session
from sweep.search.study_forecast import Forecast, Forecaster
from sweep.training.data.image_folder import SeveralSizesError, guess_side
from sweep.training.data.image_maps import OnProgress
from sweep.training.data.sources import find_facts, look_at_data

_USUAL_SIDE = 32  # pixels that images of several sizes are brought to
_RATE_SECONDS = 5.0  # of decoding, after which its rate is known
# A run also starts its processes, which takes as long as for the probes, and writes the report, for which as long again
# is assumed.
_OPENINGS = 2
_NUM_GOOD = 4  # most accurate configurations of a study, which are compared
_LEAST_SECONDS = 10.0  # of a study
_TIMES_AS_LONG = 3.5  # training a model, until it is probed, as the smaller one of its family


@dataclass(frozen=True, kw_only=True)
class GuideTask:
    """What the guide makes a study of: the ``answers``, the name of the study, the seconds that it may take from
    ``began`` on (by ``time.monotonic``; None: as long as it requires), and keys that are set over all others."""

    name: str
    answers: Answers
    options: Options
    budget_seconds: float | None = None
    began: float = field(default_factory=time.monotonic)
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GuidedStudy:
    """The study with the text of its file, its forecast, its data and what was left out for lack of time. ``part`` is
    what it is about where that is not all images or the usual model."""

    spec: StudySpec
    text: str
    part: str
    forecast: Forecast
    data: DataSummary
    notes: tuple[str, ...]
    left_out: tuple[str, ...]


def look_at_images(task: GuideTask, on_progress: OnProgress | None = None) -> tuple[Facts, DataSummary]:
    """What is known of the data set before anything is probed. Raises ``InputError``: it is missing or cannot be used,
    or there are fewer devices than were given."""
    apply_changes({}, dict(task.changes))  # refuses what no command line can set
    check_ranks(task.options.executor, task.answers.num_devices)
    changes = {key: value for key, value in task.changes.items() if key.startswith("data.")}
    facts = Facts(side=0, num_train=0, num_validation=0, device_type=device_type(task.options.executor))
    resized = replace(facts, image_size=_USUAL_SIDE)
    if task.answers.data == "imagefolder" and "data.image_size" not in changes:
        side = guess_side(_find_section(task, facts, changes).folder)
        facts = facts if 1 < side <= 2 * _USUAL_SIDE else resized
    try:
        facts, data = _look(task, facts, changes, on_progress)
    except SeveralSizesError:
        facts, data = _look(task, resized, changes, on_progress)
    if "data.validation_share" in changes:
        return facts, data
    with suppress(InputError):  # the set has a validation split of its own, which takes no share
        find_facts(_find_section(task, replace(facts, validation_share=0.5), changes))
        facts = hold_out_more(replace(facts, has_own_validation=False))
    return (facts, data) if facts.validation_share is None else _look(task, facts, changes, on_progress)


def _watch(task: GuideTask, on_progress: OnProgress | None, seen: list[tuple[float, int]], *progress: Any) -> None:
    """Refuses a budget that decoding alone exceeds, as soon as its rate is known; what was decoded is kept."""
    if on_progress:
        on_progress(*progress)
    num_done, num_images, _ = progress
    now = time.monotonic()
    seen.append((now, num_done))
    seconds, num_new = now - seen[0][0], num_done - seen[0][1]
    if task.budget_seconds is not None and seconds > _RATE_SECONDS and num_new:
        check_time_left(task.budget_seconds, now - task.began + seconds / num_new * (num_images - num_done))


def _look(
    task: GuideTask, facts: Facts, changes: Mapping[str, Any], on_progress: OnProgress | None
) -> tuple[Facts, DataSummary]:
    section = _find_section(task, facts, changes)
    data, declared = look_at_data(section, partial(_watch, task, on_progress, [])), find_facts(section)
    num_train = declared.num_train if data.num_train is None else data.num_train
    num_validation = num_train // 9 if data.num_val is None else data.num_val  # a tenth, if it is not there yet
    _, side, num_classes = declared.shape
    counted = replace(facts, num_train=num_train, num_validation=num_validation)
    return replace(counted, side=side, num_classes=num_classes), data


def _find_section(task: GuideTask, facts: Facts, changes: Mapping[str, Any]) -> DataSection:
    base = {each.key: each.value for each in list_data_settings(task.answers, facts)} | dict(changes)
    return build_study({"name": task.name, "base": base}, "the data set").config({}).data


def make_study(task: GuideTask, facts: Facts) -> GuidedStudy:
    """Probes a few configurations, and makes the study whose time is within the budget. Raises ``InputError``: what is
    requested cannot run here, or the budget is too short."""
    import_module("sweep.training.models.build")  # with torch: once for the probes and the run
    budget, opened = task.budget_seconds, time.monotonic()
    alone = replace(task, answers=replace(task.answers, num_devices=1))  # a probe is of one device
    full = find_full_size(decide(alone.answers, facts), facts.num_train)
    options, size, seconds = replace(task.options, timeout_seconds=budget), resize(full, num_models=1), None
    head = ["Written by `sweep ask`. Run it with `sweep run THIS_FILE`."]
    with open_session(_build(task, _draft(alone, facts, full)), options, preview=True) as session:
        facts, forecaster = replace(facts, disagreement=measure_disagreement(session)), session.forecaster
        if budget is None:
            session.forecast()
        else:
            reserve = _OPENINGS * (time.monotonic() - opened)
            sizer = _Sizer(task=alone, facts=facts, forecaster=forecaster, budget_seconds=budget, reserve=reserve)
            size = sizer.choose(list_sizes(full, task.answers, facts, task.changes))
        spec = _build(task, _draft(alone, facts, size))
        facts = replace(facts, largest_micro=_find_largest_micro(spec, forecaster))
        if budget is not None:
            seconds = sizer.left
            used = f"{budget - seconds:.0f} s are for the images, probes and the report"
            head.append(f"Of a budget of {budget:.0f} s, {used}.")
        draft, part = replace(_draft(task, facts, size), seconds=seconds), describe_part(size, task.answers, facts)
        if part:
            head.append(f"For lack of time it is about {part}.")
        spec, whole = _build(task, draft), decide(task.answers, facts)
        assert session.data is not None
        return GuidedStudy(
            spec=spec,
            text=write_study(draft, head),
            part=part,
            forecast=forecaster.forecast_other(spec),
            data=session.data,
            notes=draft.decisions.notes,
            left_out=tuple(describe_left_out(size, full, draft.decisions, (whole, facts), task.changes)),
        )


def measure_disagreement(session: Session) -> float | None:
    """The share of the validation images that one of two good configurations gets right and the other does not, in
    earlier studies of the same images under the root; None where there are no two."""
    shares: list[float] = []
    for store in session.reused:
        for study in store.study_names():
            data = store.load_inputs(study).data
            if data is None or session.data is None or not data.digest or data.digest != session.data.digest:
                continue
            complete = [each for each in store.trial_records(study) if "val_accuracy" in each.measurements]
            complete.sort(key=lambda each: each.measurements["val_accuracy"])
            texts = store.correct_texts(study, [each.number for each in complete])
            good = {str(each.values | {"seed": 0}): texts[each.number] for each in complete if each.number in texts}
            pairs = combinations([decode_correct(text) for text in [*good.values()][-_NUM_GOOD:]], 2)
            shares += [float((one != other).mean()) for one, other in pairs if len(one) == len(other)]
    return median(shares) if shares else None


@dataclass(frozen=True, kw_only=True)
class _Sizer:
    """Probes and prices studies of several sizes. ``reserve`` are the seconds for the run's start and its report."""

    task: GuideTask
    facts: Facts
    forecaster: Forecaster
    budget_seconds: float
    reserve: float

    @property
    def left(self) -> float:
        """Seconds of the budget for the study itself, a few in any case."""
        return max(self.budget_seconds - self._count_overhead(), _LEAST_SECONDS)

    def choose(self, sizes: Sequence[Size]) -> Size:
        """The largest of the descending ``sizes`` that fits. The smallest one is probed first, so that a budget which
        is too short for it is refused early, with ``InputError``."""
        smallest = sizes[-1]
        self._probe(smallest)
        seconds, text = self._price(smallest) or 0.0, describe_smallest(smallest, self.facts)
        check_time_left(self.budget_seconds, self._count_overhead(), seconds, text)
        fitting = (index for index, size in enumerate(sizes) if (self._guess(size, smallest) or 0.0) <= self.left)
        first = next(fitting, len(sizes) - 1)
        self._probe(sizes[first])
        return choose_size(sizes[first:], self.left, self._price)

    def _count_overhead(self) -> float:
        return time.monotonic() - self.task.began + self.reserve

    def _probe(self, size: Size) -> None:
        draft = replace(_draft(self.task, self.facts, size), seconds=self.left)
        self.forecaster.forecast_other(_build(self.task, draft), may_probe=True)

    def _price(self, size: Size) -> float | None:
        spec, cut = _build(self.task, _draft(self.task, self.facts, size)), cut_images(self.facts, size.subset)
        return self.forecaster.estimate_seconds(spec, cut.num_train, cut.num_validation)

    def _guess(self, size: Size, smallest: Size) -> float | None:
        # as _price, but also where the model itself is not probed yet
        priced = self._price(size)
        if priced is None and smallest.is_smaller:
            priced = self._price(replace(size, is_smaller=True, num_models=1))
            priced = priced and _TIMES_AS_LONG * priced
        return priced


def _draft(task: GuideTask, facts: Facts, size: Size) -> StudyDraft:
    """A study of ``size`` of the images with the ``facts``."""
    answers, part = task.answers, describe_part(size, task.answers, facts)
    name = Path(answers.data_root).resolve().name if answers.data_root else answers.data
    of = f"{name} ({part})" if part else name
    question = f"Which batch size for {of}, and what does it cost in accuracy, time and memory?"
    decisions = decide(answers, cut_images(facts, size.subset))
    return StudyDraft(name=task.name, question=question, decisions=decisions, size=size, changes=task.changes)


def _build(task: GuideTask, draft: StudyDraft) -> StudySpec:
    try:
        table = tomllib.loads(write_study(draft))
    except tomllib.TOMLDecodeError as error:
        given = ", ".join(f"{key}={value}" for key, value in task.changes.items())
        raise InputError(
            f"--set {given}: this makes no study file: {error}. Give dotted keys with one value each, such as "
            "--set batch.micro=64."
        ) from None
    return build_study(table, f"study {task.name}")


def _find_largest_micro(spec: StudySpec, forecaster: Forecaster) -> int | None:
    """The largest micro batch that every model fits with; None where all of them do. Raises ``InputError`` where a
    model does not fit with a single sample."""
    models = spec.space["model.name"].extremes() if "model.name" in spec.space else (spec.base["model.name"],)
    most = largest = max(int(str(size)) for size in spec.space["batch.micro"].grid_values or ())
    for model in models:
        while refusal := forecaster.memory_gate.check(spec.corners.at(_point_at(model, largest, most))):
            if largest == 1:
                raise InputError(
                    f"{model} does not fit with a single sample: it is predicted to require "
                    f"{refusal.predicted_bytes:,} bytes, the limit is {refusal.limit_bytes:,}. Give a smaller model "
                    "(--model) or smaller images (--set data.image_size=N)."
                )
            largest //= 2
    return None if largest == most else largest


def _point_at(model: Any, micro: int, most: int) -> dict[str, Any]:
    # A micro batch below the most is accumulated, and the gradients that are kept for it require memory of their own.
    return {"model.name": model, "batch.micro": micro} | ({"batch.accumulation": 2} if micro < most else {})
