"""CIFAR-10 on a GPU, from real images: seconds to 94 % and what accuracy is reached, and a ViT to 90 %."""

import math
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any

import torch
from safetensors.torch import load_file
from scipy.special import stdtrit

from benchmarks.gpu_part import Job, Measure
from benchmarks.gpu_sheet import Row
from benchmarks.images import ARCHIVE
from studies import shipped_studies
from sweep.analysis.statistics.intervals import median_interval
from sweep.config.errors import InputError
from sweep.config.study_file import load_study
from sweep.config.trial_config import TrialConfig, build_config
from sweep.records.messages import Ending, Evaluation, Message, TrialTask
from sweep.training.data.cache import find_cache_folder
from sweep.training.loop.finish import evaluate_images
from sweep.training.loop.trial import run_trial
from sweep.training.steps.evaluation import PREDICTORS
from sweep.training.steps.setup import TrainingSetup, prepare_training

NUM_SEEDS = 10
TARGET, VIT_TARGET, VIT_SECONDS = 0.94, 0.9, 300.0
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
_VIT_RESERVE_SECONDS = 150  # of the part


@dataclass(frozen=True)
class Trained:
    """One seed. Accuracies are by what they were measured on and how the model was asked: ``val_flip``."""

    seconds_to_target: float  # of training, until the evaluation that reached it; infinite where none did
    accuracies: dict[str, float]
    measured: dict[str, float | int]


def fast(job: Job) -> Iterator[Row]:
    """Every seed with compile, then as many without as there is time for; each is evaluated in two ways."""
    found: dict[bool, list[Trained]] = {True: [], False: []}
    longest = 0.0
    for is_compiled, seed in product(found, range(1, 1 + job.setting.pick(NUM_SEEDS, 2))):
        before = job.seconds_left
        if before < longest + job.setting.pick(_VIT_RESERVE_SECONDS, 0):
            break
        found[is_compiled].append(_train_fast(job, seed, is_compiled))
        longest = max(longest, before - job.seconds_left)
        print(f"seed {seed} compiled={is_compiled}: {found[is_compiled][-1]}", flush=True)
    yield from fast_rows(found)


def fast_rows(found: dict[bool, list[Trained]]) -> Iterator[Row]:
    """What the seeds say together; accuracies are those of the seeds with compile."""
    for is_compiled, trained in found.items():
        how = "with compile" if is_compiled else "without compile"
        reached = [each.seconds_to_target for each in trained if math.isfinite(each.seconds_to_target)]
        middle = median_interval(reached)
        yield Row(
            f"cifar10_fast {how}: median train seconds to 94 % validation accuracy",
            middle.median if reached else None,
            interval=(middle.low, middle.high) if len(reached) > 1 else None,
            n=len(trained),
            least_n=NUM_SEEDS,
            note=f"reached by {len(reached)} of {len(trained)}",
            facts={"seeds": [vars(each) for each in trained]},
        )
    compiling = [float(each.measured["compile_seconds"]) for each in found[True]]
    if compiling:
        yield Row("cifar10_fast: median seconds of compiling beside that", median(compiling), n=len(compiling))
    for name, what in (("val", "validation"), ("test", "test")):
        for views, how in (("none", ""), ("flip", ", mirror images averaged")):
            values = [each.accuracies[f"{name}_{views}"] for each in found[True]]
            target = TARGET if (name, views) == ("val", "none") else None
            yield _mean_row(f"cifar10_fast: mean {what} accuracy{how}", values, target)


def _mean_row(question: str, values: list[float], target: float | None) -> Row:
    # the interval of a mean by Student's t distribution
    n = len(values)
    if n < 2:
        return Row(question, values[0] if n else None, target, "higher", n=n, least_n=NUM_SEEDS)
    middle = mean(values)
    half = float(stdtrit(n - 1, 0.975)) * stdev(values) / math.sqrt(n)
    return Row(question, middle, target, "higher", (middle - half, middle + half), n, NUM_SEEDS)


def vit(job: Job) -> Iterator[Row]:
    """A ViT from scratch until 90 %, on the clock of the wall, with everything before its first step."""
    values = _VIT | (_TINY_VIT if job.setting.is_tiny else {})
    config = build_config(_base("cifar10_vit", job) | values, "benchmark")
    target, began = config.budget.target_accuracy or 0.0, time.monotonic()
    best, seconds = 0.0, None
    for message in run_trial(TrialTask(number=0, config=config, device=str(job.setting.device))):
        if isinstance(message, Evaluation):
            best = max(best, message.val_accuracy)
            seconds = time.monotonic() - began if seconds is None and best >= target else seconds
        if job.seconds_left <= 0:
            break
    yield Row(
        "ViT-tiny from scratch: seconds on the wall to 90 % validation accuracy",
        seconds,
        VIT_SECONDS,
        note=f"the best evaluation was {100 * best:.1f} %",
        facts={"config": config.model_dump(mode="json", by_alias=True), "best": best},
    )


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


def _fast_config(job: Job, seed: int, is_compiled: bool) -> TrialConfig:
    values = _FAST | {"precision.compile": is_compiled} | (_TINY if job.setting.is_tiny else {})
    return build_config(_base("cifar10_fast", job) | values | {"seed": seed}, "benchmark")


def _train_fast(job: Job, seed: int, is_compiled: bool) -> Trained:
    config, device = _fast_config(job, seed, is_compiled), job.setting.device
    if config.precision.compile:
        torch.compiler.reset()  # as in a process of its own
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "weights.safetensors"
        *said, ending = run_trial(TrialTask(number=0, config=config, device=str(device), weights_path=str(weights)))
        if not isinstance(ending, Ending) or ending.outcome != "complete":
            raise RuntimeError(f"the trial ended otherwise: {ending}")
        setup = prepare_training(config, device)
        setup.model.load_state_dict(load_file(weights, device=str(device)))
    return Trained(_seconds_to(TARGET, said), dict(_accuracies(setup)), ending.measurements)


def _seconds_to(target: float, messages: list[Message]) -> float:
    evaluations = [each for each in messages if isinstance(each, Evaluation)]
    return next((each.train_seconds for each in evaluations if each.val_accuracy >= target), math.inf)


def _accuracies(setup: TrainingSetup) -> Iterator[tuple[str, float]]:
    splits = {"val": setup.splits.validation, "test": setup.splits.read_test()}
    with torch.no_grad():
        for split, images in splits.items():
            batches_of = setup.batches_of(images)
            for name, predict in PREDICTORS.items():
                yield f"{split}_{name}", evaluate_images(replace(setup, predict=predict), batches_of)[1]


MEASURES: dict[str, Measure] = {"fast": fast, "vit": vit}
