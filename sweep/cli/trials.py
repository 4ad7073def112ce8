"""The commands on single trials of a study: ``trials``, ``enqueue``."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reports.evidence import read_settings
from reports.labels import OUTCOME_NAMES, format_metric, format_setting
from sweep.analysis.comparable import USUAL_OBJECTIVES
from sweep.analysis.statistics import plain_value, read_text, varying_keys
from sweep.cli.app import print_answer
from sweep.cli.arguments import find_records, parse_sets
from sweep.cli.options import RUNS, AsJson, RecordedStudy, Root
from sweep.config.errors import InputError, describe_unknown
from sweep.records.address import STORE_VARIABLE
from sweep.records.frames import Frames

if TYPE_CHECKING:
    from sweep.records.store import EnqueuedPoint, Store


def list_trials(
    study: RecordedStudy,
    outcome: Annotated[str | None, typer.Option(help="Only trials with this outcome.")] = None,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> None:
    """List the trials of a study. Hand-made trials that wait are listed after them."""
    from sweep.records.loading import load_frames
    from sweep.records.messages import OUTCOMES

    if outcome is not None and outcome not in OUTCOMES:
        raise InputError(describe_unknown("outcome", outcome, OUTCOMES))
    place = find_records(study, root)
    frames = load_frames(place)
    rows = [row for row in list_rows(frames, is_running=_may_run(place)) if outcome in (None, row["outcome"])]
    queue = [] if outcome else _list_queue(frames)
    lines = [_describe_row(frames, row) for row in rows] or ["no such trial"]
    lines += [f"enqueued, number {each['position']} of the queue: {_join_point(each['point'])}" for each in queue]
    print_answer({"trials": rows, "queue": queue}, lines, as_json=as_json)


def _may_run(place: str) -> bool:
    # on a server nothing tells that without the lock of the supervisor
    from sweep.records.database import is_held

    path = Path(place)
    return "://" in place or is_held(path if path.is_dir() else path.parent)


def enqueue(
    study: Annotated[
        str, typer.Argument(help="A shipped study, a study's file, its folder, its name under the root, or a URL.")
    ],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Value of a key of the space; repeatable."),
    ] = None,
    remove: Annotated[int | None, typer.Option(help="Remove the waiting trial of this number of the queue.")] = None,
    root: Root = RUNS,
    store: Annotated[
        str | None, typer.Option(envvar=STORE_VARIABLE, help="Database URL of the records; default: an SQLite file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Enqueue a hand-made trial, which is trained first. A running or the next `sweep run` trains it; keys of the space
    that are not set are chosen by the sampler; without --set the waiting trials are listed."""
    from sweep.records.store import enqueue_point, list_waiting, remove_point

    if sets and remove is not None:
        raise InputError("sweep enqueue: give --set or --remove, not both.")
    lines: list[str] = []
    with _open_for_queue(study, root, store) as (records, name):
        if remove is not None:
            remove_point(records.database, name, remove)
            lines.append(f"removed number {remove} of the queue")
        if sets:
            added = enqueue_point(records, name, parse_sets(sets))
            lines += [f"enqueued as number {added.position} of the queue", *_describe_budget(records, name)]
        waiting = list_waiting(records.database, name)
    queue = [{"position": each.position, "point": each.point} for each in waiting]
    lines += [f"study {name}: {len(queue)} enqueued, waiting", *map(_describe_point, waiting)]
    print_answer({"study": name, "queue": queue}, lines, as_json=as_json)


def _describe_point(waiting: "EnqueuedPoint") -> str:
    return f"  {waiting.position}: {_join_point(waiting.point)}"


def _join_point(point: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in point.items())


def _describe_budget(store: "Store", study: str) -> Iterator[str]:
    from sweep.records.messages import NOT_COUNTED
    from sweep.records.store import list_waiting

    spec = store.load_spec(study)
    assert spec is not None
    done = [each for each in store.trial_records(study) if each.phase == "search" and each.outcome not in NOT_COUNTED]
    if len(done) >= spec.trials:
        num_waiting = len(list_waiting(store.database, study))
        yield (
            f"all {spec.trials} search trials of the study have been trained: what is enqueued waits until `sweep run` "
            f"is given more, --trials {len(done) + num_waiting}"
        )


