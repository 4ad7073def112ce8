"""A study of one's own, run as a user runs it: every record is computed again from its configuration and the counts."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sweep import load_frames
from sweep.records.frames import Frames

pytestmark = pytest.mark.wide  # six trainings of a transformer

MICRO_BATCHES = (24, 48, 96, 130)
GLOBAL_BATCH, NUM_TRAIN, WARMUP_EPOCHS, MAX_EPOCHS, RATE, TARGET = 192, 500, 2, 10, 0.001, 0.35
STUDY = f"""
name = "own"
question = "Which micro batch reaches the target first?"
trials = {len(MICRO_BATCHES)}
sampler = "grid"
objectives = ["val_accuracy", "seconds_to_target", "peak_memory_bytes"]
confirm = {{ max_configurations = 1, seeds = 2 }}

[base]
data.name = "digits"
data.subset = {NUM_TRAIN}
model.name = "vit_micro"
batch.global = {GLOBAL_BATCH}
optimizer.name = "adamw"
optimizer.lr = {RATE}
rules.lr = "sqrt"
schedule.warmup = "{WARMUP_EPOCHS} epochs"
budget.target_accuracy = {TARGET}
budget.max_epochs = {MAX_EPOCHS}

[space]
"batch.micro" = {{ choice = {list(MICRO_BATCHES)} }}
"""


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of the test, and the document of the run."""
    place = tmp_path_factory.mktemp("own")
    (place / "own.toml").write_text(STUDY)
    (place / "batches").mkdir()
    plugin = Path(__file__).with_name("batch_log_plugin.py")
    words = [sys.executable, "-m", "sweep.cli", "run", "own.toml", "--plugin", str(plugin), "--json"]
    environment = os.environ | {"BATCH_LOG": str(place / "batches")}
    done = subprocess.run(words, cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place, json.loads(done.stdout)


@pytest.fixture(scope="module")
def frames(study: tuple[Path, dict[str, Any]]) -> Frames:
    """The records of the study."""
    return load_frames(study[0] / "runs" / "own", evaluations=True)


def trials_with_curves(frames: Frames) -> Iterator[tuple[pd.Series, pd.DataFrame]]:
    """Each trial with its evaluations."""
    assert frames.evaluations is not None
    for _, trial in frames.trials.iterrows():
        yield trial, frames.evaluations[frames.evaluations["number"] == trial["number"]]


def samples_after(step: int) -> int:
    """Training samples of the first ``step`` optimizer steps: an epoch ends with a smaller one."""
    epochs, rest = divmod(step, math.ceil(NUM_TRAIN / GLOBAL_BATCH))
    return epochs * NUM_TRAIN + rest * GLOBAL_BATCH


def test_steps_samples_and_epochs_follow_from_the_batch(frames: Frames) -> None:
    per_epoch = math.ceil(NUM_TRAIN / GLOBAL_BATCH)
    assert per_epoch == 3
    for trial, curve in trials_with_curves(frames):
        assert trial["num_steps"] == curve["step"].iloc[-1] <= per_epoch * MAX_EPOCHS
        assert trial["num_epochs"] == samples_after(trial["num_steps"]) / NUM_TRAIN
        assert curve["samples"].tolist() == [samples_after(step) for step in curve["step"]]
        assert curve["epoch"].tolist() == [samples_after(step) / NUM_TRAIN for step in curve["step"]]
        assert (curve["global_batch_size"] == GLOBAL_BATCH).all()
        assert trial["micro_batch_size"] == trial["config.batch.micro"]


def test_rates_gaps_and_shares_are_what_they_are_computed_from(frames: Frames) -> None:
    data = frames.data
    assert data is not None
    for trial, curve in trials_with_curves(frames):
        speed = samples_after(trial["num_steps"]) / trial["train_seconds"]
        assert trial["images_per_second"] == pytest.approx(speed, rel=1e-12)  # sums in another order
        assert trial["generalization_gap"] == trial["train_accuracy"] - trial["val_accuracy"]
        last = curve.iloc[-1]
        assert (trial["val_accuracy"], trial["val_loss"]) == (last["val_accuracy"], last["val_loss"])
        # the training accuracy is over as many images as there are for validation
        correct = [trial["train_accuracy"] * data.num_val, *(curve["val_accuracy"] * data.num_val)]
        correct += [trial["test_accuracy"] * data.num_test] if trial["phase"] == "confirm" else []
        assert np.allclose(correct, np.round(correct), rtol=0, atol=1e-9)  # a whole number of images
        assert pd.isna(trial["test_accuracy"]) == (trial["phase"] == "search")
        parts = [trial[f"{name}_seconds"] for name in PHASES]
        assert trial["train_seconds"] >= trial["data_wait_seconds"] >= 0
        assert sum(parts) <= trial["total_seconds"]


PHASES = ("train", "setup", "compile", "warmup", "memory", "eval", "checkpoint", "diagnostics")


def test_the_learning_rate_rises_for_two_epochs_and_then_falls_as_a_cosine(frames: Frames) -> None:
    per_epoch = math.ceil(NUM_TRAIN / GLOBAL_BATCH)
    num_warmup, num_steps = WARMUP_EPOCHS * per_epoch, MAX_EPOCHS * per_epoch
    highest = RATE * math.sqrt(GLOBAL_BATCH / 256)  # the square-root rule, from a reference batch of 256

    def rate_of(step: int) -> float:
        if step < num_warmup:
            return highest * min(1.0, (step + 1) / num_warmup)
        share = (step - num_warmup) / (num_steps - num_warmup)
        return highest * (0.5 * (1 + math.cos(math.pi * share)))

    assert rate_of(0) == pytest.approx(0.001 * 0.8660254 / 6)
    for _, curve in trials_with_curves(frames):
        assert curve["learning_rate"].tolist() == [rate_of(step - 1) for step in curve["step"]]
        assert curve["step"].iloc[-1] > num_warmup  # both parts were seen


def test_the_target_is_reached_at_the_first_evaluation_above_it(frames: Frames) -> None:
    for trial, curve in trials_with_curves(frames):
        *before, last = curve["val_accuracy"]
        assert max(before) < TARGET <= last
        assert trial["steps_to_target"] == trial["num_steps"] == curve["step"].iloc[-1]
        assert trial["seconds_to_target"] == trial["train_seconds"] == curve["train_seconds"].iloc[-1]
        assert curve["train_seconds"].is_monotonic_increasing
        # a quarter of an epoch is less than any step, and a twentieth of what was trained as well in 20 quarters
        assert curve["step"].tolist()[: 4 * 3] == list(range(1, min(len(curve), 12) + 1))


def expected_batches(micro: int, evaluated: list[int]) -> list[str]:
    """The forward passes of a training that was evaluated after these steps."""
    passes = []
    for step in range(1, evaluated[-1] + 1):
        rest = samples_after(step) - samples_after(step - 1)
        passes += [str(micro)] * (rest // micro) + ([str(rest % micro)] if rest % micro else [])
        passes += ["eval"] if step in evaluated else []
    return passes


def read_log(path: Path) -> str:
    """The passes of one process, those of an evaluation as one."""
    words = path.read_text().split()
    return " ".join(name for word, same in groupby(words) for name in (["eval"] if word == "eval" else same))


def test_each_step_has_its_micro_batches_and_the_last_is_smaller(
    study: tuple[Path, dict[str, Any]], frames: Frames
) -> None:
    logs = [f" {read_log(path)} " for path in (study[0] / "batches").glob("*.log")]
    for trial, curve in trials_with_curves(frames):
        expected = " ".join(expected_batches(trial["config.batch.micro"], curve["step"].tolist()))
        found = [log for log in logs if f" {expected} " in log]
        assert found, f"trial {trial['number']}: no process made these passes: {expected}"
        logs.remove(min(found, key=len))  # one process each; a longer training begins like a shorter one
    assert expected_batches(130, [3]) == ["130", "62", "130", "62", "116", "eval"]
    assert expected_batches(48, [3]) == [*["48"] * 4, *["48"] * 4, "48", "48", "20", "eval"]
