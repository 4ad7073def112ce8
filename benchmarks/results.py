"""Results as committed files: everything that a reader needs to judge a figure."""

import datetime as dt
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from scipy.stats import beta

from benchmarks.harness import MIN_PAIRS, Result
from sweep.config.errors import InputError
from sweep.measurement.environment import describe_environment
from sweep.records.content_key import environment_digest

FOLDER = Path(__file__).parent / "results"


def save(result: Result, device: torch.device, folder: Path = FOLDER) -> Path:
    """Writes ``<name>-<device>-<date>.json``; a second result of the day replaces the first.

    Raises:
        InputError: for fewer pairs than a result that is kept must have.
    """
    if len(result.ours) < MIN_PAIRS:
        raise InputError(f"a result is kept from {MIN_PAIRS} pairs on, not {len(result.ours)}; raise --pairs.")
    environment = describe_environment(device)
    date = dt.datetime.now(dt.UTC).date().isoformat()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.name}-{slug(environment['device'])}-{date}.json"
    path.write_text(json.dumps(_document(result, environment, date), indent=1) + "\n", encoding="utf-8")
    return path


def _document(result: Result, environment: dict[str, Any], date: str) -> dict[str, Any]:
    return {
        "line": result.line,
        "is_met": result.is_met,
        "date": date,
        **asdict(result),
        "ratios": result.ratios,
        "interval": result.interval._asdict(),
        "environment": environment,
        "environment_digest": environment_digest(environment),
    }


def slug(device: str) -> str:
    """A device's name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")


def share_of(values: Sequence[bool]) -> dict[str, float | int | None]:
    """The share of those that are true, with its exact 95 % interval (Clopper and Pearson 1934)."""
    n, hits = len(values), sum(values)
    if not n:
        return {"share": None, "low": None, "high": None, "n": 0}
    low = float(beta.ppf(0.025, hits, n - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, n - hits)) if hits < n else 1.0
    return {"share": hits / n, "low": low, "high": high, "n": n}
