"""Numbers and names as a reader sees them. Records hold base units; only here do they become %, MiB or minutes."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from sweep.config.metrics import METRICS


class Display(NamedTuple):
    """How an axis shows its unit: shown number = value * factor, followed by ``suffix``."""

    factor: float
    suffix: str


_STEPS = {
    "seconds": ((1.0, Display(1e3, "ms")), (600.0, Display(1.0, "s")), (7200.0, Display(1 / 60, "min"))),
    "joules": ((1e4, Display(1.0, "J")),),
    "bytes": ((2.0**20, Display(2.0**-10, "KiB")), (10 * 2.0**30, Display(2.0**-20, "MiB"))),
}
_LARGEST = {
    "seconds": Display(1 / 3600, "h"),
    "bytes": Display(2.0**-30, "GiB"),
    "fraction": Display(100.0, "%"),
    "images/second": Display(1.0, "images/s"),
    "nats": Display(1.0, "nats"),
    "samples": Display(1.0, "samples"),
    "joules": Display(1e-3, "kJ"),
    "watts": Display(1.0, "W"),
    "celsius": Display(1.0, "°C"),
    "hertz": Display(1e-9, "GHz"),
    "percent": Display(1.0, "%"),
    "nats/weight^2": Display(1.0, "nats/weight²"),
}
_NAMES = {
    "val_accuracy": "Validation accuracy",
    "val_loss": "Validation loss",
    "train_accuracy": "Training accuracy",
    "generalization_gap": "Generalization gap",
    "test_accuracy": "Test accuracy",
    "train_seconds": "Training time",
    "total_seconds": "Wall-clock time",
    "data_wait_seconds": "Waiting for data",
    "setup_seconds": "Set-up time",
    "warmup_seconds": "Warm-up time",
    "memory_seconds": "Time of measuring memory",
    "eval_seconds": "Evaluation time",
    "images_per_second": "Throughput",
    "step_seconds_median": "Step time (median)",
    "step_seconds_p90": "Step time (90th percentile)",
    "peak_memory_bytes": "Peak memory",
    "num_parameters": "Parameters",
    "num_steps": "Optimizer steps",
    "num_epochs": "Epochs",
    "compile_seconds": "Compilation",
    "checkpoint_seconds": "Checkpoints",
    "diagnostics_seconds": "Diagnostics",
    "steps_to_target": "Steps to the target",
    "seconds_to_target": "Time to the target",
    "noise_scale": "Gradient noise scale",
    "sharpness_eigenvalue": "Sharpness (largest eigenvalue)",
    "sharpness_keskar": "Sharpness (Keskar)",
    "gpu_utilization": "GPU utilization",
    "gpu_memory_bytes": "GPU memory (driver)",
    "energy_joules": "Energy",
    "power_watts": "Power",
    "temperature_celsius": "Highest temperature",
    "clock_hertz": "Clock",
    "cpu_load_by_others": "CPU load by others",
}
OUTCOME_NAMES = {
    "complete": "complete",
    "pruned": "pruned",
    "out_of_memory": "out of memory",
    "not_fitting": "not fitting (skipped)",
    "diverged": "diverged",
    "timed_out": "timed out",
    "crashed": "crashed",
    "cancelled": "cancelled",
    "": "running",
}


def metric_label(name: str) -> str:
    """The metric in words, without its unit."""
    return _NAMES.get(name, name.replace("_", " ").capitalize())


def display(unit: str, values: Iterable[float]) -> Display:
    """The unit in which all of ``values`` read well."""
    largest = max(map(abs, filter(math.isfinite, values)), default=0.0)
    for limit, shown in _STEPS.get(unit, ()):
        if largest < limit:
            return shown
    return _LARGEST.get(unit, Display(1.0, ""))


def format_value(unit: str, value: float) -> str:
    """``0.972`` as "97.2 %", ``3.6e7`` bytes as "34.3 MiB"; a dash where nothing was measured."""
    if not math.isfinite(value):
        return "–"
    factor, suffix = _display_one(unit, value)
    shown = f"{value * factor:.2f}" if unit == "fraction" or suffix == "GiB" else _digits(value * factor)
    return f"{shown} {suffix}".strip()


def format_interval(unit: str, low: float, high: float, beside: float) -> str:
    """The bounds in the unit of the value that they stand ``beside``; "" where there is no interval."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    factor, suffix = _display_one(unit, beside)
    digits = (lambda number: f"{number:.2f}") if unit == "fraction" else _digits
    return f"{digits(low * factor)}–{digits(high * factor)} {suffix}".strip()


def _display_one(unit: str, value: float) -> Display:
    return _LARGEST["bytes"] if unit == "bytes" and abs(value) >= 2.0**30 else display(unit, [value])


def format_metric(name: str, value: float) -> str:
    """:func:`format_value` with the metric's own unit."""
    return format_value(METRICS[name].unit, value)


def format_setting(value: object) -> str:
    """A configuration value: short, and 0.1 stays 0.1."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.3g}"
    return "none" if value is None else str(value)


def key_label(key: str) -> str:
    """A configuration key in words: ``optimizer.weight_decay`` -> "weight decay"."""
    known = {"batch.micro": "micro batch", "model.name": "model", "data.name": "data", "batch.global": "global batch"}
    known |= {"optimizer.lr": "learning rate", "optimizer.name": "optimizer", "schedule.name": "schedule"}
    known |= {"batch.accumulation": "accumulation", "global_batch_size": "global batch"}
    return known.get(key, key.rpartition(".")[2].replace("_", " "))


def plural(count: int, noun: str) -> str:
    """ "1 trial", "2 trials"."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _digits(value: float) -> str:
    if value == 0 or not 1e-3 <= abs(value) < 1e7:
        return f"{value:.3g}"
    places = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.3g}")))))
    return f"{value:,.{places}f}"
