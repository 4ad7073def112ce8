"""Optimizers and the loss scaler on a made-up GPU: what overflowed changes nothing, and the host waits for nothing."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from fake_cuda import CUDA, FakeCuda, use_fake_cuda
from torch import Tensor, nn

from sweep.config.tables import OPTIMIZERS
from sweep.config.trial import build_config
from sweep.training.optimizers import build_optimizer
from sweep.training.precision import LossScaler


@pytest.fixture
def gpu() -> Iterator[FakeCuda]:
    with use_fake_cuda() as made:
        yield made


def make(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)).to(CUDA)
    values = {"optimizer.name": name, "optimizer.weight_decay": 0.1, "optimizer.lr": 0.01}
    return model, build_optimizer(build_config(values, "test"), model)


def set_gradients(model: nn.Module, seed: int, scale: float, *, has_overflown: bool = False) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator).to(CUDA, non_blocking=True)
    if has_overflown:
        next(iter(model.parameters())).grad[0] = math.inf
        list(model.parameters())[-1].grad[0] = math.nan


def values_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = (value for entry in optimizer.state.values() for value in entry.values())
    return [value.clone() for value in (*model.parameters(), *states) if isinstance(value, Tensor)]


def take(gpu: FakeCuda, scaler: LossScaler, optimizer: Any, *, is_clipped: bool) -> None:
    before = gpu.num_waits
    if is_clipped:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert gpu.num_waits == before, "the host has waited for the device"


@pytest.mark.parametrize("is_clipped", [False, True])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_step_that_overflows_changes_nothing_and_needs_no_wait(gpu: FakeCuda, name: str, is_clipped: bool) -> None:
    model, optimizer = make(name)
    plain_model, plain = make(name)
    scaler = LossScaler(CUDA)
    scale = 0.0
    # the first step overflows, as it does in a training with the highest scale
    for seed, has_overflown in enumerate((True, False, False, True, False)):
        scale = float(scaler.scale(torch.ones((), device=CUDA)))
        set_gradients(model, seed, scale, has_overflown=has_overflown)
        weights = [parameter.detach().clone() for parameter in model.parameters()]
        before = values_of(model, optimizer) if seed else []
        take(gpu, scaler, optimizer, is_clipped=is_clipped)
        if has_overflown:
            assert all(map(torch.equal, model.parameters(), weights))
            assert all(map(torch.equal, values_of(model, optimizer), before))
            assert not scaler.is_taken
            continue
        set_gradients(plain_model, seed, 1.0)
        plain.step()
        for one, other in zip(values_of(model, optimizer), values_of(plain_model, plain), strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)
        assert not any(map(torch.equal, model.parameters(), weights))
    assert scaler.num_skipped == 2
