"""Seconds to 94 % on CIFAR-10: the fastest public recipe in a loop of its own, and the same network in a trial.

Both arms train on the 50,000 training images of the archive and are judged on its 10,000 test images, as all published
records are, by the mean over seeds of the accuracy with mirror images averaged; nothing is chosen on them. The images
are compressed anew, so that 94 % is harder than on the original pixels; therefore each arm has lengths, and counts with
the shortest one that reaches 94 %. Compilation, the computation of the whitening and evaluations are in the seconds of
neither arm.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import mean, median
from typing import Any

import torch
from torch import nn

from benchmarks.gpu.found import Found, Job, Measure, Sample, find_mean, find_median
from benchmarks.gpu.measures import speed_recipe
from benchmarks.gpu.measures.public_loop import PublicLoop, normalize_images
from benchmarks.gpu.measures.speed_recipe import SpeedNetwork, SpeedOptimizer
from benchmarks.images import cifar_splits, offer
from benchmarks.trials import train
from sweep.config.recipe_sections import ModelSection
from sweep.config.tables.datasets import ImageShape
from sweep.config.tables.models import MODELS, ModelEntry
from sweep.config.tables.recipes import OPTIMIZERS, OptimizerEntry
from sweep.training.data.images import ArrayImages

NUM_SEEDS = 10
TARGET = 0.94
LENGTHS = (8, 9, 10, 12, 16)  # epochs
_NUM_LOOKS = 3  # seeds after which a length that is clearly too short is left
_CLEARLY = 0.004  # below the target: three standard errors of the mean of three seeds that scatter by 0.2 points
_TINY_BATCH = 16
_ARMS = ("public", "ours")
Train = Callable[[int, int], tuple[float, float]]  # epochs, seed -> seconds of training, accuracy


def collect_trainings(job: Job) -> Iterator[Sample]:
    """Trainings of both arms in turn, until each has its shortest length or has tried all."""
    arms = _make_arms(job)
    lengths, num_seeds = ((1,), 2) if job.setting.is_tiny else (LENGTHS, NUM_SEEDS)
    target = 0.0 if job.setting.is_tiny else TARGET
    samples, longest = list(job.kept), 0.0
    while open_arms := [arm for arm in _ARMS if choose_next(_of(samples, arm), lengths, num_seeds, target)]:
        for arm in open_arms:
            job.require(longest)
            before = job.seconds_left
            epochs, seed = choose_next(_of(samples, arm), lengths, num_seeds, target) or (0, 0)
            seconds, accuracy = arms[arm](epochs, seed)
            sample = {"arm": arm, "epochs": epochs, "seed": seed, "seconds": seconds, "accuracy": accuracy}
            samples.append(sample | {"target": target, "num_seeds": num_seeds})
            print(samples[-1], flush=True)
            yield samples[-1]
            longest = max(longest, before - job.seconds_left) if len(samples) > len(_ARMS) else 0.0


def choose_next(
    samples: Sequence[Sample], lengths: Sequence[int], num_seeds: int, target: float
) -> tuple[int, int] | None:
    """Epochs and seed of an arm's next training; None when a length has reached the target or none is left."""
    for epochs in lengths:
        values = [sample["accuracy"] for sample in samples if sample["epochs"] == epochs]
        if len(values) >= num_seeds and mean(values) >= target:
            return None
        is_too_short = len(values) >= min(_NUM_LOOKS, num_seeds) and mean(values) < target - _CLEARLY
        if len(values) < num_seeds and not is_too_short:
            return epochs, len(values) + 1
    return None


def answer(samples: Sequence[Sample]) -> dict[str, Found]:
    """The ratio of the medians, and what it consists of. Only whole lengths that reached the target count."""
    shortest = {arm: _find_shortest(_of(samples, arm)) for arm in _ARMS}
    notes = {arm: _describe(_of(samples, arm)) for arm in _ARMS}
    seconds = {arm: [sample["seconds"] for sample in shortest[arm]] for arm in _ARMS}
    rows = {f"recipe_{arm}": find_median(seconds[arm], note=notes[arm]) for arm in _ARMS}
    rows["recipe_accuracy"] = find_mean([sample["accuracy"] for sample in shortest["ours"]], note=notes["ours"])
    note = f"ours: {notes['ours']}; public: {notes['public']}"
    n = min(len(each) for each in seconds.values())
    ratio = median(seconds["ours"]) / median(seconds["public"]) if n else None
    rows["recipe_ratio"] = Found(measured=ratio, n=n, note=note)
    return rows


