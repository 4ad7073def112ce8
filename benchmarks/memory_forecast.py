"""How near the forecast of memory comes to what trials record: ``python -m benchmarks.memory_forecast``.

A trial's record is the allocator's own count (on a CPU the allocation events of ``torch.profiler``), of a step or of an
evaluation, whichever requires more; the forecast is of a step, so an evaluation above it would show as an error.
``--save`` keeps the result with those of other benchmarks, with a table.
"""

import argparse
import datetime as dt
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.results import FOLDER, slug
from sweep.config.trial_config import TrialConfig, build_config
from sweep.measurement.device import resolve_device
from sweep.measurement.environment import describe_environment
from sweep.probing.estimate import estimate_memory
from sweep.records.content_key import environment_digest
from sweep.search.loop.single_trial import train_trial

MEDIAN_TARGET = 0.05
WORST_TARGET = 0.12
_GPU_FACTOR = 8
_CPU = torch.device("cpu")
_BASE: dict[str, Any] = {"data.name": "synthetic", "data.subset": 512, "budget.steps": 1, "optimizer.lr": 0.01}
_DIGITS = {"data.name": "digits", "data.subset": 512}

JUDGED: tuple[dict[str, Any], ...] = (
    *({"model.name": "resnet8", "batch.micro": micro} for micro in (1, 8, 32, 128)),
    {"model.name": "resnet8", "batch.micro": 64, "precision.dtype": "bf16"},
    {"model.name": "resnet8", "batch.micro": 16, "precision.dtype": "fp16"},
    {"model.name": "resnet8", "batch.micro": 64, "precision.channels_last": True},
    {"model.name": "resnet8", "batch.micro": 64, "precision.channels_last": True, "precision.dtype": "bf16"},
    {"model.name": "resnet8", "batch.micro": 64, "precision.checkpointing": True},
    {"model.name": "resnet8", "batch.micro": 32, "batch.accumulation": 4, "optimizer.name": "adamw"},
    {"model.name": "resnet8", "batch.micro": 4, "optimizer.name": "muon"},
    {"model.name": "resnet8", "batch.micro": 32, "model.norm": "group", "optimizer.name": "lars"},
    {"model.name": "resnet8", "batch.micro": 64, "data.augment": "crop_flip", "regularization.ema_decay": 0.99},
    {"model.name": "resnet8", "batch.micro": 256, **_DIGITS},
    *({"model.name": "resnet20", "batch.micro": micro, "optimizer.name": "adamw"} for micro in (8, 64)),
    {"model.name": "resnet20", "batch.micro": 32, "precision.dtype": "bf16", "optimizer.name": "lamb"},
    {"model.name": "resnet20", "batch.micro": 32, "precision.checkpointing": True, "batch.accumulation": 2},
    {"model.name": "resnet20", "batch.micro": 32, "precision.channels_last": True, "optimizer.name": "sgd"},
    {"model.name": "resnet20", "batch.micro": 16, "precision.dtype": "fp64"},
    {"model.name": "resnet20", "batch.micro": 64, "optimizer.name": "schedule_free", **_DIGITS},
    *({"model.name": "vit_micro", "batch.micro": micro, "optimizer.name": "adamw"} for micro in (1, 16, 128)),
    {"model.name": "vit_micro", "batch.micro": 64, "precision.dtype": "bf16", "optimizer.name": "adamw"},
    {"model.name": "vit_micro", "batch.micro": 64, "precision.checkpointing": True, "optimizer.name": "lamb"},
    {"model.name": "vit_micro", "batch.micro": 32, "batch.accumulation": 2, "optimizer.name": "rmsprop"},
    {"model.name": "vit_micro", "batch.micro": 32, "model.dropout": 0.1, "regularization.mixup": 0.2},
    {
        "model.name": "vit_micro",
        "batch.micro": 32,
        "precision.checkpointing": True,
        "precision.dtype": "bf16",
        "batch.accumulation": 2,
    },
    {"model.name": "vit_micro", "batch.micro": 256, **_DIGITS},
)


