"""What the pieces measure of speed and memory: samples that are kept, and the rows that are computed from them."""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import speed
from benchmarks.datasets import cifar_images, offer, split
from benchmarks.gpu.plan import QUESTIONS
from benchmarks.gpu.sheet import Found, Sample
from benchmarks.harness import Arms, ArmsDifferError, Setting, benchmark, median_interval, run_pairs
from benchmarks.speed import hand_loop, material, train
from sweep.analysis.statistics import t_quantile
from sweep.config.trial import TrialConfig, build_config
from sweep.probing.gate import MemoryRoom
from sweep.probing.memory import estimate_memory
from sweep.records.messages import Ending
from sweep.search.single import train_trial


class TimeIsOverError(Exception):
    """The time of a piece ends before its work; what it kept is enough to continue."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Where to measure, until when (``time.monotonic``), and the samples that an earlier run of the piece kept."""

    setting: Setting
    until: float
    kept: Sequence[Sample] = ()
    page: Path | None = None  # the file for a page that the piece makes

    @property
    def seconds_left(self) -> float:
        return self.until - time.monotonic()

    def require(self, seconds: float = 0.0) -> None:
        if self.seconds_left <= seconds:
            raise TimeIsOverError(f"{max(0.0, self.seconds_left):.0f} s were left and {seconds:.0f} s are required")


class Measure(NamedTuple):
    """``collect`` yields each sample as soon as it is there, those of ``Job.kept`` not again; ``answer`` computes the
    rows by the names of their questions from any number of samples."""

    collect: Callable[[Job], Iterator[Sample]]
    answer: Callable[[Sequence[Sample]], dict[str, Found]]


def bind_to_this_process(code: str) -> list[str]:
    """A command that runs ``code`` in a new Python, which the kernel ends with this process."""
    begin = f"from sweep.training.processes import die_with_parent; die_with_parent({os.getpid()})"
    return [sys.executable, "-c", f"{begin}; {code}"]


def find_median(values: Sequence[float], **more: Any) -> Found:
    if not values:
        return Found(n=0, **more)
    middle = median_interval(values)
    interval = (middle.low, middle.high) if len(values) > 1 else None
    return Found(measured=middle.median, interval=interval, n=len(values), **more)


def find_mean(values: Sequence[float], **more: Any) -> Found:
    if not values:
        return Found(n=0, **more)
    middle = mean(values)
    if len(values) < 2:
        return Found(measured=middle, **more)
    half = t_quantile(0.95, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return Found(measured=middle, interval=(middle - half, middle + half), n=len(values), **more)


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


def _collect_rounds(model: str, job: Job) -> Iterator[Sample]:
    """Images/s of the three arms, round by round after one that warms up; last what they were compared by."""
    setting, losses = job.setting, dict[str, float]()
    arms = _make_step_arms(model, setting, losses)
    num_kept = sum("ours" in sample for sample in job.kept)
    for turn in range(-1, setting.pick(max(1, _ROUNDS - num_kept), 1)):
        names = list(arms)[turn % 3 :] + list(arms)[: turn % 3]  # each goes first in turn
        sample = {name: arms[name]() for name in names}
        print(f"{model}, round {turn}: {sample}", flush=True)
        if turn >= 0:
            yield sample
        job.require()
    if not setting.is_tiny and any(
        not abs(loss - losses["fp32"]) <= _MAX_APART * losses["fp32"] for loss in losses.values()
    ):
        raise ArmsDifferError(f"training losses differ: {losses}")
    values = _make_values(setting, model, 512, _EPOCHS, _NUM_IMAGES[model])
    shared = material(values, setting.device)
    size = min(len(shared.labels), 64)
    flops = count_training_flops(shared.model(), shared.images[:size], shared.labels[:size])
    is_gpu = setting.device.type == "cuda"
    peak = find_peak_of(torch.cuda.get_device_name(setting.device)) if is_gpu else None
    facts = {"micro": values["batch.micro"], "images": len(shared.labels), "data": values["data.name"]}
    yield {"facts": {**facts, "losses": losses, "flops_per_image": flops, "peak_flops": peak}}


def _answer_rounds(model: str, samples: Sequence[Sample]) -> dict[str, Found]:
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


def _collect_ratios(name: str, job: Job) -> Iterator[Sample]:
    """A sample for each pair, and last what both arms were compared by."""
    benchmark = _RATIOS[name]
    num_kept = sum("ours" in sample for sample in job.kept)
    left = job.setting.pick(max(1, benchmark.num_pairs - num_kept), 1)
    with benchmark.prepare(job.setting) as arms:
        for ours, theirs in run_pairs(benchmark, arms, left):
            yield {"ours": ours, "theirs": theirs}
            job.require()
        yield {"facts": {**arms.facts, **arms.check(), "unit": benchmark.unit}}


def _answer_ratios(name: str, samples: Sequence[Sample]) -> dict[str, Found]:
    facts: dict[str, Any] = next((sample["facts"] for sample in samples if "facts" in sample), {})
    note = f"images: {facts['images']}" if facts.get("images") == "noise" else ""
    ratios = [sample["ours"] / sample["theirs"] for sample in samples if "ours" in sample]
    return {name: find_median(ratios, note=note, facts=facts)}


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


def _judge_forecasts(job: Job) -> Iterator[Sample]:
    """Trains every configuration twice: free, and within the least memory at which it would be admitted. A
    configuration that does not complete is kept with its outcome."""
    count = job.setting.pick(len(CONFIGURATIONS), 2)
    slowest = 0.0
    for values in CONFIGURATIONS[len(job.kept) : count]:
        before = job.seconds_left
        job.require(1.5 * slowest)
        yield _see(values, job)
        slowest = max(slowest, before - job.seconds_left)


def answer_memory(samples: Sequence[Sample]) -> dict[str, Found]:
    seen = [sample for sample in samples if "outcome" not in sample]
    others = "; ".join(f"{sample['outcome']}: {sample['values']}" for sample in samples if "outcome" in sample)
    if not seen:
        return {f"memory_{name}": Found(n=0, note=others) for name in ("median", "worst", "admitted", "refused")}
    errors, n = [abs(each["forecast_bytes"] / each["recorded_bytes"] - 1) for each in seen], len(seen)
    tried = [each for each in seen if each["is_edge_passed"] is not None]
    ran_out = sum(not each["is_edge_passed"] for each in tried)
    # what the allocator took from the device is what a card must have
    fitting = [(each, card << 30) for card in CARDS for each in seen if each["reserved_bytes"] <= card << 30]
    refused = sum(each["forecast_bytes"] > MemoryRoom(card, 0).limit_bytes for each, card in fitting)
    edge, share = ran_out if tried else None, refused / len(fitting) if fitting else None
    return {
        "memory_median": Found(measured=median(errors), n=n, note=others),
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


SPEED_MEASURES = {
    **{name: Measure(partial(_collect_ratios, name), partial(_answer_ratios, name)) for name in _RATIOS},
    **{
        f"step_{model}": Measure(partial(_collect_rounds, model), partial(_answer_rounds, model))
        for model in _STEP_BEST
    },
    "memory": Measure(_judge_forecasts, answer_memory),
}
