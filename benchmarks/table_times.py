"""What a training of each shape costs, measured alone: the time of a step, of an evaluation, and of what comes before.

A few short trainings of each shape, one thread, the median of each part. Run it on a machine that does nothing else.
"""

import json
import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.table_design import Job, all_jobs, train
from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig, build_config, flatten_config, replace_keys
from sweep.records.messages import Ending, Evaluation

NUM_REPEATS = 5
_STEPS = 12
_BEFORE = ("setup_seconds", "compile_seconds", "warmup_seconds", "memory_seconds")
TIMES_FILE = "times.json"

# What a table may sweep that changes no time.
_TIMELESS = frozenset(
    {"optimizer.lr", "optimizer.weight_decay", "optimizer.momentum", "regularization.label_smoothing"}
)


def shape_of(spec: StudySpec, config: TrialConfig) -> str:
    """What the time of a training depends on, of the keys that the design sweeps."""
    flat = flatten_config(config)
    return ", ".join(f"{path}={flat[path]}" for path in spec.space if path not in _TIMELESS)


def measure_times(spec: StudySpec, root: Path) -> Path:
    """Measures every shape of the design, in ``NUM_REPEATS`` rounds over all; returns the file with the figures."""
    shapes = {shape_of(spec, job.config): job.config for job in all_jobs(spec, 1)}
    rounds: dict[str, list[dict[str, float]]] = {shape: [] for shape in shapes}
    for turn in range(NUM_REPEATS + 1):
        for shape, config in shapes.items():
            costs = _costs(config)
            if turn:  # the first round warms up
                rounds[shape].append(costs)
        print(f"{time.strftime('%H:%M:%S')} {spec.name}: times, round {turn} of {NUM_REPEATS}", flush=True)
    path = root / spec.name / TIMES_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rounds, indent=1) + "\n", encoding="utf-8")
    return path


def _costs(config: TrialConfig) -> dict[str, float]:
    short = build_config(replace_keys(flatten_config(config), {"budget.steps": _STEPS}), "times")
    messages = train(Job(0, short))
    ending = messages[-1]
    assert isinstance(ending, Ending)
    if ending.outcome != "complete":
        raise RuntimeError(f"a training of the shape {short} ended as {ending.outcome}: {ending.error}")
    measured = ending.measurements
    before = sum(measured.get(name, 0.0) for name in _BEFORE)
    # the validation split at every evaluation, and once as many images of the train split
    num_passes = 1 + sum(isinstance(message, Evaluation) for message in messages)
    return {
        "step_seconds": measured["step_seconds_median"],
        "before_seconds": before,
        "evaluation_seconds": measured["eval_seconds"] / num_passes,
        "rest_seconds": measured["total_seconds"] - before - measured["train_seconds"] - measured["eval_seconds"],
        "peak_memory_bytes": measured["peak_memory_bytes"],
    }


def read_times(path: Path) -> dict[str, dict[str, float]]:
    """The median of each part, by shape."""
    rounds: dict[str, list[dict[str, float]]] = json.loads(path.read_text(encoding="utf-8"))
    return {shape: _medians(costs) for shape, costs in rounds.items()}


def num_rounds(path: Path) -> int:
    """How often each shape was measured."""
    rounds: dict[str, list[dict[str, float]]] = json.loads(path.read_text(encoding="utf-8"))
    return min(len(costs) for costs in rounds.values())


def spreads(path: Path) -> dict[str, float]:
    """How far the step times of a shape's rounds lie apart: (largest - smallest) / median, median and worst shape."""
    rounds: dict[str, list[dict[str, Any]]] = json.loads(path.read_text(encoding="utf-8"))
    apart = []
    for costs in rounds.values():
        steps = [cost["step_seconds"] for cost in costs]
        apart.append((max(steps) - min(steps)) / statistics.median(steps))
    return {"median": statistics.median(apart), "worst": max(apart)}


def _medians(costs: Iterable[dict[str, float]]) -> dict[str, float]:
    rows = list(costs)
    return {name: statistics.median(row[name] for row in rows) for name in rows[0]}