class Judged(NamedTuple):
    """One configuration's record beside its forecast."""

    values: dict[str, Any]
    recorded_bytes: int
    forecast_bytes: int
    scratch_bytes: int  # the part of the forecast that was measured, operation by operation

    @property
    def error(self) -> float:
        """Forecast over record, less 1."""
        return self.forecast_bytes / self.recorded_bytes - 1.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table and, last, one line with the verdict; exit code 0 when both targets are met."""
    options = _parser().parse_args(arguments)
    device = resolve_device(options.device)
    found = [judge(each, device) for each in JUDGED[:: 9 if options.tiny else 1]]
    print(table(found), end="")
    if options.save:
        print(f"saved {save(found, device)}", file=sys.stderr)
    print(line(found), flush=True)
    return 0 if is_met(found) else 1


def config(values: dict[str, Any], factor: int = 1) -> TrialConfig:
    """A configuration of this benchmark, with a micro batch ``factor`` times as large."""
    scaled = {"batch.micro": factor * values["batch.micro"]}
    if values.get("data.name") != "digits":
        scaled["data.subset"] = factor * _BASE["data.subset"]
    return build_config(_BASE | values | scaled, "benchmark")


def record(trial: TrialConfig, device: torch.device = _CPU) -> int:
    """What a trial records, in bytes.

    Raises:
        RuntimeError: where the trial has no such record.
    """
    ending = train_trial(trial, device=str(device))
    if "peak_memory_bytes" not in ending.measurements:
        raise RuntimeError(f"the trial is {ending.outcome}: {ending.error}")
    return int(ending.measurements["peak_memory_bytes"])


def judge(values: dict[str, Any], device: torch.device) -> Judged:
    """Trains a configuration and forecasts it; on a GPU with eight times its micro batch."""
    trial = config(values, 1 if device.type == "cpu" else _GPU_FACTOR)
    forecast = estimate_memory(trial, device_type=device.type)
    shown = values | {"batch.micro": trial.batch.micro}
    return Judged(shown, record(trial, device), forecast.peak_memory_bytes, forecast.scratch_bytes)


def table(found: Sequence[Judged]) -> str:
    """A Markdown table, a line each."""
    rows = [
        "| configuration | recorded, bytes | forecast, bytes | scratch | error |",
        "| --- | --: | --: | --: | --: |",
    ]
    for each in found:
        values = " ".join(f"{path}={value}" for path, value in each.values.items())
        share = each.scratch_bytes / each.forecast_bytes
        counts = f"{each.recorded_bytes:,} | {each.forecast_bytes:,}"
        rows.append(f"| `{values}` | {counts} | {100 * share:.1f} % | {100 * each.error:+.2f} % |")
    return "\n".join(rows) + "\n"


def line(found: Sequence[Judged]) -> str:
    """The verdict."""
    middle, worst = _errors(found)
    targets = f"target_median={MEDIAN_TARGET} target_worst={WORST_TARGET}"
    return f"memory_forecast median_error={middle:.4f} worst_error={worst:.4f} {targets} n={len(found)}"


def is_met(found: Sequence[Judged]) -> bool:
    """Whether both targets are."""
    middle, worst = _errors(found)
    return middle <= MEDIAN_TARGET and worst <= WORST_TARGET


def save(found: Sequence[Judged], device: torch.device, folder: Path = FOLDER) -> Path:
    """Writes a JSON file and a table of the same name; a second result of the day replaces the first."""
    environment = describe_environment(device)
    date = dt.datetime.now(dt.UTC).date().isoformat()
    document = {
        "line": line(found),
        "is_met": is_met(found),
        "date": date,
        "base": _BASE,
        "configurations": [each._asdict() | {"error": each.error} for each in found],
        "environment": environment,
        "environment_digest": environment_digest(environment),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"memory_forecast-{slug(environment['device'])}-{date}.json"
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    text = f"`{line(found)}`\n\n{environment['device']}, {date}; `python -m benchmarks.memory_forecast --save`\n\n"
    path.with_suffix(".md").write_text(text + table(found), encoding="utf-8")
    return path


def _errors(found: Sequence[Judged]) -> tuple[float, float]:
    errors = [abs(each.error) for each in found]
    return median(errors), max(errors)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.memory_forecast", description="Forecast of memory against records."
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    parser.add_argument("--tiny", action="store_true", help="a few configurations only: shows that it runs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
