"""The guide's study of a task, the oracle's, which has ten times the time, and the configurations that they choose."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import ask_tasks
from sweep.analysis.recommendation import recommend
from sweep.config.study_file import load_study
from sweep.config.trial_config import TrialConfig
from sweep.records.frames.frames import load_frames

FOLDER = "folder"
NAMES = (*ask_tasks.TASKS, FOLDER)
MORE_TIME = 10  # of the oracle's study
# At a batch of 128 with AdamW's default rate; the model and the epochs are the study's.
_USUAL = {"batch.micro": 128, "batch.accumulation": 1, "optimizer.name": "adamw", "optimizer.lr": 0.001}
_USUAL_RULE = {"rules.lr": "none"}
_ALL_EPOCHS = 30  # of the guide's full study, for so few images
_REPOSITORY = Path(__file__).resolve().parent.parent
Row = dict[str, Any]


def run_guide(name: str, place: Path, budget: str) -> Row | None:
    """``sweep ask`` within ``budget`` for one task, in the folder ``place``; None where the budget was refused, because
    the machine is too slow or too busy. An earlier attempt that was interrupted is not continued."""
    data = name
    if name == FOLDER:
        data = str(place / "images")
        if not Path(data).exists():
            ask_tasks.write_folder(Path(data))
    find_file(name, place).unlink(missing_ok=True)
    words = ("--data", data, "--budget", budget, "--yes")
    return _run_study("ask", find_file(name, place), place / "guide", words)


def run_oracle(name: str, place: Path) -> Row:
    """``sweep run`` of the guide's file with ten times the time and the trials; nothing of the guide's is reused."""
    file = find_file(name, place)
    spec = load_study(str(file))
    assert spec.timeout is not None  # as the guide had a budget
    assert spec.search_timeout is not None
    more = {
        "timeout": MORE_TIME * spec.timeout,
        "search_timeout": MORE_TIME * spec.search_timeout,
        "trials": MORE_TIME * spec.trials,
    }
    sets = [word for key, value in more.items() for word in ("--set", f"{key}={value}")]
    row = _run_study("run", file, place / "oracle", (*sets, "--no-reuse"))
    assert row is not None  # the guide's study was not refused
    return row


def find_file(name: str, place: Path) -> Path:
    """The study file of a task."""
    return place / f"{name}.toml"


def _run_study(command: str, file: Path, records: Path, words: tuple[str, ...]) -> Row | None:
    began, load = time.monotonic(), os.getloadavg()[0]
    root = records / f"{time.time():.0f}"
    shown = _sweep(command, str(file), *words, "--root", str(root))
    if shown is None:
        return None
    row = {"seconds": time.monotonic() - began, "load": [load, os.getloadavg()[0]]}
    run = shown.get("run", shown)
    row |= {"stopped": (run["stopped"] or "").partition(";")[0], "left_out": shown.get("left_out", [])}
    return row | _describe_choice(file, root)


def _sweep(command: str, *arguments: str) -> Mapping[str, Any] | None:
    plugin = str(Path(ask_tasks.__file__).resolve())
    words = [sys.executable, "-m", "sweep.cli", command, *arguments, "--plugin", plugin, "--json"]
    environment = os.environ | {"PYTHONPATH": str(_REPOSITORY)}
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    if done.returncode == 2:
        return None
    done.check_returncode()
    document: Mapping[str, Any] = json.loads(done.stdout)
    return document


def _describe_choice(file: Path, root: Path) -> Row:
    # the points of the space that the answer names for the batch size and for the use "accuracy"
    spec = load_study(str(file))
    frames = load_frames(root / spec.name, evaluations=True)
    answer = recommend(frames, uses=("accuracy",))
    trials = frames.trials.set_index("number")
    named = answer.batch_size.named.number if answer.batch_size else None
    numbers = {"named": named, "most_accurate": answer.uses["accuracy"].number}
    points = {
        choice: {key: _as_plain(trials.loc[number, f"config.{key}"]) for key in spec.space}
        for choice, number in numbers.items()
        if number is not None
    }
    return {"points": points, "num_trainings": trials.groupby("phase").size().to_dict()}


def _as_plain(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def find_configs(name: str, place: Path, row: Row) -> dict[str, TrialConfig]:
    """The configurations to compare, by their arm: the guide's and the usual one, both also with the epochs of a study
    for which time does not matter, and those of the oracle where it ran."""
    spec = load_study(str(find_file(name, place)))
    if "named" not in row["guide"]["points"]:
        return {}
    guide = row["guide"]["points"]["named"]
    usual = {key: guide[key] for key in ("model.name",) if key in guide} | _USUAL | _USUAL_RULE
    points = {"guide": guide, "usual": usual}
    points |= {f"{arm}_all_epochs": point | {"budget.epochs": _ALL_EPOCHS} for arm, point in points.items()}
    if row.get("oracle"):
        points |= {f"oracle_{choice}": point for choice, point in row["oracle"]["points"].items()}
    return {arm: spec.config(point) for arm, point in points.items()}
