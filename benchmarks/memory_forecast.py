"""How near the forecast of memory comes to what trials record: ``python -m benchmarks memory_forecast``.

A trial's record is the allocator's own count (on a CPU the allocation events of ``torch.profiler``), of a step or of an
evaluation, whichever requires more; the forecast is of a step, so an evaluation above it would show as an error.
``--save`` keeps the result with those of other benchmarks.
"""

import argparse
import json
from collections.abc import Sequence
from statistics import median
from typing import Any, NamedTuple

import torch

from benchmarks.harness import save
from sweep.config.trial import TrialConfig, build_config
from sweep.measurement.device import resolve_device
from sweep.probing.memory import estimate_memory
from sweep.search.single import train_trial

_MEDIAN_TARGET, _WORST_TARGET = 0.05, 0.12
_GPU_FACTOR = 8  # of the micro batch
_BASE: dict[str, Any] = {"data.name": "synthetic", "data.subset": 512, "budget.steps": 1, "optimizer.lr": 0.01}
# The configurations: a model and micro batch, and what differs from the base.
_DIGITS = "data.name=digits data.subset=512"
_JUDGED = (
    ("resnet8", (1, 8, 32, 128), ""), ("resnet8", (64,), "precision.dtype=bf16"),
    ("resnet8", (16,), "precision.dtype=fp16"), ("resnet8", (64,), "precision.channels_last=true"),
    ("resnet8", (64,), "precision.channels_last=true precision.dtype=bf16"),
    ("resnet8", (64,), "precision.checkpointing=true"),
    ("resnet8", (32,), "batch.accumulation=4 optimizer.name=adamw"), ("resnet8", (4,), "optimizer.name=muon"),
    ("resnet8", (32,), "model.norm=group optimizer.name=lars"),
    ("resnet8", (64,), "data.augment=crop_flip regularization.ema_decay=0.99"), ("resnet8", (256,), _DIGITS),
    ("resnet20", (8, 64), "optimizer.name=adamw"), ("resnet20", (32,), "precision.dtype=bf16 optimizer.name=lamb"),
    ("resnet20", (32,), "precision.checkpointing=true batch.accumulation=2"),
    ("resnet20", (32,), "precision.channels_last=true optimizer.name=sgd"),
    ("resnet20", (16,), "precision.dtype=fp64"), ("resnet20", (64,), f"optimizer.name=schedule_free {_DIGITS}"),
    ("vit_micro", (1, 16, 128), "optimizer.name=adamw"),
    ("vit_micro", (64,), "precision.dtype=bf16 optimizer.name=adamw"),
    ("vit_micro", (64,), "precision.checkpointing=true optimizer.name=lamb"),
    ("vit_micro", (32,), "batch.accumulation=2 optimizer.name=rmsprop"),
    ("vit_micro", (32,), "model.dropout=0.1 regularization.mixup=0.2"),
    ("vit_micro", (32,), "precision.checkpointing=true precision.dtype=bf16 batch.accumulation=2"),
    ("vit_micro", (256,), _DIGITS),
)  # fmt: skip


class Judged(NamedTuple):
    """One configuration's record beside its forecast."""

    values: dict[str, Any]
    recorded_bytes: int
    forecast_bytes: int
    scratch_bytes: int  # the part of the forecast that was measured, operation by operation

    @property
    def error(self) -> float:
        return self.forecast_bytes / self.recorded_bytes - 1.0


def list_configurations() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for model, sizes, changes in _JUDGED:
        pairs = [word.split("=") for word in changes.split()]
        values = {key: json.loads(text) if text == "true" or text[0].isdigit() else text for key, text in pairs}
        found += [{"model.name": model, "batch.micro": micro} | values for micro in sizes]
    return found


def make_config(values: dict[str, Any], factor: int = 1) -> TrialConfig:
    """A configuration of this benchmark, with a micro batch ``factor`` times as large."""
    scaled = {"batch.micro": factor * values["batch.micro"]}
    if values.get("data.name") != "digits":
        scaled["data.subset"] = factor * _BASE["data.subset"]
    return build_config(_BASE | values | scaled, "benchmark")


def judge(values: dict[str, Any], device: torch.device) -> Judged:
    """Trains a configuration and forecasts it; on a GPU with eight times its micro batch."""
    trial = make_config(values, 1 if device.type == "cpu" else _GPU_FACTOR)
    forecast = estimate_memory(trial, device_type=device.type)
    ending = train_trial(trial, device=str(device))
    if "peak_memory_bytes" not in ending.measurements:
        raise RuntimeError(f"the trial is {ending.outcome}: {ending.error}")
    recorded = int(ending.measurements["peak_memory_bytes"])
    shown = values | {"batch.micro": trial.batch.micro}
    return Judged(shown, recorded, forecast.peak_memory_bytes, forecast.scratch_bytes)


def summarize(found: Sequence[Judged]) -> tuple[str, bool]:
    errors = [abs(each.error) for each in found]
    middle, worst = median(errors), max(errors)
    targets = f"target_median={_MEDIAN_TARGET} target_worst={_WORST_TARGET}"
    line = f"memory_forecast median_error={middle:.4f} worst_error={worst:.4f} {targets} n={len(found)}"
    return line, middle <= _MEDIAN_TARGET and worst <= _WORST_TARGET


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a line for each and, last, one line with the verdict; exit code 0 when both targets are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks memory_forecast", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    parser.add_argument("--tiny", action="store_true", help="a few configurations only: shows that it runs")
    options = parser.parse_args(arguments)
    device = resolve_device(options.device)
    found = []
    for values in list_configurations()[:: 9 if options.tiny else 1]:
        found.append(one := judge(values, device))
        told = f"{one.recorded_bytes:,} recorded, {one.forecast_bytes:,} forecast, {one.scratch_bytes:,} of it scratch"
        print(" ".join(f"{path}={value}" for path, value in one.values.items()), f"{100 * one.error:+.2f} %,", told)
    line, is_met = summarize(found)
    if options.save:
        rows = [each._asdict() | {"error": each.error} for each in found]
        save("memory_forecast", {"line": line, "is_met": is_met, "base": _BASE, "configurations": rows}, device)
    print(line, flush=True)
    return 0 if is_met else 1
