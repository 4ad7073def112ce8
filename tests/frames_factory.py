"""Frames of a made-up study whose numbers follow simple laws, so that a test knows what a figure must show."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from sweep.config.commands import StudyCommands, StudyOrigin, find_study_commands
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import config_keys, flatten_config
from sweep.probing.shape import derive_shape, digest_trial_shape
from sweep.records.frames import RecordSource
from sweep.records.inputs import DataSummary, StudyInputs
from sweep.records.records import MEMORY_PARTS, FindCorrect

SPACE: dict[str, Any] = {
    "model.name": {"choice": ["resnet8", "vit_micro"]},
    "batch.micro": {"log2": [4, 8]},
    "batch.accumulation": {"choice": [1, 2, 4]},
    "optimizer.lr": {"log": [1e-3, 1.0]},
    "optimizer.weight_decay": {"float": [0.0, 1e-3]},
}
EVALUATION = (
    "study", "number", "step", "epoch", "samples", "train_seconds", "train_loss", "val_loss", "val_accuracy",
    "learning_rate", "global_batch_size"
)  # fmt: skip
OTHER_OUTCOMES = (
    "out_of_memory", "not_fitting", "diverged", "timed_out", "crashed", "cancelled", "pruned", "target_missed"
)  # fmt: skip


@dataclass(frozen=True)
class MadeFrames:
    """The fields of the frames that the report reads."""

    spec: StudySpec | None
    trials: pd.DataFrame
    attempts: pd.DataFrame
    probes: pd.DataFrame
    evaluations: pd.DataFrame
    environments: pd.DataFrame
    place: str = ""
    data: DataSummary | None = None
    plugin: str = ""
    origin: StudyOrigin | None = None
    find_correct: FindCorrect | None = None
    source: RecordSource | None = None

    def find_commands(self, name: str) -> StudyCommands:
        """Those of the frames that this stands for."""
        return find_study_commands(name, self.place, self.origin, self.plugin)

    @property
    def specs(self) -> dict[str, StudySpec]:
        """That of the one study."""
        return {"made": self.spec} if self.spec else {}

    @property
    def inputs(self) -> dict[str, StudyInputs]:
        """Those of the one study."""
        return {"made": StudyInputs(data=self.data)}


def make_spec(**changes: Any) -> StudySpec:
    table: dict[str, Any] = {"name": "made", "question": "How far does a larger batch buy time?", "space": SPACE}
    return build_study(table | changes, "test")


def make_frames(num_search: int = 40, confirm: int = 0, seed: int = 0, **changes: Any) -> MadeFrames:
    """``num_search`` search trials of which every eighth ended badly, and ``confirm`` configurations times 3 seeds."""
    spec = make_spec(**changes)
    rng = np.random.default_rng(seed)
    rows = [_search_row(spec, rng, number) for number in range(num_search)]
    chosen = sorted((row for row in rows if row["outcome"] == "complete"), key=lambda row: -row["val_accuracy"])
    for row in chosen[:confirm]:
        for extra in range(1, 4):
            rows.append(_confirm_row(row, rng, len(rows), spec.seed + extra))
    return frames_of(spec, rows)


def estimates_of(spec: StudySpec, device: str = "cpu: made") -> pd.DataFrame:
    """Probes of each model and of three micro batches: what memory is for, as it was estimated and as it came out."""
    mebi = 2**20
    rows = []
    for model in ("resnet8", "vit_micro"):
        for micro in (16, 64, 256):
            config = spec.config({"model.name": model, "batch.micro": micro, "optimizer.lr": 0.1})
            row: dict[str, Any] = {"study": spec.name, "shape_key": f"{model}{micro}", "device": device}
            row |= {"shape": derive_shape(config).text, "shape_digest": digest_trial_shape(config)}
            row |= {"micro_batch": micro, "outcome": "complete", "quality_flags": ""}
            row |= {f"forecast_{part}_bytes": 2 * mebi for part in MEMORY_PARTS}
            row |= {"forecast_activation_bytes": int(0.3 * micro * mebi)}
            rows.append(row | {"peak_memory_bytes": int((8 + 0.35 * micro) * mebi), "step_seconds_median": micro / 4e3})
    return pd.DataFrame(rows)


def frames_of(spec: StudySpec | None, rows: list[dict[str, Any]]) -> MadeFrames:
    """Frames from hand-made trial rows; what is left out is missing."""
    trials = pd.DataFrame([blank_row() | row for row in rows], columns=list(blank_row()))
    for name in METRICS:
        trials[name] = pd.to_numeric(trials[name]).astype("Float64")
    evaluations = [point for row in rows for point in _evaluations(row)]
    attempts = [
        {"study": "made", "number": row["number"], "attempt": 1, "cause": "", "busy_seconds": row.get("total_seconds")}
        for row in rows
    ]
    return MadeFrames(
        spec,
        trials,
        pd.DataFrame(attempts, columns=["study", "number", "attempt", "cause", "started_at", "busy_seconds"]),
        pd.DataFrame(),
        pd.DataFrame(evaluations, columns=list(EVALUATION)),
        pd.DataFrame([{"environment_digest": "e1", "torch": "2.13.0", "python": "3.11.2", "cpu": "made"}]),
    )


def blank_row() -> dict[str, Any]:
    row: dict[str, Any] = {"study": "made", "number": 0, "phase": "search", "outcome": "complete", "seed": 0}
    row |= {f"config.{key}": None for key in config_keys()}
    row |= {"global_batch_size": 64} | dict.fromkeys(METRICS)
    row |= {"device": "cpu: made", "environment_digest": "e1", "bottleneck": None}
    return row | dict.fromkeys(("trial_key", "shape_digest", "quality_flags", "error", "reused_from"), "")


def _search_row(spec: StudySpec, rng: np.random.Generator, number: int) -> dict[str, Any]:
    values = {path: parameter.at(float(rng.random())) for path, parameter in spec.space.items()}
    config = spec.config(values)
    row = {f"config.{key}": value for key, value in flatten_config(config).items()}
    row |= {"study": spec.name, "number": number, "phase": "search", "seed": config.seed, "trial_key": f"k{number}"}
    row |= {"global_batch_size": config.global_batch_size, "outcome": "complete", "num_parameters": 75_000}
    if number % 8 == 7:
        return row | _bad_ending(OTHER_OUTCOMES[number // 8 % len(OTHER_OUTCOMES)])
    return row | measured(config.batch.micro, config.global_batch_size, config.optimizer.lr, rng)


def measured(micro: int, global_batch: int, lr: float, rng: np.random.Generator) -> dict[str, Any]:
    """Time falls with the micro batch, memory grows with it, accuracy likes lr / batch near 1e-3."""
    miss = abs(math.log10(lr / global_batch) + 3.0)
    accuracy = float(np.clip(0.97 - 0.06 * miss**2 + rng.normal(0, 0.01), 0.1, 0.995))
    train_seconds = float((6.0 + 400.0 / micro) * rng.lognormal(0, 0.05))
    rest = {"setup_seconds": 0.4, "warmup_seconds": 0.6, "eval_seconds": 1.1, "data_wait_seconds": 0.3}
    rest |= {"num_steps": 200, "num_epochs": 10.0, "images_per_second": 14_000 / train_seconds}
    rest |= {"step_seconds_median": train_seconds / 200}
    return rest | {
        "val_accuracy": accuracy, "val_loss": 2.0 * (1 - accuracy), "train_accuracy": min(1.0, accuracy + 0.01),
        "generalization_gap": 0.01, "train_seconds": train_seconds, "total_seconds": train_seconds + 2.5,
        "peak_memory_bytes": float((8 + 0.35 * micro) * 2**20),
    }  # fmt: skip


def _bad_ending(outcome: str) -> dict[str, Any]:
    known: dict[str, Any] = {"outcome": outcome, "error": f"{outcome} happened"}
    if outcome in {"diverged", "timed_out", "target_missed", "pruned"}:
        known |= {"train_seconds": 3.0, "total_seconds": 4.0, "peak_memory_bytes": 40.0 * 2**20}
    return known | ({"val_accuracy": 0.3} if outcome == "pruned" else {})


def _confirm_row(row: dict[str, Any], rng: np.random.Generator, number: int, seed: int) -> dict[str, Any]:
    again = measured(row["config.batch.micro"], row["global_batch_size"], row["config.optimizer.lr"], rng)
    again["test_accuracy"] = again["val_accuracy"] - 0.01
    return row | again | {"number": number, "phase": "confirm", "seed": seed, "config.seed": seed}


def _evaluations(row: dict[str, Any]) -> list[dict[str, Any]]:
    if row.get("val_accuracy") is None or row.get("train_seconds") is None:
        return []
    return [
        {
            "study": row.get("study", "made"), "number": row["number"], "step": 20 * step, "epoch": float(step),
            "samples": 1400 * step, "train_seconds": row["train_seconds"] * step / 10, "train_loss": 2.3 / step,
            "val_loss": 2.3 / step, "val_accuracy": row["val_accuracy"] * (1 - math.exp(-step / 3)),
            "learning_rate": 0.1, "global_batch_size": row.get("global_batch_size", 64),
        }
        for step in range(1, 11)
    ]  # fmt: skip
