"""The commands on what is recorded: ``report``, ``export``, ``import``, and ``columns`` of other programs' records."""

import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Annotated, Any, final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

import typer

from reports import write_report
from sweep.cli.app import print_answer, print_lines
from sweep.cli.arguments import find_records, load_records, write_new_study
from sweep.cli.options import RUNS, AnyRecords, AsJson, Columns, RecordedStudy, Root
from sweep.config.errors import InputError, describe_unknown, hide_credentials, shorten_text
from sweep.records.address import split_study
from sweep.records.database import is_held
from sweep.records.store import open_store

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

    from reports.figure import Paper
    from sweep.foreign.sources import ForeignTable
    from sweep.records.frames import Frames


_NUM_EXAMPLES = 3


def report(
    study: AnyRecords,
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
    live: Annotated[
        bool, typer.Option("--live", help="Write the page again every 30 s until the study has ended, then the images.")
    ] = False,
    columns: Columns = None,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> None:
    """Write the report of a study: HTML page and figures. Works while the study runs."""
    from reports import write_report
    from reports.figure import Paper, check_width
    from sweep.foreign.sources import is_foreign

    place = find_records(study, root)
    if is_foreign(place) or columns:
        if live:
            raise InputError("sweep report: --live follows a study of this program; leave it out.")
        paper = Paper(check_width(width), has_title)
        path = _write_foreign_report(load_records(study, root, columns), out, tuple(formats or ("png",)), paper)
        print_answer({"report": str(path)}, [f"report: {path}"], as_json=as_json)
        return
    if "://" in place and out is None:
        raise InputError("sweep report: records in a database have no folder; give one with --out DIR.")
    if live:
        write_live(Path(place), out, lambda line: print_lines([line], err=True))
    path = write_report(place, out=out, formats=tuple(formats or ("png",)), paper=Paper(check_width(width), has_title))
    print_answer({"report": str(path)}, [f"report: {path}"], as_json=as_json)


def _write_foreign_report(frames: "Frames", out: Path | None, formats: tuple[str, ...], paper: "Paper") -> Path:
    from reports.writing import write_frames_report

    if out is None:
        raise InputError("sweep report: records of another program have no folder here; give one with --out DIR.")
    page = out if out.suffix == ".html" else out / "report.html"
    return write_frames_report(frames, page, formats, paper)


def export(
    study: RecordedStudy,
    folder: Annotated[Path, typer.Argument(help="Folder of the exported tables, created if missing.")],
    to: Annotated[str, typer.Option("--to", help="parquet or csv, which lose nothing.")] = "parquet",
    root: Root = RUNS,
    as_json: AsJson = False,
) -> None:
    """Export the records of a study. `sweep import` restores them losslessly."""
    from sweep.records.files import FORMATS, export_frames
    from sweep.records.loading import load_frames

    if to not in FORMATS:
        raise InputError(describe_unknown("format", to, FORMATS))
    frames = load_frames(find_records(study, root), evaluations=True, correct_images=True)
    export_frames(frames, folder, format=to)
    document = {"folder": str(folder), "num_trials": len(frames.trials)}
    print_answer(document, [f"exported {len(frames.trials)} trials to {folder}"], as_json=as_json)


def import_folder(
    folder: Annotated[Path, typer.Argument(help="A folder that `sweep export` wrote.")],
    root: Root = RUNS,
    as_json: AsJson = False,
) -> None:
    """Import exported records as a study. It is created under the root."""
    from sweep.records.files import exported_study, import_records
    from sweep.records.store import open_store

    name = exported_study(folder)
    target = root / name
    if (target / "study.sqlite").exists():
        raise InputError(f"sweep import: {target} holds a study already; choose another --root or move it away.")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=root) as aside:  # a rejected import leaves no files
        with contextlib.closing(open_store(Path(aside) / "study.sqlite", create=True)) as store:
            count = import_records(folder, store)
        target.mkdir(exist_ok=True)
        (Path(aside) / "study.sqlite").rename(target / "study.sqlite")
    document = {"study": str(target), "num_trials": count}
    print_answer(document, [f"imported {count} trials to {target}"], as_json=as_json)


def dashboard(
    study: RecordedStudy,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on the loopback interface.")] = 8080,
    root: Root = RUNS,
) -> int:
    """Browse a study in optuna-dashboard, read-only. The server listens on this machine only and works while the
    study runs."""
    serve = serve_dashboard

    return serve(find_records(study, root), port)


