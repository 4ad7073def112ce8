"""The forecast of memory against what the GPU's allocator counted; how near it comes is for the benchmark to say."""

import pytest
import torch

from sweep import train_trial
from sweep.config.trial import build_config
from sweep.probing.memory import estimate_memory

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="a CUDA device is needed")]


@pytest.mark.parametrize(
    "values",
    [
        {"model.name": "vit_tiny", "optimizer.name": "adamw"},
        {"model.name": "vit_tiny", "precision.dtype": "bf16", "precision.checkpointing": True},
        {"model.name": "resnet18", "precision.dtype": "bf16", "precision.channels_last": True},
        {"model.name": "resnet20", "batch.accumulation": 2},
    ],
)
def test_the_forecast_is_of_the_size_of_the_record(values: dict[str, object]) -> None:
    settings = {"data.name": "synthetic", "data.subset": 2048, "budget.steps": 1, "optimizer.lr": 0.01}
    config = build_config(settings | {"batch.micro": 512} | values, "test")
    ending = train_trial(config, device="cuda")
    assert ending.outcome == "complete", ending.error
    forecast = estimate_memory(config, device_type="cuda").peak_memory_bytes
    assert 0.5 < forecast / ending.measurements["peak_memory_bytes"] < 1.5


def test_the_forecast_touches_no_device_memory() -> None:
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    estimate_memory(build_config({"model.name": "resnet50", "data.name": "synthetic"}, "test"), device_type="cuda")
    assert torch.cuda.max_memory_allocated() == before
