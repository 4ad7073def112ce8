"""Tables of trainings that never were, with figures that follow from the configuration, for tests of the replay."""

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from sweep.config.space import count_grid_points, pick_grid_point
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import TrialConfig
from sweep.records.files import export_frames
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, Evaluation
from sweep.records.records import Correct, encode_correct
from sweep.records.store import open_store

EPOCHS = 6
SETUP_SECONDS = 2.0
NUM_IMAGES = 400  # of the validation split
EVALUATION_SECONDS = 0.5
RESTS = EVALUATION_SECONDS * (EPOCHS + 1)


def table_spec(name: str = "tabled", **fields: Any) -> StudySpec:
    space = {
        "batch.micro": {"log2": [4, 6]},
        "batch.accumulation": {"choice": [1, 4]},
        "optimizer.lr": {"choice": [0.01, 0.1, 1.0]},
    }
    return build_study({"name": name, "space": space, "base": {"budget.epochs": EPOCHS}, **fields}, "test")


def step_seconds(config: TrialConfig) -> float:
    return 0.01 * (config.batch.accumulation or 1) * (1 + config.batch.micro / 16)


def accuracy(config: TrialConfig, noise: float = 0.003) -> float:
    """Best where the rate fits the batch; a little noise that the configuration and its seed decide."""
    off = math.log10(config.optimizer.lr / 0.02 / math.sqrt(config.global_batch_size / 16))
    generator = np.random.default_rng([config.seed, config.global_batch_size, round(config.optimizer.lr * 1e6)])
    return 0.9 - 0.1 * off**2 - 0.0002 * config.global_batch_size + noise * float(generator.normal())


def curve(config: TrialConfig, num_images: int = 1024) -> list[Evaluation]:
    final, size = accuracy(config), config.global_batch_size
    return [
        Evaluation(
            step=epoch * num_images // size, epoch=float(epoch), samples=epoch * num_images,
            train_seconds=epoch * num_images / size * step_seconds(config), train_loss=1 / epoch, val_loss=1 / epoch,
            val_accuracy=final - 0.4 * (math.exp(-epoch / 2) - math.exp(-EPOCHS / 2)),
            learning_rate=config.optimizer.lr, global_batch_size=size,
        )
        for epoch in range(1, EPOCHS + 1)
    ]  # fmt: skip


def ending(config: TrialConfig) -> Ending:
    told = curve(config)[-1]
    measured: dict[str, float | int] = {
        "val_accuracy": told.val_accuracy, "val_loss": told.val_loss, "train_seconds": told.train_seconds,
        "setup_seconds": SETUP_SECONDS, "total_seconds": SETUP_SECONDS + told.train_seconds + RESTS,
        "peak_memory_bytes": 100_000 * (10 + config.batch.micro), "num_steps": told.step, "num_epochs": told.epoch,
        "step_seconds_median": step_seconds(config),
    }  # fmt: skip
    correct = encode_correct(correct_images(config))
    return Ending(outcome="complete", measurements=measured, device="test device", correct_images=correct)


def correct_images(config: TrialConfig) -> Correct:
    """The same images are hard for every configuration; each seed has one more of its own that is wrong."""
    correct = np.arange(NUM_IMAGES) < round(accuracy(config) * NUM_IMAGES)
    correct[config.seed] = False
    return correct


def write_table(folder: Path, spec: StudySpec | None = None, num_seeds: int = 3, num_rows: int | None = None) -> Path:
    """Exports a table of the whole grid (or its first ``num_rows`` trainings) to ``folder / "table"``."""
    spec = spec or table_spec()
    size = count_grid_points(spec.space) or 0
    with contextlib.closing(open_store(folder / "records" / "study.sqlite", create=True)) as store:
        store.create_study(spec)
        for number in range(num_rows or size * num_seeds):
            config = spec.config(pick_grid_point(spec.space, number % size), spec.seed + number // size)
            store.add_trial(spec.name, number, "search", config, f"key{number}")
            for evaluation in curve(config):
                store.add_evaluation(spec.name, number, 1, evaluation)
            store.finish_trial(spec.name, number, ending(config))
    export_frames(load_frames(folder / "records", evaluations=True, correct_images=True), folder / "table")
    return folder / "table"
