"""The commands on what is recorded: ``report``, ``export``, ``import``, ``dashboard``."""

import contextlib
import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from sweep.cli.arguments import study_place
from sweep.config.errors import InputError

Root = Annotated[Path, typer.Option(help="Folder of all studies.")]
Study = Annotated[
    str, typer.Argument(help="A study's folder, its name under the root, a database URL, or SWEEP_STORE.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("report")(report)
    app.command("export")(export)
    app.command("import")(import_folder)
    app.command("dashboard")(dashboard)


def report(
    study: Study,
    out: Annotated[Path | None, typer.Option(help="Folder for the report, instead of the study's own.")] = None,
    formats: Annotated[
        list[str] | None, typer.Option("--format", help="Of the pictures: png (as if not given), svg, pdf; repeatable.")
    ] = None,
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write the report of a study: one HTML file and a picture of each figure. Works while the study runs."""
    from reports import write_report

    place = study_place(study, root)
    if "://" in place and out is None:
        raise InputError("sweep report: records in a database have no folder; say where with --out DIR.")
    path = write_report(place, out=out, formats=tuple(formats or ("png",)))
    typer.echo(json.dumps({"report": str(path)}) if as_json else f"report: {path}")


def export(
    study: Study,
    folder: Annotated[Path, typer.Argument(help="Folder for the tables; made if absent.")],
    to: Annotated[str, typer.Option("--to", help="parquet or csv.")] = "parquet",
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Write a study's records as tables that other programs read; `sweep import` takes them back without loss."""
    from sweep.records.exchange.exchange import export_frames
    from sweep.records.frames.frames import load_frames

    frames = load_frames(study_place(study, root), evaluations=True)
    export_frames(frames, folder, format=to)
    document = {"folder": str(folder), "num_trials": len(frames.trials)}
    typer.echo(json.dumps(document) if as_json else f"exported {len(frames.trials)} trials to {folder}")


def import_folder(
    folder: Annotated[Path, typer.Argument(help="A folder that `sweep export` wrote.")],
    root: Root = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """Make a study under the root from exported tables."""
    from sweep.records.exchange.exchange import exported_study, import_records
    from sweep.records.store.store import open_store

    name = exported_study(folder)
    target = root / name
    if (target / "study.sqlite").exists():
        raise InputError(f"sweep import: {target} holds a study already; choose another --root or move it away.")
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".import-", dir=root) as aside:  # a refused import leaves nothing behind
        with contextlib.closing(open_store(Path(aside) / "study.sqlite", create=True)) as store:
            count = import_records(folder, store)
        target.mkdir(exist_ok=True)
        (Path(aside) / "study.sqlite").rename(target / "study.sqlite")
    document = {"study": str(target), "num_trials": count}
    typer.echo(json.dumps(document) if as_json else f"imported {count} trials to {target}")


def dashboard(
    study: Study,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on the loopback interface.")] = 8080,
    root: Root = Path("runs"),
) -> int:
    """Browse a study in optuna-dashboard, read-only and on this machine only. Works while the study runs."""
    from sweep.cli.commands.dashboard import dashboard as serve

    return serve(study_place(study, root), port)
