"""Records every training of a grid, to replay searches on: ``python -m benchmarks tables [DESIGN.toml ...]``.

A design is a study file whose whole space is a grid. Its trainings are those of :func:`run_trial`, one thread each;
the records lie under ``runs/tables`` and the command continues where they end, so a table can be made in pieces. All
points are trained with the first seed, then with the next, in an order that is no order of the grid: what is there
at any moment is a balanced part of the whole.

A busy machine spoils times, and they depend on the shape alone. ``--times`` measures them apart: a few short trainings
of each shape, one thread, the median of each part. Run it on a machine that does nothing else. ``--export`` writes what
is recorded as a table: the records as Parquet, and a JSON beside them.
"""

import argparse
import contextlib
import json
import multiprocessing
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.datasets import ARCHIVE, offer_cifar, require_archive
from benchmarks.harness import CPU, TABLES
from benchmarks.rules import scale_recipe
from sweep.config.errors import InputError
from sweep.config.space import count_grid_points, pick_grid_point
from sweep.config.study import StudySpec
from sweep.config.study_file import find_differences, load_study
from sweep.config.trial import TrialConfig, build_config, flatten_config, replace_keys
from sweep.measurement.device import describe_environment
from sweep.records.files import export_frames
from sweep.records.frames import Frames
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, Evaluation, Message, TrialTask
from sweep.records.reading import find_correct_texts
from sweep.records.records import TrialRecord, decode_correct
from sweep.records.store import Store, open_store
from sweep.training.trial import run_trial

DESIGNS = tuple(
    TABLES / f"{name}.toml" for name in ("gratings", "dots", "mixtures", "digits_blended", "cifar10_animals")
)
NUM_REPEATS = 5
_BEFORE = ("setup_seconds", "compile_seconds", "warmup_seconds", "memory_seconds")
# What a table may sweep that changes no time.
_TIMELESS = {"optimizer.lr", "optimizer.weight_decay", "optimizer.momentum", "regularization.label_smoothing"}

# ---------------------------------------------------------------------- the design


class Job(NamedTuple):
    """One training of the design."""

    number: int
    config: TrialConfig


def list_jobs(spec: StudySpec, num_seeds: int) -> Iterator[Job]:
    """Every training: all points with the study's seed, then all with the next. Where the space has the seed, its seeds
    in their order, and of the points whose rules give the same recipe the first alone."""
    size = count_grid_points(spec.space)
    if size is None:
        raise InputError(f"{spec.name}: a table requires a grid; give choice, int or log2 for every key of its space.")
    if "seed" not in spec.space:
        for number in range(size * num_seeds):
            turn, index = divmod(number, size)
            yield Job(number, spec.config(pick_grid_point(spec.space, index), spec.seed + turn))
        return
    jobs = (Job(number, spec.config(pick_grid_point(spec.space, number))) for number in range(size))
    seen = set()
    for job in sorted(jobs, key=lambda job: job.config.seed):
        rest = job.config.model_dump_json(exclude={"optimizer", "rules"})
        training = (rest, job.config.optimizer.name, scale_recipe(job.config, job.config.global_batch_size))
        if training not in seen:
            seen.add(training)
            yield job


@contextlib.contextmanager
def _open_records(spec: StudySpec, root: Path) -> Iterator[Store]:
    with contextlib.closing(open_store(root / spec.name / "study.sqlite", create=True)) as store:
        known = store.load_spec(spec.name)
        if known is None:
            store.create_study(spec)
        elif changed := find_differences(known, spec):
            raise InputError(f"{root / spec.name}: recorded with another design: {'; '.join(changed)}. Move it away.")
        yield store


# ---------------------------------------------------------------------- recording


def record(spec: StudySpec, root: Path, num_seeds: int, processes: int, deadline: float) -> tuple[int, int]:
    """Trains what is missing until all is there or the deadline (``time.monotonic``); how many are there, of how
    many. A training that is cut short is not recorded."""
    jobs = list(list_jobs(spec, num_seeds))
    with _open_records(spec, root) as store:
        done = {found.number for found in store.trial_records(spec.name) if found.outcome}
        left = iter([job for job in jobs if job.number not in done])
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(spec,)) as pool:
            begun = islice(left, processes if time.monotonic() < deadline else 0)
            running = {pool.submit(_train, job): job for job in begun}
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    done.add(_keep(store, spec, running.pop(future), future))
                    if len(done) % 10 == 0 or len(done) == len(jobs):
                        _tell(f"{spec.name}: {len(done)} of {len(jobs)} trainings")
                    more = next(left, None) if time.monotonic() < deadline else None
                    if more:
                        running[pool.submit(_train, more)] = more
    return len(done), len(jobs)


