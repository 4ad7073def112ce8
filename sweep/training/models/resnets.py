"""Residual networks on torchvision's blocks: for CIFAR-like images, and ImageNet's with a stem for small images."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from sweep.config.errors import InputError
from sweep.config.sections import ModelSection
from sweep.config.tables import ImageShape
from sweep.training.vision import resnet

_NormLayer = Callable[[int], nn.Module]
_SMALL_SIDE = 64  # images up to this side keep their resolution in the stem


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


def _make_group_norm(channels: int) -> nn.Module:
    """Groups of at least 4 channels, at most 32 groups (Wu and He 2018, arXiv:1803.08494)."""
    groups = max(1, min(32, channels // 4))
    while channels % groups:
        groups -= 1
    return nn.GroupNorm(groups, channels)


def choose_norm_layer(section: ModelSection) -> _NormLayer:
    """The function that makes the norm of ``section`` for a number of channels.

    ``sync`` is batch norm here; it is converted later, where several ranks train together.
    """
    momentum = section.norm_momentum
    layers: dict[str, _NormLayer] = {
        "batch": partial(nn.BatchNorm2d, momentum=momentum),
        "sync": partial(nn.BatchNorm2d, momentum=momentum),
        "ghost": partial(GhostBatchNorm2d, ghost_batch=section.ghost_batch, momentum=momentum),
        "group": _make_group_norm,
        "layer": partial(nn.GroupNorm, 1),  # the mean and variance of all channels and pixels of an image
    }
    return layers[section.norm]


def find_batch_norms(model: nn.Module) -> list[_BatchNorm]:
    return [module for module in model.modules() if isinstance(module, _BatchNorm)]


@contextmanager
def override_attributes(norms: Iterable[nn.Module], **values: Any) -> Iterator[None]:
    """Inside, each of ``norms`` has these ``values`` as attributes; afterwards its own."""
    before = [(norm, name, getattr(norm, name)) for norm in norms for name in values]
    for norm, name, _ in before:
        setattr(norm, name, values[name])
    try:
        yield
    finally:
        for norm, name, value in before:
            setattr(norm, name, value)


def _is_channels_last(images: Tensor) -> bool:
    """Whether ``images`` (n, c, h, w) are in channels_last memory format, and only in that one."""
    return images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()


# The gradients of torch's own slice and mean are contiguous whatever the layout of the input is. Where such a gradient
# meets channels_last activations, element-wise kernels are an order of magnitude slower on a CPU. The two modules below
# keep the layout; for contiguous input the values are the same, bit for bit.


@final
class GlobalPool(nn.Module):
    """The mean over all pixels, as ``AdaptiveAvgPool2d(1)``: (n, c, h, w) -> (n, c, 1, 1)."""

    def forward(self, images: Tensor) -> Tensor:
        if _is_channels_last(images):
            return images.permute(0, 2, 3, 1).mean((1, 2))[:, :, None, None]
        return functional.adaptive_avg_pool2d(images, 1)


class PadShortcut(nn.Module):
    """Option A of He et al. 2015 (arXiv:1512.03385), section 3.3: every second pixel, new channels are zero.

    It has no parameters, as in their CIFAR-10 networks (section 4.2).
    """

    def __init__(self, added_channels: int) -> None:
        super().__init__()
        self.added_channels = added_channels

    def forward(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c + added, ceil(h / 2), ceil(w / 2))."""
        before = self.added_channels // 2
        after = self.added_channels - before
        if _is_channels_last(images):
            last = images.permute(0, 2, 3, 1)
            return functional.pad(last[:, ::2, ::2], (before, after)).permute(0, 3, 1, 2)
        return functional.pad(images[:, :, ::2, ::2], (0, 0, 0, 0, before, after))


def _cifar_resnet(blocks_per_stage: int, section: ModelSection, shape: ImageShape) -> nn.Module:
    """ResNet of depth 6 * ``blocks_per_stage`` + 2, widths 16, 32, 64 (He et al. 2015, section 4.2), shortcuts A."""
    if shape.side < 4:
        raise InputError(f"model {section.name} requires images of 4 or more pixels per side, not {shape.side}.")
    norm = choose_norm_layer(section)
    stages = []
    for width in (16, 32, 64):
        if width == 16:
            first = resnet.BasicBlock(16, 16, norm_layer=norm)
        else:
            first = resnet.BasicBlock(width // 2, width, 2, PadShortcut(width // 2), norm_layer=norm)
        rest = (resnet.BasicBlock(width, width, norm_layer=norm) for _ in range(blocks_per_stage - 1))
        stages.append(nn.Sequential(first, *rest))
    model = nn.Sequential(
        nn.Conv2d(shape.channels, 16, 3, padding=1, bias=False),
        norm(16),
        nn.ReLU(inplace=True),
        *stages,
        GlobalPool(),
        nn.Flatten(),
        _head(64, section.dropout, shape.num_classes),
    )
    for module in model.modules():
        if isinstance(module, nn.Conv2d):  # as torchvision does in its ResNet
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return model


def _imagenet_resnet(block: str, layers: tuple[int, ...], section: ModelSection, shape: ImageShape) -> nn.Module:
    """A ResNet of ImageNet: at 224 x 224 x 3, 1000 classes 11,689,512 (ResNet-18) and 25,557,032 (-50) parameters."""
    if shape.side < 8:
        raise InputError(f"model {section.name} requires images of 8 or more pixels per side, not {shape.side}.")
    model: nn.Module = resnet.ResNet(
        getattr(resnet, block), list(layers), num_classes=shape.num_classes, norm_layer=choose_norm_layer(section)
    )
    model.avgpool = GlobalPool()
    is_small = shape.side <= _SMALL_SIDE
    if is_small or shape.channels != 3:
        kernel, stride = (3, 1) if is_small else (7, 2)
        stem = nn.Conv2d(shape.channels, 64, kernel, stride, padding=kernel // 2, bias=False)
        nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
        model.conv1 = stem
    if is_small:
        model.maxpool = nn.Identity()
    if section.dropout:
        features = 512 * (4 if block == "Bottleneck" else 1)
        model.fc = _head(features, section.dropout, shape.num_classes)
    return model


def _head(features: int, dropout: float, num_classes: int) -> nn.Module:
    linear = nn.Linear(features, num_classes)
    return nn.Sequential(nn.Dropout(dropout), linear) if dropout else linear


# by name, as in sweep.config.tables
resnet8 = partial(_cifar_resnet, 1)
resnet20 = partial(_cifar_resnet, 3)
resnet56 = partial(_cifar_resnet, 9)
resnet18 = partial(_imagenet_resnet, "BasicBlock", (2, 2, 2, 2))
resnet50 = partial(_imagenet_resnet, "Bottleneck", (3, 4, 6, 3))
