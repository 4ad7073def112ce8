"""CIFAR-10 on a GPU, from real images: a ViT to 90 %, and ResNet-18 in the settings of a shipped study to 94 %."""

import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.found import Found, Job, Measure, Sample, find_mean, find_median
from benchmarks.images import ARCHIVE
from studies import shipped_studies
from sweep.config.errors import InputError
from sweep.config.study_file import load_study
from sweep.config.trial_config import build_config
from sweep.records.messages import Ending, Evaluation, Message, TrialTask
from sweep.training.data.cache import find_cache_folder
from sweep.training.loop.trial import run_trial

NUM_SEEDS = 10
TARGET, VIT_TARGET = 0.94, 0.9
# One point of the space of studies/cifar10_fast.toml, chosen beforehand; the study's base holds the rest.
_FAST = {"batch.micro": 512, "optimizer.lr": 0.1, "optimizer.weight_decay": 5e-4, "budget.epochs": 16.0}
# The base of studies/cifar10_vit.toml with what makes training from scratch longer and harder to overfit.
_VIT = {
    "batch.micro": 512,
    "optimizer.lr": 1e-3,
    "optimizer.weight_decay": 0.1,
    "data.augment": "randaugment",
    "precision.compile": True,
    "budget.target_accuracy": VIT_TARGET,
    "budget.max_epochs": 150.0,
}
_TINY = {"model.name": "resnet8", "batch.micro": 32, "budget.epochs": 1.0, "precision.compile": False}
_TINY_VIT = {"model.name": "vit_micro", "budget.target_accuracy": 0.01, "precision.compile": False}


def train_vit(job: Job) -> Iterator[Sample]:
    """Every evaluation with the seconds on the wall since the command began, everything before the first step in it.
    A training that was cut short begins anew."""
    values = _VIT | (_TINY_VIT if job.setting.is_tiny else {})
    config = build_config(_base("cifar10_vit", job) | values, "benchmark")
    target, began = config.budget.target_accuracy or 0.0, time.monotonic()
    attempt = 1 + max((sample["attempt"] for sample in job.kept), default=0)
    for message in run_trial(TrialTask(number=0, config=config, device=str(job.setting.device))):
        if isinstance(message, Evaluation):
            passed = {"seconds": time.monotonic() - began, "epoch": message.epoch}
            yield {"attempt": attempt, "target": target, "accuracy": message.val_accuracy, **passed}
            job.require()
        if isinstance(message, Ending) and message.outcome not in ("complete", "target_missed"):
            raise RuntimeError(f"the trial ended as {message.outcome}: {message.error}")


def answer_vit(samples: Sequence[Sample]) -> dict[str, Found]:
    """Minutes until the first evaluation of the last attempt that reached the target."""
    if not samples:
        return {"vit_minutes": Found(n=0)}
    last = [sample for sample in samples if sample["attempt"] == samples[-1]["attempt"]]
    reached = [sample["seconds"] / 60 for sample in last if sample["accuracy"] >= sample["target"]]
    best = max(sample["accuracy"] for sample in last)
    note = f"best of {len(last)} evaluations: {100 * best:.1f} %"
    return {"vit_minutes": Found(measured=reached[0] if reached else None, note=note)}


def train_resnet18(job: Job) -> Iterator[Sample]:
    """A training of each seed that is left, with compile, evaluated on validation and test images."""
    longest = 0.0
    for seed in range(1 + len(job.kept), 1 + job.setting.pick(NUM_SEEDS, 2)):
        job.require(longest)
        before = job.seconds_left
        yield _train_fast(job, seed)
        longest = max(longest, before - job.seconds_left)


def answer_resnet18(samples: Sequence[Sample]) -> dict[str, Found]:
    """Seconds of training until the first evaluation with 94 %, and accuracies at the end."""
    reached = [sample["seconds_to_target"] for sample in samples if sample["seconds_to_target"] is not None]
    compiling = [sample["compile_seconds"] for sample in samples if sample["compile_seconds"]]
    return {
        "resnet18_seconds": find_median(reached, note=f"reached by {len(reached)} of {len(samples)}"),
        "resnet18_compile": Found(measured=median(compiling) if compiling else None, n=len(compiling)),
        "resnet18_validation": find_mean([sample["val_accuracy"] for sample in samples]),
        "resnet18_test": find_mean([sample["test_accuracy"] for sample in samples]),
    }


def images_folder(archive: Path = ARCHIVE) -> Path:
    """The images of the archive as a folder for ``data.name = "imagefolder"``; unpacked once.

    Raises:
        InputError: there is no archive.
    """
    if not archive.is_file():
        raise InputError(f"the archive of CIFAR-10's images is not at {archive}; name it with CIFAR10_ARCHIVE.")
    place = find_cache_folder() / f"{archive.name.partition('.')[0]}-{archive.stat().st_size}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as beside, tarfile.open(archive, "r|*") as files:
            files.extractall(beside, filter="data")
            (only,) = Path(beside).iterdir()
            only.rename(place)
    return place


def _base(study: str, job: Job) -> dict[str, Any]:
    shipped = load_study(shipped_studies()[study]).base
    base = {key: value for key, value in shipped.items() if not key.startswith("budget.")}
    if job.setting.is_tiny:
        return base | {"data.name": "synthetic", "data.subset": 64, "precision.dtype": "fp32"}
    return base | {"data.name": "imagefolder", "data.root": str(images_folder())}


def _train_fast(job: Job, seed: int) -> Sample:
    values = _FAST | {"precision.compile": True} | (_TINY if job.setting.is_tiny else {})
    config = build_config(_base("cifar10_fast", job) | values | {"seed": seed}, "benchmark")
    if config.precision.compile:
        torch.compiler.reset()  # as in a process of its own
    task = TrialTask(number=0, config=config, device=str(job.setting.device), read_test=True)
    *messages, ending = run_trial(task)
    if not isinstance(ending, Ending) or ending.outcome != "complete":
        raise RuntimeError(f"the trial ended otherwise: {ending}")
    found = {key: ending.measurements[key] for key in ("compile_seconds", "val_accuracy", "test_accuracy")}
    target = 0.0 if job.setting.is_tiny else TARGET
    return {"seed": seed, "seconds_to_target": find_seconds(target, messages), **found}


def find_seconds(target: float, messages: Sequence[Message]) -> float | None:
    """Seconds of training until the first evaluation that reached ``target``."""
    evaluations = [each for each in messages if isinstance(each, Evaluation)]
    return next((each.train_seconds for each in evaluations if each.val_accuracy >= target), None)


MEASURES = {"vit": Measure(train_vit, answer_vit), "resnet18": Measure(train_resnet18, answer_resnet18)}
