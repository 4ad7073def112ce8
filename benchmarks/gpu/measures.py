"""What the pieces measure of speed and memory."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import speed
from benchmarks.datasets import cifar_images, offer, split
from benchmarks.gpu.sheet import QUESTIONS, Found, Rows
from benchmarks.harness import Arms, ArmsDifferError, Setting, benchmark, median_interval, run_pairs
from benchmarks.speed import hand_loop, material, train
from sweep.config.trial import TrialConfig, build_config
from sweep.probing.gate import MemoryRoom
from sweep.probing.memory import estimate_memory
from sweep.records.messages import Ending
from sweep.search.single import train_trial


class TimeIsOverError(Exception):
    """The time of a piece ends before its work."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Where to measure, and until when (``time.monotonic``)."""

    setting: Setting
    until: float
    page: Path | None = None  # the file for a page that the piece makes

    @property
    def seconds_left(self) -> float:
        return self.until - time.monotonic()

    def require(self, seconds: float = 0.0) -> None:
        if self.seconds_left <= seconds:
            raise TimeIsOverError(f"{max(0.0, self.seconds_left):.0f} s were left and {seconds:.0f} s are required")


# Yields the rows of a piece again and again, each time with all that was measured so far.
Measure = Callable[[Job], Iterator[Rows]]
Sample = dict[str, Any]  # one measurement of several figures


def find_median(values: Sequence[float], note: str = "", **facts: Any) -> Found:
    if not values:
        return Found(n=0, note=note, facts=facts)
    middle = median_interval(values)
    interval = (middle.low, middle.high) if len(values) > 1 else None
    facts |= {"values": list(values)}
    return Found(measured=middle.median, interval=interval, n=len(values), note=note, facts=facts)


# The plain loops are eager, channels first, on images that were normalized before: one in fp32 as torch sets it by
# default (convolutions may use TF32, matrix products not), one in bf16 by autocast.

_VALIDATION = 2_000
_LR = 0.02  # small, because a step is measured and not an accuracy
_ROUNDS = 5
_EPOCHS = 2
_MAX_APART = 0.1  # relative, of the mean loss of the last epoch: formats round differently
_STEP_BEST: dict[str, dict[str, Any]] = {"resnet18": {"precision.channels_last": True}, "vit_small": {}}
_NUM_IMAGES = {"resnet18": 48_000, "vit_small": 24_000}


def _make_values(setting: Setting, model: str, micro: int, epochs: int, num_train: int = 48_000) -> dict[str, Any]:
    """A configuration in bf16 on CIFAR-10 or, where the archive is missing, on noise of the same shape."""
    num_train, num_validation = setting.pick(num_train, 16), setting.pick(_VALIDATION, 8)
    images, source = cifar_images(num_train + num_validation, is_tiny=setting.is_tiny)
    name = f"benchmark_images_{source}_{num_train}"
    offer(name, *split(images, num_train))
    return {
        "model.name": model, "data.name": name, "batch.micro": setting.pick(micro, 8), "optimizer.lr": _LR,
        "budget.epochs": setting.pick(epochs, 1), "precision.dtype": "bf16",
    }  # fmt: skip


def _measure_steps(model: str, job: Job) -> Iterator[Rows]:
    """Images/s of the three arms, round by round after one that warms up; last the utilization of the device."""
    setting, losses, rounds = job.setting, dict[str, float](), list[Sample]()
    arms = _make_step_arms(model, setting, losses)
    for turn in range(-1, setting.pick(_ROUNDS, 1)):
        job.require()
        names = list(arms)[turn % 3 :] + list(arms)[: turn % 3]  # each goes first in turn
        sample = {name: arms[name]() for name in names}
        print(f"{model}, round {turn}: {sample}", flush=True)
        if turn >= 0:
            rounds.append(sample)
            yield compare_steps(model, rounds)
    apart = [loss for loss in losses.values() if not abs(loss - losses["fp32"]) <= _MAX_APART * losses["fp32"]]
    if apart and not setting.is_tiny:
        raise ArmsDifferError(f"training losses differ: {losses}")
    values = _make_values(setting, model, 512, _EPOCHS, _NUM_IMAGES[model])
    shared = material(values, setting.device)
    size = min(len(shared.labels), 64)
    flops = count_training_flops(shared.model(), shared.images[:size], shared.labels[:size])
    peak = find_peak_of(torch.cuda.get_device_name(setting.device)) if setting.device.type == "cuda" else None
    facts = {"micro": values["batch.micro"], "images": len(shared.labels), "data": values["data.name"]}
    yield compare_steps(model, rounds, flops / peak if peak else None, losses=losses, **facts)


def compare_steps(model: str, rounds: Sequence[Sample], share: float | None = None, **facts: Any) -> dict[str, Found]:
    """Ratios to both plain loops; and the utilization, where ``share`` is what an image takes of a second's peak."""
    utilizations = [] if share is None else [share * each["ours"] for each in rounds]
    return {
        f"step_{model}": find_median([each["ours"] / each["fp32"] for each in rounds], **facts),
        f"step_{model}_bf16": find_median([each["ours"] / each["bf16"] for each in rounds]),
        f"mfu_{model}": find_median(utilizations),
    }


