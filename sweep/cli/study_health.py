"""The checks of ``sweep doctor STUDY``: bottlenecks, quality warnings and notes on the data of its trials."""

from collections import Counter
from typing import Any

import pandas as pd

from reports import labels
from sweep.analysis.bottleneck_remedies import BOTTLENECK_MEANINGS, suggest_remedy
from sweep.cli.health import Check
from sweep.config.units import format_count
from sweep.records.columns import CONFIG_COLUMNS
from sweep.records.frames.study_frames import Frames
from sweep.records.quality_flags import MEANINGS as WARNING_MEANINGS
from sweep.records.quality_flags import is_time_evidence

_AGAIN = "then train again with --fresh --no-reuse"
_REMEDIES = {
    "uncertain_time": f"close what else runs on the machine, or set a larger budget, {_AGAIN}",
    "slowed_by_others": f"close what else runs on the machine, or train with fewer trials at once, {_AGAIN}",
    "slower_than_alone": f"close what else runs on the machine, {_AGAIN}",
    "few_steps": "a larger budget; until then take its times as a rough guide",
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
    """One result for each bottleneck and each quality warning among the trials that were trained in this study, and
    for the images that they read and each note on them."""
    trials = frames.trials[(frames.trials["reused_from"] == "") & frames.trials["outcome"].notna()]
    processors = pd.to_numeric(frames.environments.get("num_cpus", pd.Series([1.0])))
    num_processors = int(processors.max()) if len(processors) else 1
    return [*_check_bottlenecks(trials, num_processors), *_check_warnings(trials), *_check_data(frames)]


def _check_bottlenecks(trials: pd.DataFrame, num_processors: int) -> list[Check]:
    counts = Counter(trials["bottleneck"].dropna())
    if not counts:
        found = f"not determined in any of {format_count(len(trials), 'trial')}"
        return [Check(name="bottleneck", ok=True, found=found, remedy="train for longer")]
    return [_check_bottleneck(trials, name, num_processors) for name, _ in counts.most_common()]


def _check_bottleneck(trials: pd.DataFrame, name: str, num_processors: int) -> Check:
    affected = trials[(trials["bottleneck"] == name).fillna(False)]
    # a change gains most for the slowest of them
    worst = affected.sort_values("train_seconds", ascending=False).iloc[0]
    found = f"{len(affected)} of {format_count(len(trials), 'trial')}: {BOTTLENECK_MEANINGS.get(name, name)}"
    return Check(
        name=name.replace("_", " "),
        ok=name == "compute_bound",
        found=f"{found} (trial {worst['number']} for longest)",
        remedy=suggest_remedy(name, _config_values(worst), num_processors),
    )


def _config_values(row: "pd.Series[Any]") -> dict[str, Any]:
    return {column.path: None if pd.isna(row[column.name]) else row[column.name] for column in CONFIG_COLUMNS}


def _check_warnings(trials: pd.DataFrame) -> list[Check]:
    rows = [text.split(",") for text in trials["quality_flags"]]
    counts = Counter(flag for flags in rows for flag in flags if flag)
    return [
        _check_warning(flag, [flags for flags in rows if flag in flags], len(rows)) for flag, _ in counts.most_common()
    ]


def _check_warning(flag: str, affected: list[list[str]], num_trials: int) -> Check:
    """Not ok where the flag leaves a time that is no evidence, or is one that this version does not have."""
    found = f"{len(affected)} of {format_count(num_trials, 'trial')}: {WARNING_MEANINGS.get(flag, flag)}"
    is_doubt = not is_time_evidence((flag,))
    num_lost = sum(not is_time_evidence(flags) for flags in affected) if is_doubt else 0
    if is_doubt and num_lost < len(affected):
        found = f"{found} (replaced for {len(affected) - num_lost})"
    return Check(
        name=flag.replace("_", " "), ok=num_lost == 0, found=found, remedy=_REMEDIES.get(flag, ""), is_noticed=True
    )


def _check_data(frames: Frames) -> list[Check]:
    data = frames.data
    if data is None:
        return [Check(name="data", ok=False, found=labels.NOT_COUNTED)]
    notes = [Check(name="data", ok=False, found=note) for note in labels.list_notes(data)]
    return [Check(name="data", ok=True, found=labels.describe_set(data)), *notes]
