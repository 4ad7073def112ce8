"""The gradient noise where a window runs out of memory and is taken again."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from training_factory import CPU, make_batch, make_config, make_step

from sweep.measurement.gradient_noise import NoiseMeter
from sweep.training.auto_micro import AutoMicro, step_within_memory
from sweep.training.data.feeders import Batch
from sweep.training.data.windows import Window, cut_epoch
from sweep.training.step import Step


class Failing(nn.Module):
    """A model that runs out of memory at the forward pass number ``at``, of those that train."""

    def __init__(self, model: nn.Module, at: int) -> None:
        super().__init__()
        self.model, self.at, self.calls = model, at, 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        if self.calls == self.at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")
        logits: Tensor = self.model(images)
        return logits


def measure(fails_at: int, micro: int) -> dict[str, Any]:
    """The averages after one step of 64, first tried with micro batches of ``micro``."""
    values = {"batch__micro": "auto", "batch__global": 64, "precision__dtype": "fp64", "model__norm": "group"}
    plain = make_step(make_config(**values))
    model = Failing(plain.model, fails_at)
    meter = NoiseMeter(model.parameters())
    step = Step(
        forward=model,
        model=model,
        optimizer=plain.optimizer,
        normalize=plain.normalize,
        precision=plain.precision,
        regularization=plain.regularization,
        noise=meter,
    )
    images, labels = make_batch()

    def cut(_window: Window | None, size: int) -> Window:
        return cut_epoch(64, 64, size)[0]

    def batches_of(window: Window) -> Iterator[Batch]:
        return ((images[part], labels[part]) for part in window.slices)

    auto_micro = AutoMicro(micro, CPU)
    step_within_memory(step, batches_of, cut(None, micro), auto_micro, cut)
    assert auto_micro.micro == 16
    return meter.state_dict()


def test_an_attempt_that_ran_out_of_memory_leaves_no_square_behind() -> None:
    undisturbed = measure(fails_at=0, micro=16)
    assert undisturbed["trace"] != 0
    assert measure(fails_at=2, micro=32) == pytest.approx(undisturbed, rel=1e-9)