def _make_step_arms(model: str, setting: Setting, losses: dict[str, float]) -> dict[str, Callable[[], float]]:
    values = _make_values(setting, model, 512, _EPOCHS, _NUM_IMAGES[model])
    shared = {dtype: material({**values, "precision.dtype": dtype}, setting.device) for dtype in ("fp32", "bf16")}
    is_compiled = setting.device.type == "cuda"

    def ours() -> float:
        if is_compiled:
            torch.compiler.reset()  # as in a process of its own
        trained = train({**values, **_STEP_BEST[model], "precision.compile": is_compiled}, setting.device)
        losses["ours"] = trained.evaluations[-1].train_loss
        return trained.images_per_second

    def plain(dtype: str) -> float:
        if is_compiled:  # a trial sets these; here they are torch's own
            backends: Any = torch.backends  # torch leaves these attributes untyped
            backends.cuda.matmul.fp32_precision = "ieee"
            backends.cudnn.conv.fp32_precision = "tf32"
            backends.cudnn.rnn.fp32_precision = "tf32"  # a getter of torch raises where the two differ
        epochs = int(values["budget.epochs"])
        seconds, means = hand_loop(shared[dtype], epochs)
        losses[dtype] = means[-1]
        return epochs * len(shared[dtype].labels) / seconds

    return {"ours": ours, "fp32": partial(plain, "fp32"), "bf16": partial(plain, "bf16")}


# Dense bf16 with 32-bit accumulation, in FLOP/s, from NVIDIA's data sheets; by words of the device's name, of which the
# more telling come first.
_PEAKS = {
    "H200": 989e12, "GH200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12, "A100": 312e12,
    "L40S": 362e12, "L40": 181e12, "L4": 121e12,
}  # fmt: skip


def count_training_flops(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """FLOPs of the forward and backward pass of one image; a multiplication and an addition are two."""
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(cross_entropy(model(images), labels))
    model.zero_grad(set_to_none=True)
    return float(counter.get_total_flops()) / len(images)


def find_peak_of(name: str) -> float | None:
    words = set(re.split(r"[^A-Za-z0-9]+", name))
    return next((peak for known, peak in _PEAKS.items() if set(known.split()) <= words), None)


@benchmark("wait", QUESTIONS["wait"].text, "seconds", "lower", 0.02, 5)
def _wait(setting: Setting) -> Iterator[Arms]:
    """Both figures come from one trial with random crops and flips: its wait for data, and its training time."""
    values = _make_values(setting, "resnet18", 512, epochs=2)
    values |= {"data.augment": "crop_flip", "precision.channels_last": True}

    @cache
    def measured(_pair: int) -> dict[str, float | int]:
        return train(values, setting.device).measured

    yield Arms(
        lambda pair: float(measured(pair)["data_wait_seconds"]),
        lambda pair: float(measured(pair)["train_seconds"]),
        facts={"micro": values["batch.micro"]},
    )


# As many pairs as their questions require.
_RATIOS = {
    "input": speed.input_path._replace(num_pairs=5), "harness": speed.harness._replace(num_pairs=9),
    "monitor": speed.monitor_cost._replace(num_pairs=21), "wait": _wait,
    "noise": speed.noise_scale._replace(num_pairs=5),
}  # fmt: skip


def _measure_ratios(name: str, job: Job) -> Iterator[Rows]:
    """The ratio of both arms, pair by pair; last with what they were compared by."""
    benchmark, ratios = _RATIOS[name], list[float]()
    with benchmark.prepare(job.setting) as arms:
        for ours, theirs in run_pairs(benchmark, arms, job.setting.pick(benchmark.num_pairs, 1)):
            ratios.append(ours / theirs)
            yield {name: find_median(ratios)}
            job.require()
        facts = {**arms.facts, **arms.check(), "unit": benchmark.unit}
        yield {name: find_median(ratios, "images: noise" if facts.get("images") == "noise" else "", **facts)}


# Sizes of cards, in GiB, from a notebook's to the largest: on which of them is refused what fits?
CARDS = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 141)
_MEMORY_FAST = {"precision.dtype": "bf16", "precision.channels_last": True}
_LESS = {"precision.checkpointing": True}
_KINDS: tuple[tuple[dict[str, Any], tuple[int, ...]], ...] = (
    ({"model.name": "resnet18"}, (256, 1024, 4096)), ({"model.name": "resnet18", **_MEMORY_FAST}, (512, 2048, 8192)),
    ({"model.name": "resnet18", **_MEMORY_FAST, **_LESS}, (1024, 4096)),
    ({"model.name": "resnet18", "precision.dtype": "fp16", "optimizer.name": "adamw"}, (512, 2048)),
    ({"model.name": "resnet50"}, (128, 512)), ({"model.name": "resnet50", **_MEMORY_FAST}, (256, 1024, 2048)),
    ({"model.name": "resnet50", **_MEMORY_FAST, "batch.accumulation": 2, "optimizer.name": "lamb"}, (512,)),
    ({"model.name": "resnet50", **_MEMORY_FAST, **_LESS}, (512, 2048)),
    ({"model.name": "vit_small", "optimizer.name": "adamw"}, (128, 512)),
    ({"model.name": "vit_small", "optimizer.name": "adamw", "precision.dtype": "bf16"}, (256, 1024, 2048)),
    ({"model.name": "vit_small", "optimizer.name": "adamw", "precision.dtype": "fp16"}, (512,)),
    ({"model.name": "vit_small", "optimizer.name": "adamw", "precision.dtype": "bf16", **_LESS}, (1024, 4096)),
)  # fmt: skip
# Every kind's smallest first, so that a run that is cut short has seen all kinds.
CONFIGURATIONS: tuple[dict[str, Any], ...] = tuple(
    {**values, "batch.micro": sizes[turn]} for turn in range(3) for values, sizes in _KINDS if turn < len(sizes)
)


