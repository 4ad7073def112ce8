"""What ``sweep doctor STUDY`` says of a study's trials: what held them up, and which doubts their times carry."""

from collections import Counter
from typing import Any

import pandas as pd

from sweep.analysis.bottleneck_remedies import BOTTLENECK_MEANINGS, suggest_remedy
from sweep.cli.health import Check
from sweep.config.units import format_count
from sweep.measurement.quality import MEANINGS as WARNING_MEANINGS
from sweep.records.columns import CONFIG_COLUMNS
from sweep.records.frames.study_frames import Frames

_AGAIN = "then train again with --fresh --no-reuse"
_REMEDIES = {
    "few_steps": "a larger budget; until then take its times for a rough guide",
    "spread": f"close what else runs on the machine, {_AGAIN}",
    "drift": f"let the machine settle and close what else runs, {_AGAIN}",
    "allocator_retries": "a smaller batch.micro",
    "other_process": f"end the other process or choose another --device, {_AGAIN}",
    "throttled": f"better cooling, or a lower power limit that holds, {_AGAIN}",
    "clock_drift": f"fix the clocks, or give the device a warm-up, {_AGAIN}",
    "busy_host": f"close what else runs on the machine, {_AGAIN}",
    "reference_drift": f"close what else runs on the machine, {_AGAIN}",
}


def check_trials(frames: Frames) -> list[Check]:
    """One finding for each verdict and each doubt among the trials that were trained in this study."""
    trials = frames.trials[(frames.trials["reused_from"] == "") & frames.trials["outcome"].notna()]
    processors = pd.to_numeric(frames.environments.get("num_cpus", pd.Series([1.0])))
    num_processors = int(processors.max()) if len(processors) else 1
    return [*_verdicts(trials, num_processors), *_doubts(trials)]


def _verdicts(trials: pd.DataFrame, num_processors: int) -> list[Check]:
    counts = Counter(trials["bottleneck"].dropna())
    if not counts:
        return [
            Check(
                "bottleneck", True, f"not looked for in any of {format_count(len(trials), 'trial')}", "train for longer"
            )
        ]
    return [_verdict(trials, name, num_processors) for name, _ in counts.most_common()]


def _verdict(trials: pd.DataFrame, name: str, num_processors: int) -> Check:
    held = trials[(trials["bottleneck"] == name).fillna(False)]
    # the slowest of them is where a change gains most
    worst = held.sort_values("train_seconds", ascending=False).iloc[0]
    found = f"{len(held)} of {format_count(len(trials), 'trial')}: {BOTTLENECK_MEANINGS.get(name, name)}"
    remedy = suggest_remedy(name, _values(worst), num_processors)
    return Check(
        name.replace("_", " "), name == "compute_bound", f"{found} (trial {worst['number']} for longest)", remedy
    )


def _values(row: "pd.Series[Any]") -> dict[str, Any]:
    return {column.path: None if pd.isna(row[column.name]) else row[column.name] for column in CONFIG_COLUMNS}


def _doubts(trials: pd.DataFrame) -> list[Check]:
    counts = Counter(flag for flags in trials["quality_flags"] for flag in flags.split(",") if flag)
    return [
        Check(
            flag.replace("_", " "),
            False,
            f"{count} of {format_count(len(trials), 'trial')}: {WARNING_MEANINGS.get(flag, flag)}",
            _REMEDIES.get(flag, ""),
        )
        for flag, count in counts.most_common()
    ]
