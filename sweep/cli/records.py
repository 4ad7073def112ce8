"""The commands on records: ``report``, ``export``, ``import``, ``trials`` and ``dashboard``."""

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Annotated, Any, final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import typer

from sweep.cli.app import describe_trial, join_settings, print_answer
from sweep.cli.arguments import (
    RUNS,
    AsJson,
    RecordedStudy,
    Root,
    find_records,
    load_records,
    parse_sets,
    write_new_file,
)
from sweep.config.errors import InputError, describe_unknown, hide_credentials, shorten_text
from sweep.config.metrics import IMAGES
from sweep.records.address import split_study

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

    from sweep.records.frames import Frames
    from sweep.records.store import Store


_NUM_EXAMPLES = 3
Json = dict[str, Any]


def report(
    study: RecordedStudy,
    out: Annotated[Path | None, typer.Option(help="Folder of the report; default: the study's folder.")] = None,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="Image format: png (default), svg or pdf; repeatable.")
    ] = None,
    width: Annotated[
        str, typer.Option(help="Width of the images: screen, or column (3.25 in) or page (6.75 in) of a journal.")
    ] = "screen",
    has_title: Annotated[
        bool, typer.Option("--title/--no-title", help="Title and caption in the images, or neither.")
    ] = True,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> None:
    """Write the report of a study: HTML page and figures. Works while the study runs."""
    from reports import write_report
    from reports.figure import Paper, check_width
    from sweep.foreign.sources import is_foreign

    place, paper, kinds = find_records(study, root), Paper(check_width(width), has_title), tuple(formats or ("png",))
    if is_foreign(place):
        path = write_report(load_records(study, root), out or Path(place), formats=kinds, paper=paper)
    else:
        if "://" in place and out is None:
            raise InputError("sweep report: records in a database have no folder; give one with --out DIR.")
        path = write_report(place, out=out, formats=kinds, paper=paper)
    print_answer({"report": str(path)}, [f"report: {path}"], as_json=as_json)


def export(
    study: RecordedStudy,
    folder: Annotated[Path, typer.Argument(help="Folder of the exported tables, created if missing.")],
    to: Annotated[str, typer.Option("--to", help="parquet, which `sweep import` restores, or csv.")] = "parquet",
    root: Root = RUNS,
    as_json: AsJson = False,
) -> None:
    """Export the records of a study. `sweep import` restores those in Parquet losslessly."""
    from sweep.records.files import FORMATS, export_frames
    from sweep.records.loading import load_frames

    if to not in FORMATS:
        raise InputError(describe_unknown("format", to, FORMATS))
    frames = load_frames(find_records(study, root), evaluations=True, correct_images=True)
    export_frames(frames, folder, format=to)
    document = {"folder": str(folder), "num_trials": len(frames.trials)}
    print_answer(document, [f"exported {len(frames.trials)} trials to {folder}"], as_json=as_json)


def import_study(
    path: Annotated[Path, typer.Argument(help="Folder that `sweep export` wrote, or another program's records.")],
    columns: Annotated[
        Path | None, typer.Option("--columns", help="Map (TOML) of the columns of another program's records.")
    ] = None,
    draft: Annotated[
        Path | None, typer.Option("--draft", help="File for a draft of that map; nothing is imported.")
    ] = None,
    source: Annotated[
        str, typer.Option("--study", help="With --draft: study or experiment, where the records have several.")
    ] = "",
    root: Root = RUNS,
    as_json: AsJson = False,
) -> None:
    """Import records as a study under the root. Records are an export of this program, or a table or database of
    another one with a map of its columns; --draft lists the columns and writes a draft of the map."""
    from sweep.foreign.sources import is_foreign

    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        raise InputError(
            f"{path}: nothing is there; give a folder that `sweep export` wrote, or a file or folder of runs."
        )
    is_own = not is_foreign(str(path))
    if is_own and (columns or draft):
        raise InputError(f"{path}: it holds records of this program, which need no map of columns; leave it out.")
    if draft is not None:
        print_answer(*_draft_map(path, draft, source), as_json=as_json)
        return
    if source:
        raise InputError("sweep import: --study requires --draft; a map names the study by its key study.")
    target, count = _import_own(path, root) if is_own else _import_foreign(path, columns, root)
    document = {"study": str(target), "num_trials": count}
    print_answer(document, [f"imported {count} trials to {target}"], as_json=as_json)


def _import_own(folder: Path, root: Path) -> tuple[Path, int]:
    from sweep.records.files import exported_study, import_records
    from sweep.records.store import open_store

    with _make_study_folder(root, exported_study(folder)) as (aside, target):
        store = open_store(aside / "study.sqlite", create=True)
        with contextlib.closing(store):
            count = import_records(folder, store)
    return target, count


