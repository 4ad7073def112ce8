"""``sweep run``: a study from its question to its report."""

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from sweep.cli.arguments import find_study, parse_duration, parse_sets
from sweep.cli.commands.check import tell_advice
from sweep.cli.display import Display
from sweep.cli.forecast_texts import forecast_lines
from sweep.config.study import StudySpec
from sweep.config.trial_config import flatten
from sweep.records.address import STORE_VARIABLE
from sweep.records.trial_record import TrialRecord
from sweep.search.loop.events import Stopped
from sweep.search.loop.shutdown import departure_on_signals
from sweep.search.seed_allocation.confirmation import front, num_confirming_seeds

if TYPE_CHECKING:
    from sweep.search.forecast.study_forecast import Forecast
    from sweep.search.loop.session import Options


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("run")(run)


def run(
    study: Annotated[str, typer.Argument(help="A shipped study (see `sweep list`) or the path of a .toml file.")],
    trials: Annotated[int | None, typer.Option(help="Search trials, instead of the study's number.")] = None,
    timeout: Annotated[str | None, typer.Option(help="Stop after this long: 90, 90s, 10m, 2h.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the base or the study; repeatable.")
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder of all studies.")] = Path("runs"),
    store: Annotated[
        str | None, typer.Option(envvar=STORE_VARIABLE, help="Database URL for the records, instead of a file.")
    ] = None,
    executor: Annotated[str, typer.Option(help="Where trials run: process, packed, inline, ray or slurm.")] = "process",
    slurm: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What to ask of Slurm for each trial, as a .toml file.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Ray cluster: host:port, or auto. Without it --executor ray starts one here.")
    ] = None,
    per_device: Annotated[
        int | None, typer.Option(help="Trials at once on each device; from 2 on they measure accuracy alone.")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="Set the old study aside and begin anew.")] = False,
    reuse: Annotated[
        list[Path] | None, typer.Option("--reuse", help="Take equal trials from this study or root too; repeatable.")
    ] = None,
    no_reuse: Annotated[bool, typer.Option("--no-reuse", help="Train everything again.")] = False,
    warm_start: Annotated[
        list[str] | None,
        typer.Option("--warm-start", help="Earlier trials to learn from: a study, a table, an Optuna URL; repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what it would cost, and stop.")] = False,
    plugin: Annotated[Path | None, typer.Option(help="A Python file that adds models or data.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Run a study, or go on with it where its records end; then write the report."""
    from sweep.executors.table import ExecutorSettings
    from sweep.search.loop.session import Options, open_session

    options = Options(
        root=root,
        store=store,
        executor=ExecutorSettings(name=executor, device=device, slurm=slurm, address=address, per_device=per_device),
        fresh=fresh,
        reuse=not no_reuse,
        reuse_from=tuple(reuse or ()),
        plugin=load_plugin(plugin),
        timeout_seconds=parse_duration(timeout, "--timeout"),
        warm_start=tuple(warm_start or ()),
    )
    changes = parse_sets(sets or [])
    if trials is not None:
        changes |= {"trials": trials}
    spec = find_study(study, changes)
    if dry_run:
        return _preview(spec, options, as_json=as_json)
    with open_session(spec, options) as session:
        stopped: Stopped | None = None
        display = Display(spec, session.store.trial_records(spec.name))
        _tell(session.forecast())
        if session.earlier:
            Console(stderr=True).print(f"warm start: the sampler knows {len(session.earlier)} earlier trials")
        if options.executor.is_packed:
            words = "trials at once; their times and memory are those of solo probes"
            Console(stderr=True).print(f"packed: {session.executor.slots} {words}")
        tell_advice(spec, study)
        with display, departure_on_signals() as departure, contextlib.closing(session.run(departure)) as events:
            for event in events:
                display.show(event)
                stopped = event if isinstance(event, Stopped) else None
        if stopped and departure.cause:
            return departure.exit_code
        if not stopped:
            session.foresight.explain_memory(session.store)
        records = session.store.trial_records(spec.name)
        report = write_study_report(session.records_place, session.folder)
    answer = summarise(spec, records, report) | {"stopped": stopped.reason if stopped else None}
    answer["num_earlier"] = len(session.earlier)
    if as_json:
        typer.echo(json.dumps(answer))
    else:
        display.close(answer)
    is_failure = stopped is not None and stopped.is_failure
    return 0 if any(record.outcome == "complete" for record in records) and not is_failure else 1


def _preview(spec: StudySpec, options: "Options", *, as_json: bool) -> int:
    from sweep.search.loop.preview import preview

    forecast = preview(spec, options)
    if as_json:
        typer.echo(json.dumps(forecast.document()))
    else:
        _tell(forecast, stderr=False)
    return 0


def _tell(forecast: "Forecast", *, stderr: bool = True) -> None:
    console = Console(stderr=stderr, highlight=False, soft_wrap=True)
    for line in forecast_lines(forecast):
        console.print(Text(line))


def load_plugin(path: Path | None) -> str | None:
    """Loads the user's module, so that its names are known here; returns its path for the children."""
    if path is None:
        return None
    from sweep.training.plugins import load_plugin as load

    load(str(path))
    return str(path.resolve())


def write_study_report(place: str, folder: Path) -> Path:
    """Writes the study's report into its folder."""
    from reports import write_report

    return Path(write_report(place, out=folder))


def summarise(spec: StudySpec, records: list[TrialRecord], report: Path) -> dict[str, Any]:
    """The study as the JSON document that ``sweep run --json`` prints."""
    outcomes: dict[str, int] = {}
    for record in records:
        name = record.outcome or "running"
        outcomes[name] = outcomes.get(name, 0) + 1
    reused = [record for record in records if record.reused_from]
    return {
        "study": spec.name,
        "report": str(report),
        "num_trials": len(records),
        "outcomes": outcomes,
        "num_reused": len(reused),
        "reused_seconds": sum(record.measurements.get("total_seconds", 0.0) for record in reused),
        "confirmed": num_confirming_seeds(records) | {"seeds_at_most": spec.confirm.seeds},
        "front": [_front_row(record, spec) for record in front(records, spec.objectives)],
    }


def _front_row(record: TrialRecord, spec: StudySpec) -> dict[str, Any]:
    flat = flatten(record.config)
    return {
        "number": record.number,
        "config": {path: flat[path] for path in spec.space},
        **{name: record.measurements[name] for name in spec.objectives},
    }
