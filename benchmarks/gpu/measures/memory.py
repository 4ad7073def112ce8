"""The forecast of memory on a GPU: how near it comes, what it admits that runs out, what it refuses that fits."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.found import Found, Job, Measure, Sample
from sweep.config.trial_config import TrialConfig, build_config
from sweep.probing.estimate import estimate_memory
from sweep.records.messages import Ending
from sweep.search.forecast.memory_room import MemoryRoom
from sweep.search.loop.single_trial import train_trial

# Sizes of cards, in GiB, from a notebook's to the largest: on which of them is refused what fits?
CARDS = (4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 141)
_FAST = {"precision.dtype": "bf16", "precision.channels_last": True}
_LESS = {"precision.checkpointing": True}
_KINDS: tuple[tuple[dict[str, Any], tuple[int, ...]], ...] = (
    ({"model.name": "resnet18"}, (256, 1024, 4096)),
    ({"model.name": "resnet18", **_FAST}, (512, 2048, 8192)),
    ({"model.name": "resnet18", **_FAST, **_LESS}, (1024, 4096)),
    ({"model.name": "resnet18", "precision.dtype": "fp16", "optimizer.name": "adamw"}, (512, 2048)),
    ({"model.name": "resnet50"}, (128, 512)),
    ({"model.name": "resnet50", **_FAST}, (256, 1024, 2048)),
    ({"model.name": "resnet50", **_FAST, "batch.accumulation": 2, "optimizer.name": "lamb"}, (512,)),
    ({"model.name": "resnet50", **_FAST, **_LESS}, (512, 2048)),
    ({"model.name": "vit_small", "optimizer.name": "adamw"}, (128, 512)),
    ({"model.name": "vit_small", "optimizer.name": "adamw", "precision.dtype": "bf16"}, (256, 1024, 2048)),
    ({"model.name": "vit_small", "optimizer.name": "adamw", "precision.dtype": "fp16"}, (512,)),
    ({"model.name": "vit_small", "optimizer.name": "adamw", "precision.dtype": "bf16", **_LESS}, (1024, 4096)),
)
# Every kind's smallest first, so that a run that is cut short has seen all kinds.
CONFIGURATIONS: tuple[dict[str, Any], ...] = tuple(
    {**values, "batch.micro": sizes[turn]} for turn in range(3) for values, sizes in _KINDS if turn < len(sizes)
)


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A configuration's forecast beside its record."""

    values: dict[str, Any]
    forecast_bytes: int
    recorded_bytes: int
    reserved_bytes: int  # what the allocator took from the device, so what a card must have
    is_edge_passed: bool | None  # trained within the least memory at which it is admitted; None: not tried

    @property
    def error(self) -> float:
        """Forecast over record, less 1."""
        return self.forecast_bytes / self.recorded_bytes - 1


def judge_forecasts(job: Job) -> Iterator[Sample]:
    """Trains every configuration twice: free, and within the least memory at which it would be admitted. A
    configuration that does not complete is kept with its outcome."""
    count = job.setting.pick(len(CONFIGURATIONS), 2)
    slowest = 0.0
    for values in CONFIGURATIONS[len(job.kept) : count]:
        before = job.seconds_left
        job.require(1.5 * slowest)
        yield _see(values, job)
        slowest = max(slowest, before - job.seconds_left)


def answer(samples: Sequence[Sample]) -> dict[str, Found]:
    """What the configurations come to together."""
    seen = [Seen(**sample) for sample in samples if "outcome" not in sample]
    others = [f"{sample['outcome']}: {sample['values']}" for sample in samples if "outcome" in sample]
    if not seen:
        names = ("memory_median", "memory_worst", "memory_admitted", "memory_refused")
        return {name: Found(n=0, note="; ".join(others)) for name in names}
    errors, n = [abs(each.error) for each in seen], len(seen)
    tried = [each for each in seen if each.is_edge_passed is not None]
    ran_out = sum(not each.is_edge_passed for each in tried)
    fitting = [(each, card << 30) for each in seen for card in CARDS if each.reserved_bytes <= card << 30]
    refused = sum(each.forecast_bytes > MemoryRoom(card, 0).limit_bytes for each, card in fitting)
    return {
        "memory_median": Found(measured=median(errors), n=n, note="; ".join(others)),
        "memory_worst": Found(measured=max(errors), n=n),
        "memory_admitted": Found(
            measured=ran_out if tried else None, n=len(tried), note="trained within forecast / 0.9"
        ),
        "memory_refused": Found(
            measured=refused / len(fitting) if fitting else None, n=n, note=f"{len(fitting)} cases"
        ),
    }


def _see(values: dict[str, Any], job: Job) -> Sample:
    device, config = job.setting.device, _config(values, job)
    predicted = estimate_memory(config, device_type=device.type).peak_memory_bytes
    ending = _train(config, device)
    if ending.outcome != "complete":
        return {"values": values, "outcome": ending.outcome, "error": ending.error}
    recorded, is_passed = int(ending.measurements["peak_memory_bytes"]), None
    reserved = recorded
    if device.type == "cuda":
        reserved = torch.cuda.max_memory_reserved(device)
        with _card_of(int(predicted / 0.9), device):
            is_passed = _train(config, device).outcome == "complete"
    return asdict(
        Seen(
            values=values,
            forecast_bytes=predicted,
            recorded_bytes=recorded,
            reserved_bytes=reserved,
            is_edge_passed=is_passed,
        )
    )


def _config(values: dict[str, Any], job: Job) -> TrialConfig:
    micro = job.setting.pick(values["batch.micro"], 4)
    num_images = micro * values.get("batch.accumulation", 1)
    settings = {"data.name": "synthetic", "data.subset": num_images, "budget.steps": 1, "optimizer.lr": 0.01}
    return build_config(settings | values | {"batch.micro": micro}, "benchmark")


def _train(config: TrialConfig, device: torch.device) -> Ending:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    return train_trial(config, device=str(device))


@contextmanager
def _card_of(limit_bytes: int, device: torch.device) -> Iterator[None]:
    # the allocator gives no more than this
    installed = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(min(1.0, limit_bytes / installed), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()


MEASURES = {"memory": Measure(judge_forecasts, answer)}