def _begin(spec: StudySpec) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that records
    _offer_data(spec)


def _offer_data(spec: StudySpec) -> None:
    name = str(spec.base.get("data.name"))
    if name.startswith("cifar10"):
        require_archive(ARCHIVE)
    if name == "cifar10":
        offer_cifar(int(spec.base["data.subset"]))


def _train(job: Job) -> list[Message]:
    # by the code that trains it in a study
    return list(run_trial(TrialTask(number=job.number, config=job.config, device="cpu", threads=1)))


def _keep(store: Store, spec: StudySpec, job: Job, future: "Future[list[Message]]") -> int:
    messages = future.result()
    ending = messages[-1]
    assert isinstance(ending, Ending)
    if ending.outcome == "crashed":  # no result of the configuration
        raise RuntimeError(f"{spec.name}, training {job.number} crashed: {ending.error}")
    store.add_trial(spec.name, job.number, "search", job.config, f"{spec.name}-{job.number}")
    for message in messages:
        if isinstance(message, Evaluation):
            store.add_evaluation(spec.name, job.number, 1, message)
    store.finish_trial(spec.name, job.number, ending)
    return job.number


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


# ---------------------------------------------------------------------- times

Costs = dict[str, float]


def shape_of(spec: StudySpec, config: TrialConfig) -> str:
    """What the time of a training depends on, of the keys that the design sweeps."""
    flat = flatten_config(config)
    return ", ".join(f"{path}={flat[path]}" for path in spec.space if path not in _TIMELESS)


def measure_times(spec: StudySpec, root: Path) -> None:
    shapes = {shape_of(spec, job.config): job.config for job in list_jobs(spec, 1)}
    rounds: dict[str, list[Costs]] = {shape: [] for shape in shapes}
    for turn in range(NUM_REPEATS + 1):
        for shape, config in shapes.items():
            costs = _measure_costs(config)
            if turn:  # the first round warms up
                rounds[shape].append(costs)
        _tell(f"{spec.name}: times, round {turn} of {NUM_REPEATS}")
    path = root / spec.name / "times.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rounds, indent=1) + "\n", encoding="utf-8")


def _measure_costs(config: TrialConfig) -> Costs:
    short = build_config(replace_keys(flatten_config(config), {"budget.steps": 12}), "times")
    messages = _train(Job(0, short))
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


def find_medians(rounds: dict[str, list[Costs]]) -> dict[str, Costs]:
    return {
        shape: {name: statistics.median(row[name] for row in rows) for name in rows[0]}
        for shape, rows in rounds.items()
    }


# ---------------------------------------------------------------------- the table as it is shipped


