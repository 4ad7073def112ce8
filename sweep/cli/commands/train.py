"""``sweep train``: one trial without a study."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reports.labels import format_metric
from sweep.cli.arguments import build_base_config, load_plugin, parse_sets
from sweep.cli.options import AsJson, BaseStudy, ConfigSets, Device, Plugin
from sweep.cli.output import print_lines, print_table
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.trial_config import TrialConfig, flatten_config
from sweep.search.loop.shutdown import shutdown_on_signals
from sweep.training.supervisor_link import SUPERVISOR_LINK

if TYPE_CHECKING:
    from sweep.records.messages import Ending, Evaluation


def train(
    study: BaseStudy = None,
    sets: ConfigSets = None,
    save: Annotated[Path | None, typer.Option(help="Write the trained weights to this .safetensors file.")] = None,
    device: Device = "auto",
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Train one configuration and print its record."""
    from sweep.search.loop.single_trial import train_trial

    if save is not None and save.suffix != ".safetensors":
        named = save.with_suffix(".safetensors")
        raise InputError(f"--save {save}: the weights are written as safetensors; name it --save {named}.")
    plugin_path = load_plugin(plugin)
    config = build_base_config(study, parse_sets(sets or []))
    print_lines([_headline(config)], err=True)

    def print_evaluation(evaluation: "Evaluation") -> None:
        print_lines([_evaluation_line(evaluation)], err=True)

    with shutdown_on_signals(_leave) as shutdown:
        ending = train_trial(config, device=device, plugin=plugin_path, save=save, on_evaluation=print_evaluation)
    if as_json:
        typer.echo(json.dumps(_record(study or "", config, ending, plugin_path)))
    else:
        print_table(_record_rows(ending))
    if ending.error:
        print_lines([f"{ending.outcome}: {ending.error.strip()}"], err=True)
    if ending.outcome == "cancelled":
        return shutdown.exit_code
    return 0 if ending.outcome == "complete" else 1


def _leave() -> None:
    SUPERVISOR_LINK.preempt()
    os.write(2, b"stops after this step; a second signal stops at once\n")  # in a signal's handler nothing else may


def _headline(config: TrialConfig) -> str:
    parts = f"= {config.num_accumulation} x micro batch of at most {config.batch.micro}"
    if config.batch.is_auto:
        parts = "in the largest micro batches that fit"
    return f"{config.model.name} on {config.data.name}: effective batch size {config.global_batch_size} {parts}"


def _evaluation_line(evaluation: "Evaluation") -> str:
    return (
        f"epoch {evaluation.epoch:6.2f}  step {evaluation.step:6d}  train_loss {evaluation.train_loss:.4f}  "
        f"val_loss {evaluation.val_loss:.4f}  val_accuracy {100 * evaluation.val_accuracy:.2f} %  "
        f"{evaluation.train_seconds:.2f} s"
    )


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


def _record(study: str, config: TrialConfig, ending: "Ending", plugin: str | None) -> dict[str, Any]:
    """The trial under the names of the ``trials`` frame, every one of them."""
    from sweep.records.content_key import environment_digest
    from sweep.records.frames.frame_columns import TRIAL_COLUMNS
    from sweep.search.loop.trial_index import KeyMaker
    from sweep.training.data.data_checks import check_data

    known = {
        "study": study,
        "number": 0,
        "phase": "search",
        "outcome": ending.outcome,
        "seed": config.seed,
        **{f"config.{path}": value for path, value in flatten_config(config).items()},
        "global_batch_size": config.global_batch_size,
        **ending.measurements,
        "device": ending.device,
        "environment_digest": environment_digest(ending.environment) if ending.environment else None,
        "trial_key": KeyMaker(plugin, check_data(config).digest)(config),
        "reused_from": "",
        "quality_flags": ",".join(ending.quality_flags),
        "bottleneck": ending.bottleneck or None,
        "error": ending.error,
    }
    return {column.name: known.get(column.name) for column in TRIAL_COLUMNS}
