"""``sweep run``: a study from its question to its report."""

from pathlib import Path
from typing import Annotated

import typer

from sweep.cli.arguments import load_plugin, parse_duration, parse_sets
from sweep.cli.options import RUNS, AsJson, Device, Plugin, RayAddress, Root, Sets, SlurmFile, StudyFile
from sweep.config.commands import StudyOrigin
from sweep.config.study_file import load_study
from sweep.records.address import STORE_VARIABLE


def run(
    study: StudyFile,
    trials: Annotated[int | None, typer.Option(help="Number of search trials; default: the study's.")] = None,
    timeout: Annotated[str | None, typer.Option(help="Time limit of this run: 90, 90s, 10m, 2h.")] = None,
    sets: Sets = None,
    root: Root = RUNS,
    store: Annotated[
        str | None, typer.Option(envvar=STORE_VARIABLE, help="Database URL of the records; default: an SQLite file.")
    ] = None,
    executor: Annotated[str, typer.Option(help="Where trials run: process, inline, ray or slurm.")] = "process",
    slurm: SlurmFile = None,
    address: RayAddress = None,
    per_device: Annotated[
        int | None,
        typer.Option(help="Concurrent trials per device; with 2 or more, time and memory come from probes."),
    ] = None,
    device: Device = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Set the old records aside and start again.")] = False,
    reuse: Annotated[
        list[Path] | None, typer.Option("--reuse", help="Also reuse equal trials from this study or root; repeatable.")
    ] = None,
    no_reuse: Annotated[bool, typer.Option("--no-reuse", help="Train every trial, also those on record.")] = False,
    warm_start: Annotated[
        list[str] | None,
        typer.Option("--warm-start", help="Study, export, table or Optuna URL to learn from first; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the forecast and stop.")] = False,
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Run a study or resume it, then write its report."""
    from sweep.cli.study_run import ExecutorSettings, Options, preview_study, run_study  # with Optuna and pandas

    changes = parse_sets(sets or []) | ({} if trials is None else {"trials": trials})
    settings = ExecutorSettings(name=executor, device=device, slurm=slurm, address=address, per_device=per_device)
    options = Options(
        root=root,
        store=store,
        executor=settings,
        fresh=fresh,
        reuse=not no_reuse,
        reuse_from=tuple(reuse or ()),
        plugin=load_plugin(plugin),
        timeout_seconds=parse_duration(timeout, "--timeout"),
        warm_start=tuple(warm_start or ()),
        origin=StudyOrigin(argument=study, changes=changes, plugin=str(plugin or ""), options=settings.list_options()),
    )
    spec = load_study(study, changes)
    if dry_run:
        return preview_study(spec, options, as_json=as_json)
    return run_study(spec, options, as_json=as_json)
