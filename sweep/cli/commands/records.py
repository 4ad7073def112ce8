"""The commands on what is recorded: ``report``, ``export``, ``import``, ``dashboard``."""

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sweep.cli.arguments import find_records
from sweep.cli.options import RUNS, AsJson, RecordedStudy, Root
from sweep.cli.output import print_answer, print_lines
from sweep.config.errors import InputError


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
    live: Annotated[
        bool, typer.Option("--live", help="Write the page again every 30 s until the study has ended, then the images.")
    ] = False,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> None:
    """Write the report of a study: HTML page and figures. Works while the study runs."""
    from reports import write_report
    from reports.figure import Paper, check_width
    from sweep.cli.live_report import write_live

    place = find_records(study, root)
    if "://" in place and out is None:
        raise InputError("sweep report: records in a database have no folder; give one with --out DIR.")
    if live:
        write_live(Path(place), out, lambda line: print_lines([line], err=True))
    path = write_report(place, out=out, formats=tuple(formats or ("png",)), paper=Paper(check_width(width), has_title))
    print_answer({"report": str(path)}, [f"report: {path}"], as_json=as_json)


def export(
    study: RecordedStudy,
    folder: Annotated[Path, typer.Argument(help="Folder of the exported tables, created if missing.")],
    to: Annotated[str, typer.Option("--to", help="parquet or csv.")] = "parquet",
    root: Root = RUNS,
    as_json: AsJson = False,
) -> None:
    """Export the records of a study as Parquet or CSV. `sweep import` restores them losslessly."""
    from sweep.records.frames.exchange import export_frames
    from sweep.records.frames.frames import load_frames

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
    from sweep.records.frames.exchange import exported_study, import_records
    from sweep.records.store.store import open_store

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
    from sweep.cli.commands.dashboard import serve_dashboard as serve

    return serve(find_records(study, root), port)
