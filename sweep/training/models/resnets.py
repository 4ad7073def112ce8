"""Residual networks on torchvision's blocks: for CIFAR-like images, and ImageNet's with a stem for small images."""

from torch import Tensor, nn

from sweep.config.errors import InputError
from sweep.config.sections import ModelSection
from sweep.training.models.image_shape import ImageShape
from sweep.training.models.memory_layout import GlobalPool, every_second_pixel
from sweep.training.models.norms import NormLayer, norm_layer
from sweep.training.vision import resnet

_SMALL_SIDE = 64  # images up to this side keep their resolution in the stem


class PadShortcut(nn.Module):
    """Option A of He et al. 2015 (arXiv:1512.03385), section 3.3: every second pixel, new channels are zero.

    It has no parameters, as in their CIFAR-10 networks (section 4.2).
    """

    def __init__(self, added_channels: int) -> None:
        super().__init__()
        self.added_channels = added_channels

    def forward(self, images: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c + added, ceil(h / 2), ceil(w / 2))."""
        half = self.added_channels // 2
        return every_second_pixel(images, half, self.added_channels - half)


def cifar_resnet(blocks_per_stage: int, section: ModelSection, shape: ImageShape) -> nn.Module:
    """ResNet of depth 6 * ``blocks_per_stage`` + 2, widths 16, 32, 64 (He et al. 2015, section 4.2), shortcuts A."""
    if shape.side < 4:
        raise InputError(f"model {section.name} wants images of 4 pixels or more, not {shape.side}.")
    norm = norm_layer(section)
    stages = [_cifar_stage(norm, width, blocks_per_stage) for width in (16, 32, 64)]
    model = nn.Sequential(
        nn.Conv2d(shape.channels, 16, 3, padding=1, bias=False),
        norm(16),
        nn.ReLU(inplace=True),
        *stages,
        GlobalPool(),
        nn.Flatten(),
        _head(64, section.dropout, shape.num_classes),
    )
    _initialise(model)
    return model


def _cifar_stage(norm: NormLayer, width: int, blocks: int) -> nn.Module:
    if width == 16:
        first = resnet.BasicBlock(16, 16, norm_layer=norm)
    else:
        first = resnet.BasicBlock(width // 2, width, 2, PadShortcut(width // 2), norm_layer=norm)
    return nn.Sequential(first, *(resnet.BasicBlock(width, width, norm_layer=norm) for _ in range(blocks - 1)))


def _initialise(model: nn.Module) -> None:
    # as torchvision does in its ResNet
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def resnet18(section: ModelSection, shape: ImageShape) -> nn.Module:
    """ResNet-18; 11,689,512 parameters at 224 x 224 x 3 and 1000 classes."""
    return _imagenet_resnet("BasicBlock", (2, 2, 2, 2), section, shape)


def resnet50(section: ModelSection, shape: ImageShape) -> nn.Module:
    """ResNet-50; 25,557,032 parameters at 224 x 224 x 3 and 1000 classes."""
    return _imagenet_resnet("Bottleneck", (3, 4, 6, 3), section, shape)


def _imagenet_resnet(block: str, layers: tuple[int, ...], section: ModelSection, shape: ImageShape) -> nn.Module:
    if shape.side < 8:
        raise InputError(f"model {section.name} wants images of 8 pixels or more, not {shape.side}.")
    model: nn.Module = resnet.ResNet(
        getattr(resnet, block), list(layers), num_classes=shape.num_classes, norm_layer=norm_layer(section)
    )
    model.avgpool = GlobalPool()
    _fit_stem(model, shape)
    if section.dropout:
        features = 512 * (4 if block == "Bottleneck" else 1)
        model.fc = _head(features, section.dropout, shape.num_classes)
    return model


def _fit_stem(model: nn.Module, shape: ImageShape) -> None:
    small = shape.side <= _SMALL_SIDE
    if not small and shape.channels == 3:
        return
    stem = (
        nn.Conv2d(shape.channels, 64, 3, padding=1, bias=False)
        if small
        else nn.Conv2d(shape.channels, 64, 7, stride=2, padding=3, bias=False)
    )
    nn.init.kaiming_normal_(stem.weight, mode="fan_out", nonlinearity="relu")
    model.conv1 = stem
    if small:
        model.maxpool = nn.Identity()


def _head(features: int, dropout: float, num_classes: int) -> nn.Module:
    linear = nn.Linear(features, num_classes)
    return nn.Sequential(nn.Dropout(dropout), linear) if dropout else linear


__all__ = ["PadShortcut", "cifar_resnet", "resnet18", "resnet50"]
