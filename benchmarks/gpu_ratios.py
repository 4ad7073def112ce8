"""Two arms on a GPU, in turn in one process: the input path, whole trainings, and what watching them costs."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from statistics import median
from typing import Any

import numpy as np
import torch

from benchmarks import hand_loop, input_path, monitor_cost, noise_cost
from benchmarks.gpu_part import Job, Measure
from benchmarks.gpu_sheet import Row
from benchmarks.harness import MIN_PAIRS, Arms, ArmsDifferError, Benchmark, Setting, measure
from benchmarks.images import cifar_images, offer
from benchmarks.mfu import peak_flops, training_flops
from benchmarks.trials import Trained, material, train

_DATA = "benchmark_images"
_VALIDATION = 2_000
_LR = 0.02  # small, because a step is measured and not an accuracy
MFU_TARGETS = {"resnet18": 0.35, "vit_small": 0.45}


def _values(setting: Setting, model: str, micro: int, epochs: int) -> dict[str, Any]:
    num_train, num_validation = setting.pick(48_000, 16), setting.pick(_VALIDATION, 8)
    images, source = cifar_images(num_train + num_validation, setting)
    rows = np.arange(len(images))
    offer(f"{_DATA}_{source}", images.pick(rows[:num_train]), images.pick(rows[num_train:]))
    return {
        "model.name": model,
        "data.name": f"{_DATA}_{source}",
        "batch.micro": setting.pick(micro, 8),
        "optimizer.lr": _LR,
        "budget.epochs": setting.pick(epochs, 1),
        "precision.dtype": "bf16",
    }


@contextmanager
def _step(model: str, micro: int, best: dict[str, Any], setting: Setting) -> Iterator[Arms]:
    """A trial in its fastest settings against a plain loop: autocast, channels first, eager."""
    values = _values(setting, model, micro, epochs=2)
    values_of_ours = {**values, **best, "precision.compile": setting.device.type == "cuda"}
    shared = material(values, setting.device)
    epochs, count = int(values["budget.epochs"]), len(shared.labels)
    trials: list[Trained] = []
    losses: list[float] = []

    def ours(_pair: int) -> float:
        if values_of_ours["precision.compile"]:
            torch.compiler.reset()  # as in a process of its own
        trials.append(train(values_of_ours, setting.device))
        return trials[-1].images_per_second

    def theirs(_pair: int) -> float:
        seconds, means = hand_loop.hand_loop(shared, epochs)
        losses.append(means[-1])
        return epochs * count / seconds

    def check() -> dict[str, Any]:
        last = trials[-1].evaluations[-1].train_loss
        if not setting.is_tiny and not abs(last - losses[-1]) <= 0.1 * losses[-1]:
            raise ArmsDifferError(f"training losses differ: {last} and {losses[-1]}")
        size = min(count, 64)
        flops = training_flops(shared.model(), shared.images[:size], shared.labels[:size])
        speed, peak = median(trial.images_per_second for trial in trials[1:] or trials), peak_flops(setting.device)
        utilisation = flops * speed / peak if peak else None
        return {"last_loss": last, "their_last_loss": losses[-1], "flops_per_image": flops, "mfu": utilisation}

    yield Arms(ours, theirs, check, {"micro": values["batch.micro"], "best": best, "images": count})


@contextmanager
def _data_wait(setting: Setting) -> Iterator[Arms]:
    """Both figures come from one trial with random crops and flips: its wait for data, and its training time."""
    values = {
        **_values(setting, "resnet18", 512, epochs=2),
        "data.augment": "crop_flip",
        "precision.channels_last": True,
    }

    @cache
    def measured(_pair: int) -> dict[str, float | int]:
        return train(values, setting.device).measured

    yield Arms(
        lambda pair: float(measured(pair)["data_wait_seconds"]),
        lambda pair: float(measured(pair)["train_seconds"]),
        facts={"micro": values["batch.micro"]},
    )


def _resnet18(setting: Setting) -> AbstractContextManager[Arms]:
    return _step("resnet18", 512, {"precision.channels_last": True}, setting)


def _vit_small(setting: Setting) -> AbstractContextManager[Arms]:
    return _step("vit_small", 512, {}, setting)


# What decides most comes first.
BENCHMARKS: dict[str, Benchmark] = {
    "input": input_path.BENCHMARK._replace(target=200.0, num_pairs=MIN_PAIRS),
    "resnet18": Benchmark(
        "resnet18", "images/s, ResNet-18, over a plain bf16 loop", "images/s", "higher", 2.0, _resnet18, MIN_PAIRS
    ),
    "vit_small": Benchmark(
        "vit_small", "images/s, ViT-S/4, over a plain bf16 loop", "images/s", "higher", 1.5, _vit_small, MIN_PAIRS
    ),
    "wait": Benchmark(
        "wait", "data wait over training time, ResNet-18", "seconds", "lower", 0.02, _data_wait, MIN_PAIRS
    ),
    "harness": hand_loop.BENCHMARK._replace(target=1.01, num_pairs=9),
    "noise": noise_cost.BENCHMARK._replace(target=1.02, num_pairs=MIN_PAIRS),
    "monitor": monitor_cost.BENCHMARK._replace(target=1.01, num_pairs=21),
}


def _ratio(name: str, benchmark: Benchmark, job: Job) -> Iterator[Row]:
    result = measure(benchmark, job.setting, 1 if job.setting.is_tiny else None)
    middle, facts = result.interval, {**result.facts, "ours": result.ours, "theirs": result.theirs}
    yield Row(
        benchmark.question,
        middle.median,
        benchmark.target,
        benchmark.better,
        (middle.low, middle.high) if middle.n > 1 else None,
        n=middle.n,
        least_n=MIN_PAIRS,
        facts=facts | {"unit": benchmark.unit},
    )
    if name in MFU_TARGETS:
        used = facts["mfu"]
        note = "" if used else "what this device could compute is not known"
        yield Row(f"MFU of {name}", used, MFU_TARGETS[name], "higher", n=middle.n, note=note)


MEASURES: dict[str, Measure] = {name: partial(_ratio, name, benchmark) for name, benchmark in BENCHMARKS.items()}
