"""Trials on a GPU: graphs, optimizers, checkpointing, augmentation; and formats that are as accurate as plain fp32."""

from functools import cache
from math import sqrt
from pathlib import Path
from statistics import mean, variance

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_factory import make_config, train, train_whole

from sweep.config.trial import build_config
from sweep.records.messages import Ending, Evaluation
from sweep.search.single import train_trial
from sweep.training.data.augment import OPERATIONS, draw_boxes, resize_boxes
from sweep.training.optimizers import OPTIMIZERS
from sweep.training.setup import TrialState, prepare_training
from sweep.training.step import set_lr
from sweep.training.warmup import warm_up_trial

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")
SETTINGS = {"data.name": "synthetic", "data.subset": 1000, "budget.epochs": 2.0, "optimizer.lr": 0.05}


def run(**values: object) -> tuple[list[Evaluation], Ending]:
    return train_whole(make_config(SETTINGS, **values), device="cuda")


def losses(**values: object) -> list[float]:
    return [evaluation.train_loss for evaluation in run(**values)[0]]


@pytest.mark.parametrize("settings", [
    {},
    {"batch__accumulation": 3},  # a ragged last window and a ragged last micro batch
    {"precision__dtype": "bf16", "precision__channels_last": True},
    {"precision__dtype": "fp16", "regularization__grad_clip": 1.0},
    {"model__name": "vit_micro", "optimizer__name": "adamw", "optimizer__lr": 1e-3},
    {"regularization__mixup": 0.2, "data__augment": "crop_flip", "regularization__ema_decay": 0.9},
])  # fmt: skip
def test_graphs_train_the_same(settings: dict[str, object]) -> None:
    plain, graphed = losses(**settings), losses(**settings, precision__cuda_graphs=True)
    assert graphed == pytest.approx(plain, rel=0.02)


def test_graphs_draw_new_random_numbers_at_each_step() -> None:
    config = make_config(SETTINGS, model__name="vit_micro", model__dropout=0.5, precision__cuda_graphs=True)
    setup = prepare_training(config, CUDA)
    warm_up_trial(setup, TrialState().ledger)
    set_lr(setup.step.optimizer, 0.0)
    (window, *_) = setup.planner.windows_of_epoch(64)
    setup.feeder.begin_epoch(0, (window,))
    seen = {setup.step(setup.feeder.micro_batches(window), window.samples).item() for _ in range(4)}
    assert len(seen) == 4


def test_the_pool_of_graphs_counts_as_memory() -> None:
    eager, graphed = (
        run(precision__cuda_graphs=value, budget__epochs=1.0, model__name="resnet18")[1].measurements
        for value in (False, True)
    )
    assert eager["peak_memory_bytes"] < graphed["peak_memory_bytes"] < 2.0 * eager["peak_memory_bytes"]
    assert graphed["peak_memory_bytes"] <= graphed["reserved_memory_bytes"]


@pytest.mark.parametrize("workers", [0, 2])
def test_graphs_are_captured_beside_a_loader(workers: int) -> None:
    streamed = {"data__placement": "host", "data__workers": workers, "precision__cuda_graphs": True}
    assert losses(**streamed) == pytest.approx(losses(), rel=0.02)
    plain = {"data__augment": "crop_flip"}
    assert losses(**streamed | {"precision__cuda_graphs": False} | plain)[0] == pytest.approx(
        losses(**plain)[0], rel=0.02
    )


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
def test_optimizers_learn(name: str, dtype: str) -> None:
    rates = {"lars": 5.0, "schedule_free_sgd": 0.2, "sgd": 0.05, "momentum": 0.05, "nesterov": 0.05, "lamb": 0.02}
    settings = {"optimizer__name": name, "optimizer__lr": rates.get(name, 0.003), "precision__dtype": dtype}
    evaluations, ending = run(budget__epochs=4.0, schedule__name="constant", **settings)
    assert evaluations[-1].val_loss < evaluations[0].val_loss
    assert ending.measurements["num_skipped_steps"] <= 3


