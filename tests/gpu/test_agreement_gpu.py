"""Formats and ways of running a step that are to be faster are as accurate as plain fp32, within what seeds scatter."""

from functools import cache
from statistics import mean

import pytest
import torch

from sweep.search.single import train_one
from sweep.spec.trial import build_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device was found"),
]
SEEDS = (1, 2, 3)
APART = 0.03  # three times what the mean of three seeds scatters by on these 270 images


@cache
def accuracy(model: str, *values: tuple[str, object]) -> float:
    settings = {"model.name": model, "optimizer.lr": 0.05, "budget.epochs": 15.0, **dict(values)}
    settings |= {"optimizer.name": "adamw", "optimizer.lr": 3e-3} if model == "vit_micro" else {}
    endings = [train_one(build_config(settings | {"seed": seed}, "test"), device="cuda") for seed in SEEDS]
    assert [ending.outcome for ending in endings] == ["complete"] * len(SEEDS), endings[0].error
    return mean(ending.measurements["val_accuracy"] for ending in endings)


@pytest.mark.parametrize("model", ["resnet8", "vit_micro"])
@pytest.mark.parametrize(
    "values",
    [
        {"precision.dtype": "tf32"},
        {"precision.dtype": "bf16"},
        {"precision.dtype": "fp16"},
        {"precision.dtype": "bf16", "precision.channels_last": True},
        {"precision.cuda_graphs": True},
        {"precision.cuda_graphs": True, "precision.dtype": "fp16"},
        {"precision.compile": True, "precision.dtype": "bf16"},
    ],
    ids=lambda values: " ".join(str(value) for value in values.values()),
)
def test_accuracy_is_that_of_plain_fp32(model: str, values: dict[str, object]) -> None:
    plain = accuracy(model)
    assert plain > 0.9
    assert accuracy(model, *values.items()) == pytest.approx(plain, abs=APART)