def columns(
    file: Annotated[Path, typer.Argument(help="A file or folder of records that another program wrote.")],
    draft: Annotated[
        Path | None, typer.Option("--draft", help="Write a draft of the map there, to be completed.")
    ] = None,
    study: Annotated[str, typer.Option("--study", help="The study or experiment, where the file holds several.")] = "",
    as_json: AsJson = False,
) -> None:
    """List the columns of another program's records. `--draft` writes a draft of their map, for `--columns` of
    recommend, report and compare."""
    from sweep.foreign.column_map import find_candidates, write_draft
    from sweep.foreign.sources import is_foreign, read_foreign_table

    if not file.exists():
        raise InputError(f"{file}: nothing is there; give a file or folder of runs.")
    if not is_foreign(str(file)):
        raise InputError(f"{file}: it holds records of this program, which need no map of columns.")
    table = read_foreign_table(file, study)
    candidates = find_candidates(table.names)
    if draft is not None:
        write_new_study(draft, write_draft(table.names, study))
    document = {
        "program": table.program,
        "file": table.place,
        "sha256": table.digest,
        "num_runs": len(table.cells),
        "columns": {name: _describe_column(table, name) for name in table.names},
        "candidates": candidates,
        "draft": str(draft) if draft else None,
    }
    print_answer(document, _list_columns(document), as_json=as_json)


def _describe_column(table: "ForeignTable", name: str) -> dict[str, Any]:
    from sweep.foreign.sources import is_setting

    known = [cell for cell in table.cells[name].tolist() if cell is not None]
    examples = [shorten_text(str(cell)) for cell in dict.fromkeys(known)]
    return {
        "is_setting": is_setting(name),
        "num_values": len(known),
        "num_distinct": len(examples),
        "examples": examples[:_NUM_EXAMPLES],
    }


def _list_columns(document: dict[str, Any]) -> Iterator[str]:
    yield f"{document['program']}: {document['num_runs']:,} runs in {document['file']}, SHA-256 {document['sha256']}"
    for name, facts in document["columns"].items():
        role = "a hyperparameter" if facts["is_setting"] else "a column"
        examples = ", ".join(facts["examples"])
        counts = f"{facts['num_values']:,} values, {facts['num_distinct']:,} distinct"
        yield f"  {name}: {role}; {counts}: {examples}"
    yield "Columns whose names are usual for a quantity:"
    for target, names in document["candidates"].items():
        yield f"  {target}: {' or '.join(names)}"
    if not document["candidates"]:
        yield "  none"
    if document["draft"]:
        yield f"draft of the map: {document['draft']}; complete it, and give it with --columns"


# ``sweep dashboard``: optuna-dashboard on a study's mirror, read-only and on the loopback interface only.

_HOST = "127.0.0.1"  # the dashboard has no login


@final
class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


@final
class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: the page polls every few seconds."""


def serve_dashboard(place: str | Path, port: int = 8080) -> int:
    """Serves the study at ``place`` (folder, SQLite file or URL) until it is interrupted; returns the exit code.

    Raises:
        InputError: no study there, nothing mirrored yet, optuna-dashboard is missing, or the port is taken.
    """
    storage = _open(place)
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


def _open(place: str | Path) -> "RDBStorage":
    # refuses what is not a study before Optuna sees it
    store = open_store(split_study(place)[0], read_only=True)
    store.close()
    from sweep.search.optuna import open_read_only

    return open_read_only(store.url)


def _bind(storage: "RDBStorage", port: int) -> WSGIServer:
    try:
        from optuna_dashboard import wsgi
    except ModuleNotFoundError:
        raise InputError("optuna-dashboard is not installed; pip install 'batch-sweep[dashboard]'.") from None
    try:
        return make_server(_HOST, port, wsgi(storage), server_class=_Server, handler_class=_QuietHandler)
    except OSError as error:
        raise InputError(f"--port {port}: {error.strerror}; give another port.") from None


# ``sweep report --live``: the page of a study is written again while the study runs.

# A page takes about a second of one core, which the trainings on the same machine lack meanwhile.
_INTERVAL_SECONDS = 30


def write_live(
    folder: Path, out: Path | None, announce: Callable[[str], None], interval_seconds: float = _INTERVAL_SECONDS
) -> None:
    """Writes the page of the study in ``folder`` whenever its records have changed, at most once an interval, until the
    process that runs the study has ended; of a process on another host that is not known, and it follows until it is
    interrupted. ``announce`` receives a line with the path of the first page, or that the
    study does not run.

    Raises:
        InputError: ``folder`` is no study's folder.
    """
    if not (folder / "study.sqlite").is_file():
        raise InputError(f"sweep report --live: {folder} is not a study's folder; it follows a study that runs there.")
    if not is_held(folder):
        announce("sweep report --live: the study does not run; its report is written once.")
    seen: object = None
    while is_held(folder):
        state = _read_state(folder)
        if state != seen:
            page = write_report(folder, out=out, formats=(), refresh_seconds=max(1, round(interval_seconds)))
            if seen is None:
                announce(f"report, written again every {interval_seconds:.0f} s while the study runs: {page}")
            seen = state
        time.sleep(interval_seconds)


def _read_state(folder: Path) -> list[tuple[str, int, int]]:
    # each commit changes the database or its log
    found = []
    for path in sorted(folder.glob("study.sqlite*")):
        with contextlib.suppress(FileNotFoundError):  # the log is removed when its last user closes it
            status = path.stat()
            found.append((path.name, status.st_mtime_ns, status.st_size))
    return found