def _import_foreign(path: Path, columns: Path | None, root: Path) -> tuple[Path, int]:
    from sweep.foreign.foreign_records import load_foreign_frames
    from sweep.foreign.imported import write_imported

    frames = load_foreign_frames(path, columns)
    with _make_study_folder(root, str(frames.trials["study"].iloc[0])) as (aside, target):
        write_imported(frames, aside)
    return target, len(frames.trials)


@contextlib.contextmanager
def _make_study_folder(root: Path, name: str) -> Iterator[tuple[Path, Path]]:
    """A folder to write records into, and the folder of the study ``name`` to which they are then moved; a refused
    import leaves no files."""
    from sweep.foreign.imported import is_imported

    target = root / name
    if (target / "study.sqlite").exists() or is_imported(target):
        raise InputError(f"sweep import: {target} holds a study already; choose another --root or move it away.")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=root) as aside:
        yield Path(aside), target
        target.mkdir(exist_ok=True)
        for file in Path(aside).iterdir():
            file.rename(target / file.name)


def _draft_map(path: Path, draft: Path, study: str) -> tuple[Json, list[str]]:
    from sweep.foreign.column_map import find_candidates, write_draft
    from sweep.foreign.sources import is_setting, read_foreign_table

    table = read_foreign_table(path, study)
    candidates = find_candidates(table.names)
    write_new_file(draft, write_draft(table.names, study))
    columns: dict[str, Json] = {}
    for name in table.names:
        known = [str(cell) for cell in table.cells[name].tolist() if cell is not None]
        distinct = [shorten_text(text) for text in dict.fromkeys(known)]
        counts = {"num_values": len(known), "num_distinct": len(distinct)}
        columns[name] = {"is_setting": is_setting(name), **counts, "examples": distinct[:_NUM_EXAMPLES]}
    document = {
        "program": table.program,
        "file": table.place,
        "sha256": table.digest,
        "num_runs": len(table.cells),
        "columns": columns,
        "candidates": candidates,
        "draft": str(draft),
    }
    lines = [f"{table.program}: {len(table.cells):,} runs in {table.place}, SHA-256 {table.digest}"]
    for name, facts in columns.items():
        role = "a hyperparameter" if facts["is_setting"] else "a column"
        found = f"{facts['num_values']:,} values, {facts['num_distinct']:,} distinct"
        lines.append(f"  {name}: {role}; {found}: {', '.join(facts['examples'])}")
    lines.append("Columns whose names are usual for a quantity:")
    lines += [f"  {target}: {' or '.join(names)}" for target, names in candidates.items()] or ["  none"]
    return document, [*lines, f"draft of the map: {draft}; complete it, and give it with --columns"]


def dashboard(
    study: RecordedStudy,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on the loopback interface.")] = 8080,
    root: Root = RUNS,
) -> int:
    """Browse a study in optuna-dashboard, read-only. The server listens on this machine only and works while the
    study runs."""
    return serve_dashboard(find_records(study, root), port)


# ---------------------------------------------------------------------- trials


