"""``sweep run`` and ``sweep train``: a study from its question to its report, and one training without a study."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reports.labels import format_metric
from sweep.cli.answer import describe_statements
from sweep.cli.app import print_lines, print_table
from sweep.cli.arguments import (
    RUNS,
    AsJson,
    BaseStudy,
    On,
    Plugin,
    Root,
    Sets,
    StudyFile,
    build_base_config,
    list_on_option,
    parse_duration,
    parse_sets,
    use_plugin,
)
from sweep.config.commands import StudyOrigin
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.study_file import load_study
from sweep.config.trial import TrialConfig, flatten_config
from sweep.records.address import STORE_VARIABLE
from sweep.search.shutdown import shutdown_on_signals
from sweep.training.processes import SUPERVISOR_LINK

if TYPE_CHECKING:
    from sweep.records.messages import Ending, Evaluation


def run(
    study: StudyFile,
    trials: Annotated[int | None, typer.Option(help="Number of search trials; default: the study's.")] = None,
    timeout: Annotated[
        str | None, typer.Option(help="Time limit of this run, without its start and report: 90, 90s, 10m, 2h.")
    ] = None,
    sets: Sets = None,
    root: Root = RUNS,
    store: Annotated[
        str | None, typer.Option(envvar=STORE_VARIABLE, help="Database URL of the records; default: an SQLite file.")
    ] = None,
    on: On = "auto",
    fresh: Annotated[bool, typer.Option("--fresh", help="A new start; the old records are set aside.")] = False,
    no_reuse: Annotated[bool, typer.Option("--no-reuse", help="Train again what equal trials did.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only the forecast of time and memory.")] = False,
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Run a study or resume it, then write its report."""
    from reports.texts import describe_batch_answer  # with pandas
    from sweep.analysis.recommendation import recommend
    from sweep.cli.study_run import carry_out_study, preview_study  # with Optuna
    from sweep.executors.table import read_executor
    from sweep.search.session import Options

    changes = parse_sets(sets) | ({} if trials is None else {"trials": trials})
    origin = StudyOrigin(argument=study, changes=changes, plugin=str(plugin or ""), options=list_on_option(on))
    options = Options(
        root=root,
        store=store,
        executor=read_executor(on),
        fresh=fresh,
        reuse=not no_reuse,
        plugin=use_plugin(plugin),
        timeout_seconds=parse_duration(timeout, "--timeout"),
        origin=origin,
    )
    spec = load_study(study, changes)
    if dry_run:
        return preview_study(spec, options, as_json=as_json)
    ended = carry_out_study(spec, options)
    if ended.document is not None and as_json:
        typer.echo(json.dumps(ended.document))
    elif ended.document is not None:
        answer = recommend(ended.place, uses=())
        batch = answer.batch_size
        lines = describe_statements(describe_batch_answer(batch, answer.quality)) if batch else ()
        ended.display.close(ended.document, lines)
    return ended.exit_code


def train(
    study: BaseStudy = None,
    sets: Sets = None,
    save: Annotated[Path | None, typer.Option(help="File for the trained weights (.safetensors).")] = None,
    on: On = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Train one configuration and print its record. The training runs on this machine."""
    from sweep.executors.table import read_executor
    from sweep.search.single import train_trial

    if save is not None and save.suffix != ".safetensors":
        named = save.with_suffix(".safetensors")
        raise InputError(f"--save {save}: the weights are written as safetensors; name it --save {named}.")
    executor = read_executor(on)
    if executor.name not in ("process", "inline") or executor.is_packed:
        raise InputError(
            f"--on {on}: one training runs on this machine; give a device, such as --on {executor.device}."
        )
    plugin_path = use_plugin(plugin)
    config = build_base_config(study, parse_sets(sets))
    print_lines([_describe_batch(config)], err=True)

    def print_evaluation(evaluation: "Evaluation") -> None:
        text = (
            f"epoch {evaluation.epoch:6.2f}  step {evaluation.step:6d}  train_loss {evaluation.train_loss:.4f}  "
            f"val_loss {evaluation.val_loss:.4f}  val_accuracy {100 * evaluation.val_accuracy:.2f} %  "
            f"{evaluation.train_seconds:.2f} s"
        )
        print_lines([text], err=True)

    with shutdown_on_signals(_leave) as shutdown:
        ending = train_trial(
            config, device=executor.device, plugin=plugin_path, save=save, on_evaluation=print_evaluation
        )
    if as_json:
        typer.echo(json.dumps(_record(config, ending)))
    else:
        print_table(_record_rows(ending))
    if ending.error:
        print_lines([f"{ending.outcome}: {ending.error.strip()}"], err=True)
    if ending.outcome == "cancelled":
        return shutdown.exit_code
    return 0 if ending.outcome == "complete" else 1


def _leave() -> None:
    SUPERVISOR_LINK.preempt()
    os.write(2, b"stops soon; a second signal stops at once\n")  # in a signal's handler nothing else may


def _describe_batch(config: TrialConfig) -> str:
    parts = f"= {config.num_accumulation} x micro batch of at most {config.batch.micro}"
    if config.batch.is_auto:
        parts = "in the largest micro batches that fit"
    return f"{config.model.name} on {config.data.name}: effective batch size {config.global_batch_size} {parts}"


def _record_rows(ending: "Ending") -> list[tuple[str, str]]:
    measured = [name for name in METRICS if name in ending.measurements]
    rows = [
        ("outcome", ending.outcome),
        *((name, format_metric(name, ending.measurements[name])) for name in measured),
        ("device", ending.device),
        ("bottleneck", ending.bottleneck),
        ("quality warnings", ", ".join(ending.quality_flags)),
    ]
    return [(name, text) for name, text in rows if text or name == "device"]


def _record(config: TrialConfig, ending: "Ending") -> dict[str, Any]:
    return {
        "outcome": ending.outcome,
        **{f"config.{path}": value for path, value in flatten_config(config).items()},
        "global_batch_size": config.global_batch_size,
        **ending.measurements,
        "device": ending.device,
        "quality_flags": ",".join(ending.quality_flags),
        "bottleneck": ending.bottleneck,
        "error": ending.error,
    }
