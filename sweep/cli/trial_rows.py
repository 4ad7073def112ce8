"""The trials of a study as rows, for `sweep trials`."""

import json
from typing import Any

from reports.evidence import read_settings
from reports.labels import OUTCOME_NAMES, format_metric, format_setting
from sweep.analysis.comparable import USUAL_OBJECTIVES
from sweep.analysis.statistics import plain_value, read_text, varying_keys
from sweep.records.frames.study_frames import Frames

Json = dict[str, Any]


def list_rows(frames: Frames, *, is_running: bool = True) -> list[Json]:
    """A JSON object for each trial; a measurement that is missing is null. A trial without an outcome is interrupted
    where its study is not ``is_running``."""
    trials, (swept, objectives) = frames.trials, _find_columns(frames)
    settings = {key: read_settings(trials, key) for key in swept}
    rows = [
        {
            "number": int(number),
            "phase": str(phase),
            "outcome": str(outcome) or ("running" if is_running else "interrupted"),
            "seed": int(seed),
            "is_enqueued": bool(is_enqueued),
            "config": {key: settings[key][row] for key in swept},
        }
        for row, (number, phase, outcome, seed, is_enqueued) in enumerate(
            zip(
                trials["number"],
                trials["phase"],
                read_text(trials, "outcome"),
                trials["seed"],
                trials["is_enqueued"],
                strict=True,
            )
        )
    ]
    for name in objectives:
        for row, value in zip(rows, trials[name].tolist(), strict=True):
            row[name] = plain_value(value)
    return rows


def list_queue(frames: Frames) -> list[Json]:
    """The hand-made trials that wait."""
    waiting = frames.queue[frames.queue["number"].isna()]
    rows = zip(waiting["position"], waiting["point"], strict=True)
    return [{"position": int(position), "point": json.loads(point)} for position, point in rows]


def describe_row(frames: Frames, row: Json) -> str:
    """One row of :func:`list_rows` in the words of a running study."""
    swept, objectives = _find_columns(frames)
    outcome = OUTCOME_NAMES.get(row["outcome"], row["outcome"])
    values = "  ".join(f"{name} {format_metric(name, row[name])}" for name in objectives)
    settings = " ".join(f"{key}={format_setting(row['config'][key])}" for key in swept)
    by_hand = "  enqueued by hand" if row["is_enqueued"] else ""
    return f"trial {row['number']:>4} {row['phase']:<7} {outcome:<13} {values}  [{settings}]{by_hand}"


def _find_columns(frames: Frames) -> tuple[tuple[str, ...], tuple[str, ...]]:
    spec = frames.spec
    return (tuple(spec.space), spec.objectives) if spec else (varying_keys(frames.trials), USUAL_OBJECTIVES)