def export(spec: StudySpec, design: Path, root: Path, num_seeds: int, folder: Path) -> str:
    """Writes what is recorded of the design as ``folder/<name>`` and ``folder/<name>.json``; says what it wrote."""
    path, target = root / spec.name / "times.json", folder / spec.name
    if not path.is_file():
        raise InputError(f"{path} is missing; measure the times first: python -m benchmarks tables --times")
    rounds: dict[str, list[Costs]] = json.loads(path.read_text(encoding="utf-8"))
    times = find_medians(rounds)
    with tempfile.TemporaryDirectory() as aside, _open_records(spec, root) as recorded:
        with contextlib.closing(open_store(Path(aside) / "study.sqlite", create=True)) as timed:
            timed.create_study(spec)
            records = [found for found in recorded.trial_records(spec.name) if found.outcome]
            numbers = [record.number for record in records]
            correct = recorded.database.read(lambda connection: find_correct_texts(connection, spec.name, numbers))
            for record in records:
                costs, curve = times[shape_of(spec, record.config)], recorded.evaluations(spec.name, record.number)
                timed.add_trial(spec.name, record.number, "search", record.config, record.trial_key)
                for evaluation in curve:
                    seconds = _train_seconds(evaluation.samples, record, costs)
                    timed.add_evaluation(spec.name, record.number, 1, replace(evaluation, train_seconds=seconds))
                ending = _make_ending(record, curve, costs)
                images = correct.get(record.number, "")
                timed.finish_trial(spec.name, record.number, replace(ending, correct_images=images))
        frames = load_frames(aside, evaluations=True, correct_images=True)
        shutil.rmtree(target, ignore_errors=True)
        export_frames(frames, target)
    about = _describe(spec, design, num_seeds, frames, rounds)
    (folder / f"{spec.name}.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return f"{target}: {about['num_trainings']} of {about['num_trainings_of_design']} trainings"


def _train_seconds(samples: float, record: TrialRecord, costs: Costs) -> float:
    # by samples, because the last step of an epoch may have fewer
    return samples / record.config.global_batch_size * costs["step_seconds"]


def _make_ending(record: TrialRecord, curve: Sequence[Evaluation], costs: Costs) -> Ending:
    def is_of_the_clock(name: str) -> bool:
        return name.endswith("_seconds") or "_seconds_" in name or name == "clock_hertz"

    # a training that diverged ended between two evaluations
    samples = record.measurements["num_steps"] * record.config.global_batch_size
    seconds = _train_seconds(curve[-1].samples if record.outcome == "complete" else samples, record, costs)
    evaluating = (len(curve) + 1) * costs["evaluation_seconds"]
    measured: dict[str, Any] = {name: value for name, value in record.measurements.items() if not is_of_the_clock(name)}
    measured |= {
        "train_seconds": seconds, "setup_seconds": costs["before_seconds"], "eval_seconds": evaluating,
        "total_seconds": costs["before_seconds"] + seconds + evaluating + costs["rest_seconds"],
        "step_seconds_median": costs["step_seconds"],
        "images_per_second": record.config.global_batch_size / costs["step_seconds"],
        "peak_memory_bytes": round(costs["peak_memory_bytes"]),
    }  # fmt: skip
    outcome = record.outcome or "complete"
    return Ending(outcome=outcome, measurements=measured, device=record.device, quality_flags=(), error=record.error)


def _describe(
    spec: StudySpec, design: Path, num_seeds: int, frames: Frames, rounds: dict[str, list[Costs]]
) -> dict[str, Any]:
    num_jobs, num_trainings = sum(1 for _ in list_jobs(spec, num_seeds)), len(frames.trials)
    command = f"python -m benchmarks tables benchmarks/tables/{design.name}"
    steps = [[cost["step_seconds"] for cost in costs] for costs in rounds.values()]
    apart = [(max(each) - min(each)) / statistics.median(each) for each in steps]
    assert frames.correct_images is not None
    return {
        "study": spec.name,
        "design": design.name,
        "question": spec.question,
        "seeds": [spec.seed + turn for turn in range(num_seeds)],
        "num_configurations": num_jobs // num_seeds,
        "num_trainings": num_trainings,
        "num_trainings_of_design": num_jobs,
        "is_whole": num_trainings == num_jobs,
        "made_by": [f"{command} --seeds {num_seeds}", f"{command} --times", f"{command} --seeds {num_seeds} --export"],
        "times": (
            f"measured apart and alone for each shape, one thread, medians of {min(map(len, steps))} rounds: "
            "train_seconds = samples / global batch x time of a step; "
            "total_seconds = what comes before the first step + train_seconds "
            "+ time of an evaluation x (evaluations + 1) + rest; setup_seconds holds all that comes before"
        ),
        "spread_of_step_times": {"median": statistics.median(apart), "worst": max(apart)},
        "num_validation_images": next(map(len, map(decode_correct, frames.correct_images["correct_images"])), None),
        "environment": describe_environment(CPU),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when every design is whole, 1 when something is left to do."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks tables", description=__doc__)
    parser.add_argument(
        "designs", nargs="*", type=Path, help="study files (those that no constant of a sampler was chosen on)"
    )
    parser.add_argument("--minutes", type=float, default=180.0, help="begin no training after this long (180)")
    parser.add_argument("--processes", type=int, default=2, help="trainings at once, one thread each (2)")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each point (3)")
    parser.add_argument("--root", type=Path, default=Path("runs/tables"), help="where the records lie (runs/tables)")
    parser.add_argument("--to", type=Path, default=TABLES, help="folder of the exported tables")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--times", action="store_true", help="measure the times of every shape instead, alone")
    action.add_argument("--export", action="store_true", help="write what is recorded as a table instead")
    options = parser.parse_args(arguments)
    deadline, left = time.monotonic() + 60 * options.minutes, 0
    for path in options.designs or DESIGNS:
        spec = load_study(path)
        if options.times:
            _offer_data(spec)
            measure_times(spec, options.root)
        elif options.export:
            print(export(spec, path, options.root, options.seeds, options.to))
        else:
            num_done, num_jobs = record(spec, options.root, options.seeds, options.processes, deadline)
            left += num_jobs - num_done
    print("all is there" if not left else f"{left} trainings are left; the same command continues", file=sys.stderr)
    return 1 if left else 0
