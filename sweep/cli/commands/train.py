"""``sweep train``: one trial without a study."""

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from sweep.cli.arguments import base_config, parse_sets
from sweep.cli.commands.run import load_plugin
from sweep.cli.formats import format_metric, visible
from sweep.config.metrics import METRICS
from sweep.config.trial_config import TrialConfig, flatten
from sweep.records.content_key import environment_digest
from sweep.records.messages import Ending, Evaluation
from sweep.search.loop.shutdown import departure_on_signals
from sweep.training.supervisor_link import LIFELINE


def register(app: typer.Typer) -> None:
    """Adds this module's commands."""
    app.command("train")(train)


def train(
    study: Annotated[str | None, typer.Argument(help="Take the base configuration of this study.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A configuration key; repeatable.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the trained weights to this .safetensors file.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    plugin: Annotated[Path | None, typer.Option(help="A Python file that adds models or data.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")] = False,
) -> int:
    """Train one configuration and print its record."""
    from sweep.search.loop.single_trial import train_one

    plugin_path = load_plugin(plugin)
    config = base_config(study, parse_sets(sets or []))
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(Text(_headline(config)))

    def hear(evaluation: Evaluation) -> None:
        console.print(Text(_evaluation_line(evaluation)))

    with departure_on_signals(_leave) as departure:
        ending = train_one(config, device=device, plugin=plugin_path, save=save, hear=hear)
    if as_json:
        typer.echo(json.dumps(_record(study or "", config, ending, plugin_path)))
    else:
        _print_record(ending)
    if ending.error:
        console.print(Text(visible(f"{ending.outcome}: {ending.error.strip()}")))
    if ending.outcome == "cancelled":
        return departure.exit_code
    return 0 if ending.outcome == "complete" else 1


def _leave() -> None:
    LIFELINE.ask_to_leave()
    os.write(2, b"stops after this step; a second signal stops at once\n")  # in a signal's handler nothing else may


def _headline(config: TrialConfig) -> str:
    parts = f"= {config.num_accumulation} x micro batch of at most {config.batch.micro}"
    if config.batch.micro == "auto":
        parts = "in the largest micro batches that fit"
    return f"{config.model.name} on {config.data.name}: global batch {config.global_batch_size} {parts}"


def _evaluation_line(evaluation: Evaluation) -> str:
    return (
        f"epoch {evaluation.epoch:6.2f}  step {evaluation.step:6d}  train_loss {evaluation.train_loss:.4f}  "
        f"val_loss {evaluation.val_loss:.4f}  val_accuracy {100 * evaluation.val_accuracy:.2f} %  "
        f"{evaluation.train_seconds:.2f} s"
    )


def _print_record(ending: Ending) -> None:
    table = Table(box=None, show_header=False)
    table.add_row("outcome", ending.outcome)
    for name in METRICS:
        if name in ending.measurements:
            table.add_row(name, format_metric(name, ending.measurements[name]))
    table.add_row("device", Text(ending.device))
    if ending.bottleneck:
        table.add_row("bottleneck", ending.bottleneck)
    if ending.quality_flags:
        table.add_row("doubts", ", ".join(ending.quality_flags))
    Console(highlight=False).print(table)


def _record(study: str, config: TrialConfig, ending: Ending, plugin: str | None) -> dict[str, Any]:
    """The trial under the names of the ``trials`` frame, every one of them."""
    from sweep.records.frames.framing import TRIAL_COLUMNS
    from sweep.search.loop.session import KeyMaker

    known = {
        "study": study,
        "number": 0,
        "phase": "search",
        "outcome": ending.outcome,
        "seed": config.seed,
        **{f"config.{path}": value for path, value in flatten(config).items()},
        "global_batch_size": config.global_batch_size,
        **ending.measurements,
        "device": ending.device,
        "environment_digest": environment_digest(ending.environment) if ending.environment else None,
        "trial_key": KeyMaker(plugin)(config),
        "reused_from": "",
        "quality_flags": ",".join(ending.quality_flags),
        "bottleneck": ending.bottleneck or None,
        "error": ending.error,
    }
    return {column.name: known.get(column.name) for column in TRIAL_COLUMNS}
