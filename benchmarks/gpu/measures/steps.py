"""Whole trainings on a GPU against plain loops, in turn in one process: images/s and model FLOPs utilization.

The plain loops are eager, channels first, on images that were normalized before: one in fp32 as torch sets it by
default (convolutions may use TF32, matrix products not), one in bf16 by autocast.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.found import Found, Job, Measure, Sample, find_median
from benchmarks.hand_loop import hand_loop
from benchmarks.harness import ArmsDifferError, Setting
from benchmarks.images import cifar_images, offer
from benchmarks.mfu import peak_flops, training_flops
from benchmarks.trials import Material, material, train

_DATA = "benchmark_images"
_VALIDATION = 2_000
_LR = 0.02  # small, because a step is measured and not an accuracy
_ROUNDS = 5
_EPOCHS = 2
_MAX_APART = 0.1  # relative, of the mean loss of the last epoch: formats round differently
_BEST: dict[str, dict[str, Any]] = {"resnet18": {"precision.channels_last": True}, "vit_small": {}}
_NUM_IMAGES = {"resnet18": 48_000, "vit_small": 24_000}


def make_values(setting: Setting, model: str, micro: int, epochs: int, num_train: int = 48_000) -> dict[str, Any]:
    """A configuration in bf16 on CIFAR-10 or, where the archive is missing, on noise of the same shape."""
    num_train, num_validation = setting.pick(num_train, 16), setting.pick(_VALIDATION, 8)
    images, source = cifar_images(num_train + num_validation, setting)
    rows = np.arange(len(images))
    name = f"{_DATA}_{source}_{num_train}"
    offer(name, images.pick(rows[:num_train]), images.pick(rows[num_train:]))
    return {
        "model.name": model,
        "data.name": name,
        "batch.micro": setting.pick(micro, 8),
        "optimizer.lr": _LR,
        "budget.epochs": setting.pick(epochs, 1),
        "precision.dtype": "bf16",
    }


def collect_rounds(model: str, job: Job) -> Iterator[Sample]:
    """Images/s of the three arms, round by round after one that warms up; last what they were compared by.

    Raises:
        ArmsDifferError: the training losses differ.
    """
    setting, losses = job.setting, dict[str, float]()
    arms = _make_arms(model, setting, losses)
    num_kept = sum("ours" in sample for sample in job.kept)
    for turn in range(-1, setting.pick(max(1, _ROUNDS - num_kept), 1)):
        names = list(arms)[turn % 3 :] + list(arms)[: turn % 3]  # each goes first in turn
        sample = {name: arms[name]() for name in names}
        print(f"{model}, round {turn}: {sample}", flush=True)
        if turn >= 0:
            yield sample
        job.require()
    if not setting.is_tiny:
        _check_losses(losses)
    yield {"facts": _describe(model, setting, losses)}


def answer_rounds(model: str, samples: Sequence[Sample]) -> dict[str, Found]:
    """Ratios to both plain loops, and the utilization where the peak of the device is known."""
    rounds = [sample for sample in samples if "ours" in sample]
    facts: dict[str, Any] = next((sample["facts"] for sample in samples if "facts" in sample), {})
    rows = {
        f"step_{model}": find_median([each["ours"] / each["fp32"] for each in rounds], facts=facts),
        f"step_{model}_bf16": find_median([each["ours"] / each["bf16"] for each in rounds]),
        f"mfu_{model}": Found(n=0, note="" if facts else "the piece has not ended"),
    }
    if facts.get("peak_flops"):
        share = facts["flops_per_image"] / facts["peak_flops"]
        rows[f"mfu_{model}"] = find_median([share * each["ours"] for each in rounds])
    return rows


def _make_arms(model: str, setting: Setting, losses: dict[str, float]) -> dict[str, Callable[[], float]]:
    values = make_values(setting, model, 512, _EPOCHS, _NUM_IMAGES[model])
    shared = {dtype: material({**values, "precision.dtype": dtype}, setting.device) for dtype in ("fp32", "bf16")}
    is_compiled = setting.device.type == "cuda"

    def ours() -> float:
        if is_compiled:
            torch.compiler.reset()  # as in a process of its own
        trained = train({**values, **_BEST[model], "precision.compile": is_compiled}, setting.device)
        losses["ours"] = trained.evaluations[-1].train_loss
        return trained.images_per_second

    def plain(dtype: str) -> float:
        _set_defaults(setting.device)
        epochs = int(values["budget.epochs"])
        seconds, means = hand_loop(shared[dtype], epochs)
        losses[dtype] = means[-1]
        return epochs * len(shared[dtype].labels) / seconds

    return {"ours": ours, "fp32": partial(plain, "fp32"), "bf16": partial(plain, "bf16")}


def _set_defaults(device: torch.device) -> None:
    # a trial sets both; these are torch's own
    if device.type == "cuda":
        backends: Any = torch.backends  # torch leaves these attributes untyped
        backends.cuda.matmul.fp32_precision = "ieee"
        backends.cudnn.conv.fp32_precision = "tf32"
        backends.cudnn.rnn.fp32_precision = "tf32"  # a getter of torch raises where the two differ


def _check_losses(losses: dict[str, float]) -> None:
    if any(not abs(loss - losses["fp32"]) <= _MAX_APART * losses["fp32"] for loss in losses.values()):
        raise ArmsDifferError(f"training losses differ: {losses}")


def _describe(model: str, setting: Setting, losses: dict[str, float]) -> dict[str, Any]:
    values = make_values(setting, model, 512, _EPOCHS, _NUM_IMAGES[model])
    shared: Material = material(values, setting.device)
    size = min(len(shared.labels), 64)
    flops = training_flops(shared.model(), shared.images[:size], shared.labels[:size])
    settings = {"micro": values["batch.micro"], "images": len(shared.labels), "data": values["data.name"]}
    return {**settings, "losses": losses, "flops_per_image": flops, "peak_flops": peak_flops(setting.device)}


MEASURES = {f"step_{model}": Measure(partial(collect_rounds, model), partial(answer_rounds, model)) for model in _BEST}
