"""The forecast of memory on a GPU: how near it comes, what it admits that runs out, what it refuses that fits."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.gpu_part import Job, Measure
from benchmarks.gpu_sheet import Row
from sweep.config.trial_config import TrialConfig, build_config
from sweep.probing.estimate import estimate_memory
from sweep.records.messages import Ending
from sweep.search.forecast.memory_gate import compute_memory_limit
from sweep.search.loop.single_trial import train_trial

LEAST = 24
MEDIAN_TARGET, REFUSED_TARGET = 0.05, 0.1
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


@dataclass(frozen=True)
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


def forecast(job: Job) -> Iterator[Row]:
    """Trains every configuration twice: free, and within the least memory at which it would be admitted."""
    seen: list[Seen] = []
    slowest = 0.0
    for values in CONFIGURATIONS[: job.setting.pick(len(CONFIGURATIONS), 2)]:
        before = job.seconds_left
        if before < 2 * slowest:
            break
        if found := _see(values, job):
            seen.append(found)
            print(f"{found} {100 * found.error:+.1f} %", flush=True)
        slowest = max(slowest, before - job.seconds_left)
    yield from rows(seen)


def rows(seen: list[Seen]) -> Iterator[Row]:
    """What the configurations say together."""
    n, facts = len(seen), {"configurations": [vars(each) | {"error": each.error} for each in seen]}
    errors = [abs(each.error) for each in seen]
    yield Row("median error of the memory forecast", median(errors), MEDIAN_TARGET, n=n, least_n=LEAST, facts=facts)
    yield Row("worst error of the memory forecast", max(errors), n=n)
    tried = [each for each in seen if each.is_edge_passed is not None]
    ran_out = sum(not each.is_edge_passed for each in tried)
    yield Row(
        "admitted at the edge, and ran out of memory",
        ran_out if tried else None,
        0,
        n=len(tried),
        least_n=LEAST,
        note="trained within forecast / 0.9",
    )
    fitting = [(each, card << 30) for each in seen for card in CARDS if each.reserved_bytes <= card << 30]
    refused = [each for each, card in fitting if each.forecast_bytes > compute_memory_limit(card)]
    yield Row(
        "share that is refused of what fits",
        len(refused) / len(fitting) if fitting else None,
        REFUSED_TARGET,
        n=n,
        least_n=LEAST,
        note=f"worked out for cards of {CARDS[0]} to {CARDS[-1]} GiB, {len(fitting)} cases",
    )


def _see(values: dict[str, Any], job: Job) -> Seen | None:
    device, config = job.setting.device, _config(values, job)
    predicted = estimate_memory(config, device_type=device.type).peak_memory_bytes
    ending = _train(config, device)
    if ending.outcome != "complete":
        print(f"{values}: the trial ended as {ending.outcome}: {ending.error}", flush=True)
        return None
    recorded, is_passed = int(ending.measurements["peak_memory_bytes"]), None
    reserved = recorded
    if device.type == "cuda":
        reserved = torch.cuda.max_memory_reserved(device)
        with _card_of(int(predicted / 0.9), device):
            is_passed = _train(config, device).outcome == "complete"
    return Seen(values, predicted, recorded, reserved, is_passed)


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


MEASURES: dict[str, Measure] = {"forecast": forecast}
