"""Layers for several models of one structure at once: their channels side by side, without a connection between models.

Horizontally fused training, Wang et al. 2021 (arXiv:2102.02344): a convolution becomes one with groups, a norm one of
more channels, a linear layer a batched product. Every value of one model depends on that model alone.
"""

import copy
from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor, nn

from sweep.training.models.norms import GhostBatchNorm2d
from sweep.training.models.resnets import GlobalPool, PadShortcut
from sweep.training.vision import resnet


@final
class StackedLinear(nn.Module):
    """``count`` linear layers: (b, count * inputs) -> (b, count * outputs)."""

    weight: Tensor  # (count * outputs, inputs)
    bias: Tensor | None  # (count * outputs,)

    def __init__(self, layer: nn.Linear, count: int) -> None:
        super().__init__()
        self.count = count
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, inputs: Tensor) -> Tensor:
        """(b, count * inputs) -> (b, count * outputs)."""
        of_models = inputs.view(len(inputs), self.count, -1).transpose(0, 1)
        weights = self.weight.view(self.count, -1, of_models.shape[-1]).transpose(1, 2)
        if self.bias is None:
            outputs = torch.bmm(of_models, weights)
        else:
            outputs = torch.baddbmm(self.bias.view(self.count, 1, -1), of_models, weights)
        return outputs.transpose(0, 1).flatten(1)


@final
class StackedPadShortcut(nn.Module):
    """A :class:`PadShortcut` of each of ``count`` models."""

    def __init__(self, layer: PadShortcut, count: int) -> None:
        super().__init__()
        self.layer, self.count = layer, count

    def forward(self, images: Tensor) -> Tensor:
        """(n, count * c, h, w) -> (n, count * (c + added), ceil(h / 2), ceil(w / 2))."""
        each: Tensor = self.layer(images.reshape(len(images) * self.count, -1, *images.shape[2:]))
        return each.reshape(len(images), -1, *each.shape[2:])


def _widen_convolution(layer: nn.Conv2d, count: int) -> nn.Module:
    layer.in_channels, layer.out_channels = layer.in_channels * count, layer.out_channels * count
    layer.groups *= count
    return layer


def _widen_batch_norm(layer: nn.BatchNorm2d, count: int) -> nn.Module:
    layer.num_features *= count
    return layer


def _widen_group_norm(layer: nn.GroupNorm, count: int) -> nn.Module:
    layer.num_groups, layer.num_channels = layer.num_groups * count, layer.num_channels * count
    return layer


# What becomes of each layer that treats the channels of a model together.
_STACKED: dict[type[nn.Module], Callable[..., nn.Module]] = {
    nn.Conv2d: _widen_convolution,
    nn.BatchNorm2d: _widen_batch_norm,
    GhostBatchNorm2d: _widen_batch_norm,
    nn.GroupNorm: _widen_group_norm,
    nn.Linear: StackedLinear,
    PadShortcut: StackedPadShortcut,
}
# Layers that treat each channel for itself, and containers whose forward pass does.
_UNCHANGED: tuple[type[nn.Module], ...] = (
    nn.Sequential,
    nn.ReLU,
    nn.Identity,
    nn.MaxPool2d,
    nn.Flatten,
    GlobalPool,
    resnet.BasicBlock,
    resnet.Bottleneck,
    resnet.ResNet,
)


def stack_layers(models: Sequence[nn.Module]) -> nn.Module:
    """The layers of ``models``, which are built alike, with copies of their weights and statistics side by side:
    images (b, count * c, s, s) -> logits (b, count * classes). What has no axes, a counter, is that of the first.

    Raises:
        ValueError: for a model with a layer that cannot be stacked; the message contains its name.
    """
    if unknown := find_unstackable(models[0]):
        raise ValueError(f"the layers {', '.join(unknown)} cannot be stacked")
    stacked = _stack(copy.deepcopy(models[0]), len(models))
    for name, parameter in list(stacked.named_parameters()):
        parts = [each.get_parameter(name).detach() for each in models]
        parameter.data = torch.cat(parts)
    for name, buffer in list(stacked.named_buffers()):
        if buffer.ndim:
            buffer.data = torch.cat([each.get_buffer(name) for each in models])
    return stacked


def find_unstackable(model: nn.Module) -> list[str]:
    """The types of the layers of ``model`` that cannot be stacked; a subclass of a known layer is not known."""
    types = {type(module) for module in model.modules()}
    return sorted(each.__name__ for each in types if each not in _STACKED and each not in _UNCHANGED)


def _stack(module: nn.Module, count: int) -> nn.Module:
    for name, child in module.named_children():
        setattr(module, name, _stack(child, count))
    widen = _STACKED.get(type(module))
    return widen(module, count) if widen else module
