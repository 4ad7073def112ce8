"""A table as it is shipped: the records of a design's trainings as Parquet, and a JSON beside them: what it is."""

import contextlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.table_design import LOOKED_AT, all_jobs, open_records
from benchmarks.table_times import TIMES_FILE, num_rounds, read_times, shape_of, spreads
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.records.correct_images import decode_correct
from sweep.records.frames.exchange import export_frames
from sweep.records.frames.frames import load_frames
from sweep.records.frames.study_frames import Frames
from sweep.records.messages import Ending, Evaluation
from sweep.records.store.reading import find_correct_texts
from sweep.records.store.store import Store, open_store
from sweep.records.trial_record import TrialRecord

Costs = dict[str, float]

_LOOKED_AT = "the search or the answer was changed while these were looked at"
_NOT_LOOKED_AT = "not before its recording"


def export(spec: StudySpec, design: Path, root: Path, num_seeds: int, folder: Path) -> str:
    """Writes what is recorded of the design as ``folder/<name>`` and ``folder/<name>.json``; says what it wrote.

    Raises:
        InputError: nothing is recorded, or the times were not measured.
    """
    times = root / spec.name / TIMES_FILE
    if not times.is_file():
        raise InputError(f"{times} is missing; measure the times first: python -m benchmarks.record_table --times")
    target = folder / spec.name
    with tempfile.TemporaryDirectory() as aside, open_records(spec, root) as recorded:
        with contextlib.closing(open_store(Path(aside) / "study.sqlite", create=True)) as timed:
            timed.create_study(spec)
            records = [found for found in recorded.trial_records(spec.name) if found.outcome]
            _copy_timed(spec, records, recorded, timed, read_times(times))
        frames = load_frames(aside, evaluations=True, correct_images=True)
        if target.exists():
            shutil.rmtree(target)
        export_frames(frames, target)
    about = _about(spec, design, num_seeds, frames, times)
    path = folder / f"{spec.name}.json"
    path.write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return f"{target}: {about['num_trainings']} of {about['num_trainings_of_design']} trainings"


def _copy_timed(
    spec: StudySpec, records: Sequence[TrialRecord], recorded: Store, timed: Store, times: dict[str, Costs]
) -> None:
    numbers = [record.number for record in records]
    correct = recorded.database.read(lambda connection: find_correct_texts(connection, spec.name, numbers))
    for record in records:
        costs = times[shape_of(spec, record.config)]
        timed.add_trial(spec.name, record.number, "search", record.config, record.trial_key)
        curve = recorded.evaluations(spec.name, record.number)
        for evaluation in curve:
            timed.add_evaluation(spec.name, record.number, 1, _timed(evaluation, record, costs))
        ending = replace(_ending(record, curve, costs), correct_images=correct.get(record.number, ""))
        timed.finish_trial(spec.name, record.number, ending)


def _train_seconds(samples: float, record: TrialRecord, costs: Costs) -> float:
    # by samples, because the last step of an epoch may have fewer
    return samples / record.config.global_batch_size * costs["step_seconds"]


def _timed(evaluation: Evaluation, record: TrialRecord, costs: Costs) -> Evaluation:
    return replace(evaluation, train_seconds=_train_seconds(evaluation.samples, record, costs))


def _ending(record: TrialRecord, curve: Sequence[Evaluation], costs: Costs) -> Ending:
    kept = {name: value for name, value in record.measurements.items() if not _is_of_the_clock(name)}
    # a training that diverged ended between two evaluations
    samples = record.measurements["num_steps"] * record.config.global_batch_size
    seconds = _train_seconds(curve[-1].samples if record.outcome == "complete" else samples, record, costs)
    evaluating = (len(curve) + 1) * costs["evaluation_seconds"]
    total = costs["before_seconds"] + seconds + evaluating + costs["rest_seconds"]
    measured: dict[str, Any] = {
        **kept,
        "train_seconds": seconds,
        "setup_seconds": costs["before_seconds"],
        "eval_seconds": evaluating,
        "total_seconds": total,
        "step_seconds_median": costs["step_seconds"],
        "images_per_second": record.config.global_batch_size / costs["step_seconds"],
        "peak_memory_bytes": round(costs["peak_memory_bytes"]),
    }
    return Ending(
        outcome=record.outcome or "complete",
        measurements=measured,
        device=record.device,
        quality_flags=(),
        error=record.error,
    )


def _is_of_the_clock(name: str) -> bool:
    return name.endswith("_seconds") or "_seconds_" in name or name in {"cpu_load_by_others", "clock_hertz"}


def _about(spec: StudySpec, design: Path, num_seeds: int, frames: Frames, times: Path) -> dict[str, Any]:
    import torch

    from sweep.measurement.environment import describe_environment

    jobs, num_trainings = list(all_jobs(spec, num_seeds)), len(frames.trials)
    command = f"python -m benchmarks.record_table benchmarks/tables/{design.name}"
    return {
        "study": spec.name,
        "design": design.name,
        "question": spec.question,
        "space": {path: list(parameter.grid_values or ()) for path, parameter in spec.space.items()},
        "base": spec.base,
        "seeds": [spec.seed + turn for turn in range(num_seeds)],
        "num_configurations": len(jobs) // num_seeds,
        "num_trainings": num_trainings,
        "num_trainings_of_design": len(jobs),
        "is_whole": num_trainings == len(jobs),
        "looked_at": _LOOKED_AT if spec.name in LOOKED_AT else _NOT_LOOKED_AT,
        "made_by": [f"{command} --seeds {num_seeds}", f"{command} --times", f"{command} --seeds {num_seeds} --export"],
        "accuracies": "every training was trained, one thread each, as a trial of a study is",
        "times": (
            f"measured apart and alone for each shape, one thread, medians of {num_rounds(times)} rounds: "
            "train_seconds = samples / global batch x time of a step; "
            "total_seconds = what comes before the first step + train_seconds "
            "+ time of an evaluation x (evaluations + 1) + rest; setup_seconds holds all that comes before"
        ),
        "spread_of_step_times": spreads(times),
        "num_validation_images": _count_images(frames),
        "environment": describe_environment(torch.device("cpu")),
    }


def _count_images(frames: Frames) -> int | None:
    assert frames.correct_images is not None
    return next((len(decode_correct(text)) for text in frames.correct_images["correct_images"]), None)
