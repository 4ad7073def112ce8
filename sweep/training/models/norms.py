"""Normalization layers of the convolutional models."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from sweep.config.recipe_sections import ModelSection

NormLayer = Callable[[int], nn.Module]


@final
class GhostBatchNorm2d(nn.BatchNorm2d):
    """Batch norm whose statistics are of ``ghost_batch`` consecutive samples (Hoffer et al. 2017, arXiv:1705.08741).

    A remainder joins the last sub-batch. The running statistics are updated once per sub-batch, so that one micro batch
    has the same effect on weights and statistics as its sub-batches would have as micro batches of their own.
    """

    def __init__(self, num_features: int, ghost_batch: int, momentum: float = 0.1) -> None:
        super().__init__(num_features, momentum=momentum)
        self.ghost_batch = ghost_batch

    def forward(self, input: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c, h, w)."""
        num_ghosts = len(input) // self.ghost_batch
        if not self.training or num_ghosts < 2:
            return super().forward(input)
        rest = len(input) - (num_ghosts - 1) * self.ghost_batch
        ghosts = torch.split(input, [self.ghost_batch] * (num_ghosts - 1) + [rest])
        return torch.cat([nn.BatchNorm2d.forward(self, ghost) for ghost in ghosts])


def make_group_norm(channels: int) -> nn.Module:
    """Groups of at least 4 channels, at most 32 groups (Wu and He 2018, arXiv:1803.08494)."""
    groups = max(1, min(32, channels // 4))
    while channels % groups:
        groups -= 1
    return nn.GroupNorm(groups, channels)


def choose_norm_layer(section: ModelSection) -> NormLayer:
    """The function that makes the norm of ``section`` for a number of channels.

    ``sync`` is batch norm here; it is converted later, where several ranks train together.
    """
    momentum = section.norm_momentum
    layers: dict[str, NormLayer] = {
        "batch": partial(nn.BatchNorm2d, momentum=momentum),
        "sync": partial(nn.BatchNorm2d, momentum=momentum),
        "ghost": partial(GhostBatchNorm2d, ghost_batch=section.ghost_batch, momentum=momentum),
        "group": make_group_norm,
        "layer": partial(nn.GroupNorm, 1),  # the mean and variance of all channels and pixels of an image
    }
    return layers[section.norm]


def find_batch_norms(model: nn.Module) -> list[_BatchNorm]:
    """The layers of ``model`` that normalize by the statistics of a micro batch."""
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextmanager
def override_attributes(norms: Iterable[nn.Module], **values: Any) -> Iterator[None]:
    """Inside, each of ``norms`` has these ``values`` as attributes; afterwards its own."""
    before = [(norm, {name: getattr(norm, name) for name in values}) for norm in norms]
    for norm, _ in before:
        for name, value in values.items():
            setattr(norm, name, value)
    try:
        yield
    finally:
        for norm, own in before:
            for name, value in own.items():
                setattr(norm, name, value)