@pytest.mark.parametrize("name", ["resnet18", "vit_micro"])
def test_checkpointing_saves_memory_and_changes_no_loss(name: str) -> None:
    plain, checked = (
        run(model__name=name, batch__micro=256, precision__checkpointing=value, optimizer__lr=0.01)
        for value in (False, True)
    )
    assert checked[0][-1].train_loss == pytest.approx(plain[0][-1].train_loss, rel=0.02)
    assert checked[1].measurements["peak_memory_bytes"] < 0.8 * plain[1].measurements["peak_memory_bytes"]


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_are_those_of_the_cpu(name: str) -> None:
    images = torch.randint(0, 256, (64, 32, 32, 3), dtype=torch.uint8)
    sign = torch.where(torch.arange(64) % 2 == 0, 1.0, -1.0)
    expected, found = OPERATIONS[name](images, sign, 0.3), OPERATIONS[name](images.cuda(), sign.cuda(), 0.3)
    assert ((expected.int() - found.cpu().int()).abs() > 1).float().mean() < 0.01


@pytest.mark.parametrize("side", [8, 33, 224])
def test_resized_crops_are_those_of_the_cpu_to_the_last_bit(side: int) -> None:
    images = torch.randint(0, 256, (64, side, side, 3), dtype=torch.uint8)
    boxes = torch.from_numpy(draw_boxes(np.random.default_rng(0), 64, side))
    assert torch.equal(resize_boxes(images.cuda(), boxes.cuda(), side).cpu(), resize_boxes(images, boxes, side))


@pytest.mark.parametrize("dtype", ["fp32", "tf32", "bf16", "fp16", "fp64"])
@pytest.mark.parametrize("model", ["resnet8", "vit_micro"])
def test_precisions_learn(model: str, dtype: str) -> None:
    evaluations, ending = run(model__name=model, precision__dtype=dtype, data__augment="crop_flip")
    assert evaluations[-1].val_loss < evaluations[0].val_loss
    assert ending.device == torch.cuda.get_device_name()
    assert ending.environment["driver"]


def test_peak_memory_grows_with_the_micro_batch_and_leaves_the_data_out() -> None:
    peaks = [run(batch__micro=size, budget__epochs=1.0)[1].measurements["peak_memory_bytes"] for size in (64, 256)]
    assert 2.0 < peaks[1] / peaks[0] < 4.5
    more_data = run(batch__micro=64, budget__epochs=1.0, data__subset=8192)[1].measurements["peak_memory_bytes"]
    assert more_data == pytest.approx(peaks[0], rel=0.05)


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


several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two CUDA devices are needed")


def run_on(weights: Path, **values: object) -> Ending:
    settings = {"data.name": "synthetic", "data.subset": 1000, "budget.steps": 5, "precision.dtype": "fp64"}
    settings |= {"schedule.warmup": 0.0, "optimizer.lr": 0.05}
    return train(make_config(settings, **values), device="cuda", weights_path=str(weights))[1]


@several
@pytest.mark.parametrize(("model", "norm"), [("resnet8", "group"), ("resnet8", "sync"), ("vit_micro", "layer")])
def test_two_gpus_make_the_update_of_one(tmp_path: Path, model: str, norm: str) -> None:
    values: dict[str, object] = {"model.name": model, "model.norm": norm, "batch.accumulation": 2}
    two = run_on(tmp_path / "two", **{**values, "batch.micro": 64, "distributed.world_size": 2})
    one = run_on(tmp_path / "one", **{**values, "batch.micro": 128})
    assert (two.outcome, two.error, one.outcome) == ("complete", "", "complete")
    ours, theirs = load_file(tmp_path / "two"), load_file(tmp_path / "one")
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-6


@several
def test_the_peak_of_a_rank_is_that_of_one_gpu(tmp_path: Path) -> None:
    peaks = [
        run_on(tmp_path / "weights", batch__micro=128, distributed__world_size=size).measurements["peak_memory_bytes"]
        for size in (1, 2)
    ]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.05)


@several
def test_more_ranks_than_gpus(tmp_path: Path) -> None:
    count = torch.cuda.device_count()
    ending = run_on(tmp_path / "weights", distributed__world_size=count + 1)
    assert ending.outcome == "crashed"
    assert ending.error.startswith(f"distributed.world_size = {count + 1} requires {count + 1} GPUs, and {count} are")
