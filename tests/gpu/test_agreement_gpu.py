"""Formats and ways of running a step that are to be faster are as accurate as plain fp32, within what seeds scatter."""

from functools import cache
from math import sqrt
from statistics import mean, variance

import pytest

from sweep.config.trial import build_config
from sweep.search.single import train_trial

pytestmark = pytest.mark.gpu
SEEDS = (1, 2, 3)
LEAST_APART = 0.02


@cache
def accuracies(model: str, *values: tuple[str, object]) -> list[float]:
    settings = {"model.name": model, "optimizer.lr": 0.05, "budget.epochs": 15.0}
    if model == "vit_micro":
        settings |= {"optimizer.name": "adamw", "optimizer.lr": 3e-3, "budget.epochs": 30.0}
    configs = [build_config(settings | dict(values) | {"seed": seed}, "test") for seed in SEEDS]
    endings = [train_trial(config, device="cuda") for config in configs]
    assert [ending.outcome for ending in endings] == ["complete"] * len(SEEDS), endings[0].error
    return [ending.measurements["val_accuracy"] for ending in endings]


@pytest.mark.parametrize("model", ["resnet8", "vit_micro"])
@pytest.mark.parametrize("values", [
    {"precision.dtype": "tf32"}, {"precision.dtype": "bf16"}, {"precision.dtype": "fp16"},
    {"precision.dtype": "bf16", "precision.channels_last": True}, {"precision.cuda_graphs": True},
    {"precision.cuda_graphs": True, "precision.dtype": "fp16"},
    {"precision.compile": True, "precision.dtype": "bf16"},
], ids=lambda values: " ".join(map(str, values.values())))  # fmt: skip
def test_accuracy_is_that_of_plain_fp32(model: str, values: dict[str, object]) -> None:
    plain, found = accuracies(model), accuracies(model, *values.items())
    assert mean(plain) > 0.85
    scatter = sqrt((variance(plain) + variance(found)) / len(SEEDS))  # of the difference of the means
    assert mean(found) == pytest.approx(mean(plain), abs=max(LEAST_APART, 3 * scatter))