def _of(samples: Sequence[Sample], arm: str) -> list[Sample]:
    return [sample for sample in samples if sample["arm"] == arm]


def _find_shortest(samples: Sequence[Sample]) -> list[Sample]:
    for epochs in sorted({sample["epochs"] for sample in samples}):
        found = [sample for sample in samples if sample["epochs"] == epochs]
        is_whole = len(found) >= found[0]["num_seeds"]
        if is_whole and mean(sample["accuracy"] for sample in found) >= found[0]["target"]:
            return found
    return []


def _describe(samples: Sequence[Sample]) -> str:
    texts = []
    for epochs in sorted({sample["epochs"] for sample in samples}):
        values = [sample["accuracy"] for sample in samples if sample["epochs"] == epochs]
        texts.append(f"{epochs} {'epoch' if epochs == 1 else 'epochs'} {100 * mean(values):.2f} % (n={len(values)})")
    return ", ".join(texts)


# ---------------------------------------------------------------------- the arms


def _make_arms(job: Job) -> dict[str, Train]:
    train_images, test_images = cifar_splits(job.setting)
    return {
        "public": PublicLoop(train_images, test_images, job.setting.device, _choose_batch(job)),
        "ours": partial(_train_ours, _offer_network(train_images, test_images, _choose_batch(job)), job),
    }


def _choose_batch(job: Job) -> int:
    return job.setting.pick(speed_recipe.BATCH, _TINY_BATCH)


def _offer_network(train_images: ArrayImages, test_images: ArrayImages, batch: int) -> str:
    # as a plug-in would: the network, its optimizer, and the images under one name
    name = "benchmark_speed_recipe"
    offer(name, train_images, test_images)
    first = normalize_images(train_images, torch.device("cpu"), speed_recipe.WHITENING_IMAGES)

    def build(_section: ModelSection, shape: ImageShape) -> nn.Module:
        return SpeedNetwork(first, shape.num_classes)

    def build_optimizer(groups: list[dict[str, Any]], *_more: object) -> torch.optim.Optimizer:
        # a trial's loss is the mean over a batch
        return SpeedOptimizer(_regroup(groups, batch), is_compiled=groups[0]["params"][0].is_cuda)

    MODELS[name] = ModelEntry(build=build, has_batch_statistics=True)
    OPTIMIZERS[name] = OptimizerEntry(build=build_optimizer, groups="matrices", has_betas=False)
    return name


def _regroup(groups: list[dict[str, Any]], batch: int) -> list[dict[str, Any]]:
    # a trial groups by decay and by what is a matrix: of what is left, the head alone has more than one dimension
    filters = [each for group in groups for each in group["params"] if each.ndim == 4]
    biases = [each for group in groups for each in group["params"] if each.ndim == 1]
    head = [each for group in groups for each in group["params"] if each.ndim == 2]
    return speed_recipe.make_groups([], biases, head, filters, float(batch))


def _train_ours(name: str, job: Job, epochs: int, seed: int) -> tuple[float, float]:
    is_gpu = job.setting.device.type == "cuda"
    if is_gpu:
        torch.compiler.reset()  # as in a process of its own
    values: dict[str, Any] = {
        "model.name": name,
        "data.name": name,
        "data.augment": "crop_alternating_flip",
        "batch.micro": _choose_batch(job),
        "optimizer.name": name,
        "optimizer.lr": 1.0,
        "rules.lr": "none",
        "schedule.name": "linear",
        "schedule.warmup": 0.0,
        "budget.epochs": epochs,
        "precision.dtype": "bf16" if is_gpu else "fp32",
        "precision.channels_last": True,
        "precision.compile": is_gpu,
        "regularization.label_smoothing": speed_recipe.LABEL_SMOOTHING,
        "evaluation.tta": "flip",
        "seed": seed,
    }
    trained = train(values, job.setting.device)
    return trained.seconds, trained.evaluations[-1].val_accuracy


MEASURES = {"recipe": Measure(collect_trainings, answer)}