def _measure_forecasts(job: Job) -> Iterator[Rows]:
    """Trains every configuration twice: free, and within the least memory at which it would be admitted. A
    configuration that does not complete is kept with its outcome."""
    slowest, seen = 0.0, list[Sample]()
    for values in CONFIGURATIONS[: job.setting.pick(len(CONFIGURATIONS), 2)]:
        before = job.seconds_left
        job.require(1.5 * slowest)
        seen.append(_see(values, job))
        slowest = max(slowest, before - job.seconds_left)
        yield judge_forecasts(seen)


def judge_forecasts(samples: Sequence[Sample]) -> dict[str, Found]:
    seen = [sample for sample in samples if "outcome" not in sample]
    others = "; ".join(f"{sample['outcome']}: {sample['values']}" for sample in samples if "outcome" in sample)
    if not seen:
        return {f"memory_{name}": Found(n=0, note=others) for name in ("median", "worst", "admitted", "refused")}
    errors, n = [abs(each["forecast_bytes"] / each["recorded_bytes"] - 1) for each in seen], len(seen)
    tried = [each["is_edge_passed"] for each in seen if each["is_edge_passed"] is not None]
    # what the allocator took from the device is what a card must have
    fitting = [(each, card << 30) for card in CARDS for each in seen if each["reserved_bytes"] <= card << 30]
    refused = sum(each["forecast_bytes"] > MemoryRoom(card, 0).limit_bytes for each, card in fitting)
    edge, share = tried.count(False) if tried else None, refused / len(fitting) if fitting else None
    return {
        "memory_median": Found(measured=median(errors), n=n, note=others, facts={"samples": list(seen)}),
        "memory_worst": Found(measured=max(errors), n=n),
        "memory_admitted": Found(measured=edge, n=len(tried), note="trained within forecast / 0.9"),
        "memory_refused": Found(measured=share, n=n, note=f"{len(fitting)} cases"),
    }


def _see(values: dict[str, Any], job: Job) -> Sample:
    device, micro = job.setting.device, job.setting.pick(values["batch.micro"], 4)
    num_images = micro * values.get("batch.accumulation", 1)
    settings = {"data.name": "synthetic", "data.subset": num_images, "budget.steps": 1, "optimizer.lr": 0.01}
    config = build_config(settings | values | {"batch.micro": micro}, "benchmark")
    predicted = estimate_memory(config, device_type=device.type).peak_memory_bytes
    ending = _train_within(config, device)
    if ending.outcome != "complete":
        return {"values": values, "outcome": ending.outcome, "error": ending.error}
    recorded, is_passed = int(ending.measurements["peak_memory_bytes"]), None
    reserved = recorded
    if device.type == "cuda":
        reserved = torch.cuda.max_memory_reserved(device)
        is_passed = _train_within(config, device, int(predicted / 0.9)).outcome == "complete"
    return {
        "values": values, "forecast_bytes": predicted, "recorded_bytes": recorded, "reserved_bytes": reserved,
        "is_edge_passed": is_passed,
    }  # fmt: skip


def _train_within(config: TrialConfig, device: torch.device, limit_bytes: int | None = None) -> Ending:
    # the allocator gives no more than the limit
    if device.type != "cuda":
        return train_trial(config, device=str(device))
    installed = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    torch.cuda.set_per_process_memory_fraction(min(1.0, (limit_bytes or installed) / installed), device)
    try:
        return train_trial(config, device=str(device))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


SPEED_MEASURES: dict[str, Measure] = {
    **{name: partial(_measure_ratios, name) for name in _RATIOS},
    **{f"step_{model}": partial(_measure_steps, model) for model in _STEP_BEST},
    "memory": _measure_forecasts,
}