@contextlib.contextmanager
def _open_study(place: str) -> "Iterator[tuple[Store, str]]":
    """The store at ``place`` for writing, and the one study in it that is meant."""
    from sweep.records.address import split_study
    from sweep.records.store import open_store

    target, named = split_study(place)
    with contextlib.closing(open_store(target)) as store:
        names = store.study_names()
        if named is not None and named not in names:
            raise InputError(describe_unknown("study", named, names))
        if named is None and len(names) != 1:
            raise InputError(f"there are {len(names)} studies; name one of {', '.join(names)} behind a #: URL#NAME.")
        yield store, named or names[0]


@contextlib.contextmanager
def _open_for_queue(study: str, root: Path, url: str | None) -> "Iterator[tuple[Store, str]]":
    """The records of ``study``; those of a file or a shipped study are made where it has not run yet."""
    from sweep.config.study_file import find_differences, load_study
    from sweep.records.store import open_store

    is_file = study.endswith(".toml") or _is_shipped(study)
    if not is_file or (url is None and (root / study).exists()):
        with _open_study(find_records(study, root)) as found:
            yield found
        return
    spec = load_study(study)
    target = url or root / spec.name / "study.sqlite"
    with contextlib.closing(open_store(target, create=True)) as store:
        recorded = store.load_spec(spec.name)
        if recorded is None:
            store.create_study(spec)
        elif changed := find_differences(recorded, spec):
            lines = "\n  ".join(changed)
            raise InputError(f"study {spec.name!r}: its records were made with another study:\n  {lines}")
        yield store, spec.name


def _is_shipped(name: str) -> bool:
    from studies import shipped_studies

    return name in shipped_studies()


# The trials of a study as rows, for `sweep trials`.

Json = dict[str, Any]


def list_rows(frames: Frames, *, is_running: bool = True) -> list[Json]:
    """A JSON object for each trial; a measurement that is missing is null. A trial without an outcome is interrupted
    where its study is not ``is_running``."""
    trials, (swept, objectives) = frames.trials, _find_columns(frames)
    settings = {key: read_settings(trials, key) for key in swept}
    rows = [
        {
            "number": int(number),
            "phase": str(phase),
            "outcome": str(outcome) or ("running" if is_running else "interrupted"),
            "seed": int(seed),
            "is_enqueued": bool(is_enqueued),
            "config": {key: settings[key][row] for key in swept},
        }
        for row, (number, phase, outcome, seed, is_enqueued) in enumerate(
            zip(
                trials["number"],
                trials["phase"],
                read_text(trials, "outcome"),
                trials["seed"],
                trials["is_enqueued"],
                strict=True,
            )
        )
    ]
    for name in objectives:
        for row, value in zip(rows, trials[name].tolist(), strict=True):
            row[name] = plain_value(value)
    return rows


def _list_queue(frames: Frames) -> list[Json]:
    """The hand-made trials that wait."""
    waiting = frames.queue[frames.queue["number"].isna()]
    rows = zip(waiting["position"], waiting["point"], strict=True)
    return [{"position": int(position), "point": json.loads(point)} for position, point in rows]


def _describe_row(frames: Frames, row: Json) -> str:
    """One row of :func:`list_rows` in the words of a running study."""
    swept, objectives = _find_columns(frames)
    outcome = OUTCOME_NAMES.get(row["outcome"], row["outcome"])
    values = "  ".join(f"{name} {format_metric(name, row[name])}" for name in objectives)
    settings = " ".join(f"{key}={format_setting(row['config'][key])}" for key in swept)
    by_hand = "  enqueued by hand" if row["is_enqueued"] else ""
    return f"trial {row['number']:>4} {row['phase']:<7} {outcome:<13} {values}  [{settings}]{by_hand}"


def _find_columns(frames: Frames) -> tuple[tuple[str, ...], tuple[str, ...]]:
    spec = frames.spec
    return (tuple(spec.space), spec.objectives) if spec else (varying_keys(frames.trials), USUAL_OBJECTIVES)
