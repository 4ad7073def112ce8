"""Several ranks, each on a GPU of its own: what cannot be seen on a CPU."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_factory import make_config, train

from sweep.records.messages import Ending

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two CUDA devices are needed"),
]


def run(weights: Path, **values: object) -> Ending:
    settings = {"data.name": "synthetic", "data.subset": 1000, "budget.steps": 5, "precision.dtype": "fp64"}
    settings |= {"schedule.warmup": 0.0, "optimizer.lr": 0.05}
    return train(make_config(settings, **values), device="cuda", weights_path=str(weights))[1]


@pytest.mark.parametrize(("model", "norm"), [("resnet8", "group"), ("resnet8", "sync"), ("vit_micro", "layer")])
def test_two_gpus_make_the_update_of_one(tmp_path: Path, model: str, norm: str) -> None:
    values: dict[str, object] = {"model.name": model, "model.norm": norm, "batch.accumulation": 2}
    two = run(tmp_path / "two", **{**values, "batch.micro": 64, "distributed.world_size": 2})
    one = run(tmp_path / "one", **{**values, "batch.micro": 128})
    assert (two.outcome, two.error, one.outcome) == ("complete", "", "complete")
    ours, theirs = load_file(tmp_path / "two"), load_file(tmp_path / "one")
    assert ours.keys() == theirs.keys()
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in ours) < 1e-6


def test_the_peak_of_a_rank_is_that_of_one_gpu(tmp_path: Path) -> None:
    peaks = [
        run(tmp_path / "weights", batch__micro=128, distributed__world_size=size).measurements["peak_memory_bytes"]
        for size in (1, 2)
    ]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.05)


def test_more_ranks_than_gpus(tmp_path: Path) -> None:
    count = torch.cuda.device_count()
    ending = run(tmp_path / "weights", distributed__world_size=count + 1)
    assert ending.outcome == "crashed"
    assert ending.error.startswith(f"distributed.world_size = {count + 1} requires {count + 1} GPUs, and {count} are")
