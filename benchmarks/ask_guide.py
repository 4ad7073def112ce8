"""``python -m benchmarks ask_guide --root DIR --budget 3m``: what `sweep ask` gives on six tasks that nothing else was
tried on. Of each: the time that it took, as a share of the budget, and how accurate its choice is on test images, with
seeds that no search used, beside the choice of an oracle, which is the same study with ten times the time, and a batch
of 128 at AdamW's default rate. All three have the guide's number of epochs; a budget that is short for the machine
leaves few of them, so that the first and the last are also trained with all. The load before and after each study is
kept. ``--images DIR ...`` takes folders of images instead of the tasks; they are not trained with all epochs.

A stage that is done is kept in DIR/TASK/result.json, so that the same command resumes, and several commands share DIR
where each has tasks of its own. ``--save`` keeps the figures under benchmarks/results.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean, median, stdev
from typing import NamedTuple

from benchmarks.datasets import ASK_TASKS, PLUGIN, write_rings
from benchmarks.harness import Json, save, share_of, warn_if_busy
from sweep.analysis.recommendation import recommend
from sweep.analysis.statistics import CONFIDENCE, t_quantile
from sweep.cli.arguments import parse_duration
from sweep.config.errors import InputError
from sweep.config.study_file import load_study
from sweep.config.trial import TrialConfig
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, TrialTask
from sweep.training.ranks import launch_trial

NAMES = (*ASK_TASKS, "folder")
SEEDS = tuple(range(201, 209))
_MORE_TIME = 10  # of the oracle's study
_WITHIN = 0.1  # of the budget
_ALL_EPOCHS = 30  # of the guide's full study, for so few images
# At a batch of 128 with AdamW's default rate; the model and the epochs are the study's.
_USUAL = {"batch.micro": 128, "batch.accumulation": 1, "optimizer.name": "adamw", "optimizer.lr": 0.001}
_USUAL |= {"rules.lr": "none"}
Accuracies = dict[str, dict[str, list[float]]]  # by split, then by arm, a value for each of the first seeds


def find_file(name: str, place: Path) -> Path:
    return place / f"{name}.toml"


def _run_guide(name: str, place: Path, budget: str, images: Path | None) -> Json | None:
    # None where the budget was refused; an earlier attempt that was interrupted is not continued
    data = str(images or name)
    if images is None and name == "folder":
        data = str(place / "images")
        if not Path(data).exists():
            write_rings(Path(data))
    find_file(name, place).unlink(missing_ok=True)
    return _run_study("ask", find_file(name, place), place / "guide", "--data", data, "--budget", budget, "--yes")


def _run_oracle(name: str, place: Path) -> Json | None:
    # the guide's file with ten times the time and the trials; nothing of the guide's is reused
    spec = load_study(str(find_file(name, place)))
    assert spec.timeout is not None  # as the guide had a budget
    assert spec.search_timeout is not None
    more = {"timeout": spec.timeout, "search_timeout": spec.search_timeout, "trials": spec.trials}
    sets = [word for key, value in more.items() for word in ("--set", f"{key}={_MORE_TIME * value}")]
    return _run_study("run", find_file(name, place), place / "oracle", *sets, "--no-reuse")


def _run_study(command: str, file: Path, records: Path, *words: str) -> Json | None:
    began, load = time.monotonic(), os.getloadavg()[0]
    root = records / f"{time.time():.0f}"
    line = [sys.executable, "-m", "sweep.cli", command, str(file), *words, "--root", str(root)]
    done = subprocess.run([*line, "--plugin", PLUGIN, "--json"], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode == 2:
        return None
    done.check_returncode()
    shown = json.loads(done.stdout)
    stopped = (shown.get("run", shown)["stopped"] or "").partition(";")[0]
    row = {"seconds": time.monotonic() - began, "load": [load, os.getloadavg()[0]]}
    return row | {"stopped": stopped, "left_out": shown.get("left_out", [])} | _describe_choice(file, root)


def _describe_choice(file: Path, root: Path) -> Json:
    # the points of the space that the answer names for the batch size and for the use "accuracy"
    spec = load_study(str(file))
    frames = load_frames(root / spec.name, evaluations=True)
    answer = recommend(frames, uses=("accuracy",))
    trials = frames.trials.set_index("number")
    named = answer.batch_size.named.number if answer.batch_size else None
    numbers = {"named": named, "most_accurate": answer.uses["accuracy"].number}

    def find_point(number: int) -> Json:
        values: Json = {key: trials.loc[number, f"config.{key}"] for key in spec.space}
        return {key: value.item() if hasattr(value, "item") else value for key, value in values.items()}

    points = {choice: find_point(number) for choice, number in numbers.items() if number is not None}
    return {"points": points, "num_trainings": trials.groupby("phase").size().to_dict()}


def find_configs(name: str, place: Path, row: Json) -> dict[str, TrialConfig]:
    """The configurations to compare, by their arm: the guide's and the usual one, and those of the oracle where it ran.
    For the tasks of ``NAMES`` the first two also with the epochs of a study for which time does not matter."""
    spec = load_study(str(find_file(name, place)))
    if "named" not in row["guide"]["points"]:
        return {}
    guide = row["guide"]["points"]["named"]
    points = {"guide": guide, "usual": {key: guide[key] for key in ("model.name",) if key in guide} | _USUAL}
    if name in NAMES:
        points |= {f"{arm}_all_epochs": point | {"budget.epochs": _ALL_EPOCHS} for arm, point in points.items()}
    if row.get("oracle"):
        points |= {f"oracle_{choice}": point for choice, point in row["oracle"]["points"].items()}
    return {arm: spec.config(point) for arm, point in points.items()}


def train_missing(configs: Mapping[str, TrialConfig], found: Accuracies, write: Callable[[], None]) -> None:
    """Trains each of ``configs`` with each of the seeds, as far as ``found`` does not have it; ``write`` is called when
    it has one seed more. Equal configurations are trained once."""
    for turn, seed in enumerate(SEEDS):
        known: dict[TrialConfig, tuple[float, float]] = {}
        for arm, config in configs.items():
            values = found["test"].setdefault(arm, []), found["val"].setdefault(arm, [])
            if len(values[0]) > turn:
                continue
            own = config.model_copy(update={"seed": seed})
            if own not in known:
                known[own] = train_once(own)
            for kept, accuracy in zip(values, known[own], strict=True):
                kept.append(accuracy)
        write()


def train_once(config: TrialConfig) -> tuple[float, float]:
    """The accuracies on test and validation images of one training on a CPU."""
    task = TrialTask(number=0, config=config, device="cpu", read_test=True)
    ending = next(each for each in list(launch_trial(task)) if isinstance(each, Ending))
    if ending.outcome != "complete":
        raise RuntimeError(f"{config.model.name} with seed {config.seed}: {ending.outcome}: {ending.error}")
    return float(ending.measurements["test_accuracy"]), float(ending.measurements["val_accuracy"])


class Difference(NamedTuple):
    """The mean of differences that are paired by seed, with its interval of Student's t; the test images are given, so
    that their choice is not in it."""

    mean: float
    low: float
    high: float
    n: int


def compare_arms(values: Mapping[str, list[float]], one: str, other: str) -> Difference | None:
    """Accuracy of ``one`` less that of ``other``; None where one of them was not trained."""
    if not values.get(one) or not values.get(other):
        return None
    differences = [first - second for first, second in zip(values[one], values[other], strict=True)]
    center, n = mean(differences), len(differences)
    half = t_quantile(CONFIDENCE, n - 1) * stdev(differences) / n**0.5
    return Difference(center, center - half, center + half, n)


def summarize(rows: Mapping[str, Json]) -> Json:
    """The figures over all tasks; the regret is the oracle's accuracy less the guide's."""

    def compare_all(one: str, other: str) -> Iterator[Difference]:
        found = (compare_arms(row["accuracies"]["test"], one, other) for row in rows.values())
        return (each for each in found if each is not None)

    def find_median(arm: str) -> float | None:
        return median(found) if (found := [each.mean for each in compare_all(arm, "guide")]) else None

    gains = list(compare_all("guide", "usual"))
    long_gains = compare_all("guide_all_epochs", "usual_all_epochs")
    return {
        "within_budget": share_of([abs(row["share"] - 1) <= _WITHIN for row in rows.values()]),
        "median_regret": {arm: find_median(arm) for arm in ("oracle_named", "oracle_most_accurate")},
        "median_gain_of_all_epochs": find_median("guide_all_epochs"),
        "better_than_usual": share_of([each.mean > 0 for each in gains]),
        "better_for_certain": share_of([each.low > 0 for each in gains]),
        "better_with_all_epochs": share_of([each.mean > 0 for each in long_gains]),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what is missing and prints a line for each task; exit code 0 where most tasks kept to the budget."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks ask_guide", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the studies and the results")
    parser.add_argument("--budget", default="3m", help="of each task (3m)")
    parser.add_argument("--only", nargs="*", choices=NAMES, default=NAMES, help="these tasks")
    parser.add_argument("--images", nargs="*", type=Path, help="folders of images instead of the tasks")
    parser.add_argument("--no-oracle", dest="oracle", action="store_false", help="the guide alone")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args(arguments)
    warn_if_busy()
    rows = {}
    tasks = {each.name: each for each in options.images or ()} or dict.fromkeys(options.only)
    for name, images in tasks.items():
        row = run_task(name, options.root / name, options.budget, images, has_oracle=options.oracle)
        if row is None:
            print(f"{name}: refused, the machine is too slow or too busy for the budget", flush=True)
            continue
        rows[name] = row
        print(_describe(name, row), flush=True)
    summary = summarize(rows)
    print(json.dumps(summary, indent=1))
    if options.save:
        facts = {"budget": options.budget, "oracle_times": _MORE_TIME if options.oracle else None, "within": _WITHIN}
        kind = f"ask_guide{'_images' if options.images else ''}{'' if options.oracle else '_without_oracle'}"
        name = f"{kind}_{options.budget}"
        save(name, {**facts, "summary": summary, "tasks": rows})
    within = summary["within_budget"]["share"]
    return 0 if within is not None and within > 1 / 2 else 1


def run_task(
    name: str, place: Path, budget: str, images: Path | None = None, *, has_oracle: bool = True
) -> Json | None:
    """What is on record of a task, and what is missing of it; None where the budget was refused, which the next command
    tries again."""
    place.mkdir(parents=True, exist_ok=True)
    file = place / "result.json"
    row: Json = json.loads(file.read_text()) if file.exists() else {"budget": budget}
    if row["budget"] != budget:
        raise InputError(f"{place}: its budget was {row['budget']}, not {budget}; choose another --root.")

    def write() -> None:
        file.write_text(json.dumps(row, indent=1) + "\n")

    if "guide" not in row:
        guide = _run_guide(name, place, budget, images)
        if guide is None:
            return None
        row |= {"guide": guide, "share": guide["seconds"] / (parse_duration(budget, "--budget") or 1.0)}
        write()
    if has_oracle and "oracle" not in row:
        row["oracle"] = _run_oracle(name, place)
        write()
    train_missing(find_configs(name, place, row), row.setdefault("accuracies", {"test": {}, "val": {}}), write)
    return row


def _describe(name: str, row: Json) -> str:
    before, after = row["guide"]["load"]
    parts = [f"{name}: {row['share']:.2f} of the budget, load {before:.1f} before and {after:.1f} after"]
    pairs = {
        "regret": ("oracle_named", "guide"),
        "to the most accurate": ("oracle_most_accurate", "guide"),
        "gain on 128 at the default rate": ("guide", "usual"),
        "the same with all epochs": ("guide_all_epochs", "usual_all_epochs"),
        "gain of all epochs": ("guide_all_epochs", "guide"),
    }
    for text, (one, other) in pairs.items():
        if found := compare_arms(row["accuracies"]["test"], one, other):
            parts.append(f"{text} {100 * found.mean:.2f} ({100 * found.low:.2f} to {100 * found.high:.2f}) points")
    return "; ".join(parts if len(parts) > 1 else [*parts, "nothing is named"])
