"""The guide at work: it counts images and devices, probes times and memory, and makes the study from them."""

import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.study import StudySpec
from sweep.config.study_file import apply_changes, build_study
from sweep.executors.table import check_ranks, device_type
from sweep.records.inputs import DataSummary
from sweep.search.ask import (
    PROBING_SECONDS,
    Answers,
    Decisions,
    Facts,
    Size,
    StudyDraft,
    check_time_left,
    choose_size,
    decide,
    describe_left_out,
    find_full_size,
    is_small,
    list_data_settings,
    list_sizes,
    resize,
    write_study,
)
from sweep.search.session import Options, open_session
from sweep.search.study_forecast import Forecast, Forecaster
from sweep.training.data.image_folder import guess_side
from sweep.training.data.image_maps import OnProgress
from sweep.training.data.sources import find_facts, look_at_data

_USUAL_SIDE = 32  # pixels that images of several sizes are brought to
_RATE_SECONDS = 5.0  # of decoding, after which its rate is known
# A run also starts its processes, which takes as long as for the probes, and writes the report, for which as long again
# is assumed.
_OPENINGS = 2


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
    """The study with the text of its file, its forecast, its data and what was left out for lack of time."""

    spec: StudySpec
    text: str
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
    watch = partial(_watch, task, on_progress, [])
    sizes = [facts]
    if task.answers.data == "imagefolder" and "data.image_size" not in changes:
        is_usual = 1 < guess_side(_find_section(task, facts, changes)) <= 2 * _USUAL_SIDE
        sizes = [*sizes[:is_usual], replace(facts, image_size=_USUAL_SIDE)]
    try:
        facts, data = _look(task, sizes[0], changes, watch)
    except InputError:  # maybe because not all have the size of the first one
        if len(sizes) == 1:
            raise
        facts, data = _look(task, sizes[1], changes, watch)
    if not is_small(facts) or "data.validation_share" in changes:
        return facts, data
    try:
        return _look(task, replace(facts, has_own_validation=False), changes, on_progress)
    except InputError:  # the set has a validation split of its own, which takes no share
        return facts, data


def _watch(
    task: GuideTask,
    on_progress: OnProgress | None,
    seen: list[tuple[float, int]],
    *progress: Any,
) -> None:
    """Refuses a budget that decoding alone exceeds, as soon as its rate is known; what was decoded is kept."""
    if on_progress:
        on_progress(*progress)
    num_done, num_images, _ = progress
    now = time.monotonic()
    seen.append((now, num_done))
    seconds, num_new = now - seen[0][0], num_done - seen[0][1]
    if task.budget_seconds is not None and seconds > _RATE_SECONDS and num_new:
        check_time_left(task.budget_seconds, now - task.began + seconds / num_new * (num_images - num_done))


def _find_section(task: GuideTask, facts: Facts, changes: Mapping[str, Any]) -> DataSection:
    base = {each.key: each.value for each in list_data_settings(task.answers, facts)} | dict(changes)
    return build_study({"name": task.name, "base": base}, "the data set").config({}).data


def _look(
    task: GuideTask, facts: Facts, changes: Mapping[str, Any], on_progress: OnProgress | None
) -> tuple[Facts, DataSummary]:
    section = _find_section(task, facts, changes)
    data, declared = look_at_data(section, on_progress), find_facts(section)
    num_train = declared.num_train if data.num_train is None else data.num_train
    num_validation = num_train // 9 if data.num_val is None else data.num_val  # a tenth, if it is not there yet
    return replace(facts, side=declared.shape.side, num_train=num_train, num_validation=num_validation), data


def make_study(task: GuideTask, facts: Facts) -> GuidedStudy:
    """Probes a few configurations, and makes the study whose time is within the budget. Raises ``InputError``: what is
    requested cannot run here, or the budget is too short."""
    budget = task.budget_seconds
    decisions = decide(replace(task.answers, num_devices=1), facts)  # a probe is of one device
    full = find_full_size(decisions, facts.num_train)
    widest = _build(task, _draft(task, decisions, full))
    opened = time.monotonic()
    options = replace(task.options, timeout_seconds=budget)
    with open_session(widest, options, preview=True) as session:
        forecaster = session.forecaster

        def price(size: Size) -> float | None:
            return forecaster.estimate_seconds(_build(task, replace(draft, size=size)))

        reserve = _OPENINGS * (time.monotonic() - opened)
        draft = _draft(task, decisions, full)
        if budget is not None:  # before time is spent on probes
            least = price([*list_sizes(full)][-1])
            spent = time.monotonic() - task.began + (PROBING_SECONDS if least is None else 0.0)
            check_time_left(budget, spent + reserve, least or 0.0)
        session.forecast()
        largest = _find_largest_micro(session.spec, forecaster)
        decisions = decide(task.answers, replace(facts, largest_micro=largest))
        full = find_full_size(decisions, facts.num_train)
        draft = _draft(task, decisions, resize(full, num_models=1))
        if budget is not None:
            left = check_time_left(budget, time.monotonic() - task.began + reserve)
            size = choose_size(full, left, price, budget - left)
            draft = replace(draft, size=size, seconds=left, full_epochs=full.epochs)
        head = ["Written by `sweep ask`. Run it with `sweep run THIS_FILE`."]
        if budget is not None and draft.seconds is not None:
            spent = budget - draft.seconds
            head.append(f"Of a budget of {budget:.0f} s, {spent:.0f} s are for the images, probes and the report.")
        spec = _build(task, draft)
        assert session.data is not None
        return GuidedStudy(
            spec=spec,
            text=write_study(draft, head),
            forecast=forecaster.forecast_other(spec),
            data=session.data,
            notes=decisions.notes,
            left_out=tuple(describe_left_out(draft.size, full, decisions, task.changes)),
        )


def _draft(task: GuideTask, decisions: Decisions, size: Size) -> StudyDraft:
    question = f"Which batch size for {task.answers.data}, and what does it cost in accuracy, time and memory?"
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