def trials(
    study: RecordedStudy,
    enqueue: Annotated[
        list[str] | None,
        typer.Option(
            "--enqueue", metavar="KEY=VALUE", help="Hand-made trial with this value; repeatable for more keys."
        ),
    ] = None,
    remove: Annotated[int | None, typer.Option(help="Number of a waiting trial that is taken back.")] = None,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> None:
    """List the trials of a study, or enqueue one. An enqueued trial is the next that a running or the next `sweep run`
    trains; the sampler chooses the keys without a value."""
    if enqueue and remove is not None:
        raise InputError("sweep trials: give --enqueue or --remove, not both.")
    if enqueue or remove is not None:
        print_answer(*_change_queue(study, root, parse_sets(enqueue, "--enqueue"), remove), as_json=as_json)
        return
    place = find_records(study, root)
    frames = load_records(place, root, evaluations=False)
    rows = list_rows(frames, is_running=_may_run(place))
    waiting = frames.queue[frames.queue["number"].isna()]
    entries = zip(waiting["position"], waiting["point"], strict=True)
    queue = [{"position": int(position), "point": json.loads(point)} for position, point in entries]
    objectives = _find_columns(frames)[1]
    lines = [
        describe_trial(
            (row["number"], row["phase"], row["outcome"]),
            {name: row[name] for name in objectives},
            row["config"],
            frames.spec.quality if frames.spec else IMAGES,
            row["is_enqueued"],
        )
        for row in rows
    ]
    lines += [f"enqueued, number {each['position']} of the queue: {join_settings(each['point'])}" for each in queue]
    print_answer({"trials": rows, "queue": queue}, lines, as_json=as_json)


def _change_queue(study: str, root: Path, point: Json, remove: int | None) -> tuple[Json, list[str]]:
    from sweep.records.store import enqueue_point, list_waiting, remove_point

    with _open_study(find_records(study, root)) as (store, name):
        if remove is not None:
            remove_point(store.database, name, remove)
            lines = [f"removed number {remove} of the queue"]
        else:
            added = enqueue_point(store, name, point)
            lines = [f"enqueued as number {added.position} of the queue"]
        waiting = list_waiting(store.database, name)
    lines.append(f"study {name}: {len(waiting)} enqueued, waiting")
    lines += [f"  {each.position}: {join_settings(each.point)}" for each in waiting]
    return {"study": name, "queue": [{"position": each.position, "point": each.point} for each in waiting]}, lines


def _may_run(place: str) -> bool:
    # on a server nothing tells that without the lock of the supervisor
    from sweep.records.database import is_held

    path = Path(place)
    return "://" in place or is_held(path if path.is_dir() else path.parent)


@contextlib.contextmanager
def _open_study(place: str) -> "Iterator[tuple[Store, str]]":
    """The store at ``place`` for writing, and the one study in it that is meant."""
    from sweep.records.store import open_store

    target, named = split_study(place)
    with contextlib.closing(open_store(target)) as store:
        names = store.study_names()
        if named is not None and named not in names:
            raise InputError(describe_unknown("study", named, names))
        if named is None and len(names) != 1:
            raise InputError(f"there are {len(names)} studies; name one of {', '.join(names)} behind a #: URL#NAME.")
        yield store, named or names[0]


def list_rows(frames: "Frames", *, is_running: bool = True) -> list[Json]:
    """A JSON object for each trial; a measurement that is missing is null. A trial without an outcome is interrupted
    where its study is not ``is_running``."""
    from reports.evidence import read_settings
    from sweep.analysis.statistics import plain_value

    trials, (swept, objectives) = frames.trials, _find_columns(frames)
    settings = {key: read_settings(trials, key) for key in swept}
    names, rows = ["number", "phase", "outcome", "seed", "is_enqueued", *objectives], []
    for index, row in enumerate(trials.reindex(columns=names).to_dict("records")):
        facts: Json = {name: plain_value(row[name]) for name in names}
        facts["outcome"] = facts["outcome"] or ("running" if is_running else "interrupted")
        rows.append(facts | {"config": {key: settings[key][index] for key in swept}})
    return rows


def _find_columns(frames: "Frames") -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The swept keys and the objectives."""
    from sweep.analysis.comparable import USUAL_OBJECTIVES
    from sweep.analysis.statistics import varying_keys

    spec = frames.spec
    return (tuple(spec.space), spec.objectives) if spec else (varying_keys(frames.trials), USUAL_OBJECTIVES)


# ---------------------------------------------------------------------- the dashboard

_HOST = "127.0.0.1"  # the dashboard has no login


@final
class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


@final
class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: the page polls every few seconds."""


def serve_dashboard(place: str | Path, port: int = 8080) -> int:
    """Serves the study at ``place`` (folder, SQLite file or URL) until it is interrupted; returns the exit code. Raises
    ``InputError``: no study there, nothing mirrored yet, optuna-dashboard is missing, or the port is taken."""
    from sweep.records.store import open_store
    from sweep.search.optuna import open_read_only

    store = open_store(split_study(place)[0], read_only=True)  # refuses what is not a study before Optuna sees it
    store.close()
    storage = open_read_only(store.database.url)
    try:
        server = _bind(storage, port)
    except BaseException:
        storage.engine.dispose()
        raise
    print(
        f"http://{_HOST}:{server.server_port}/ shows {hide_credentials(place)}, read-only. Ctrl-C ends it.",
        file=sys.stderr,
        flush=True,
    )
    with contextlib.suppress(KeyboardInterrupt), server:
        server.serve_forever()
    storage.remove_session()
    storage.engine.dispose()
    return 0


def _bind(storage: "RDBStorage", port: int) -> WSGIServer:
    try:
        from optuna_dashboard import wsgi
    except ModuleNotFoundError:
        raise InputError("optuna-dashboard is not installed; pip install 'batch-sweep[dashboard]'.") from None
    try:
        return make_server(_HOST, port, wsgi(storage), server_class=_Server, handler_class=_QuietHandler)
    except OSError as error:
        raise InputError(f"--port {port}: {error.strerror}; give another port.") from None
