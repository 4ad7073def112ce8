"""Vision transformers (Dosovitskiy et al. 2020, arXiv:2010.11929) on torchvision's class."""

import math
from functools import partial

from torch import nn

from sweep.config.errors import InputError
from sweep.config.sections import ModelSection
from sweep.config.tables import ImageShape
from sweep.training.vision import vision_transformer


def choose_patch_size(section: ModelSection, side: int) -> int:
    """``model.patch_size``, or a side of a patch for images of ``side`` pixels: 16 at 224, 8 at 64, 4 at 32 and 28, 2
    at 8: the divisor of ``side`` nearest to 2 (up to 16 pixels), 4 (up to 48), 8 (up to 112) or 16. Raises
    ``InputError``: where it leaves no 2 x 2 patches or does not divide ``side``."""
    divisors = [size for size in range(1, side // 2 + 1) if side % size == 0]
    if section.patch_size is not None:
        if section.patch_size not in divisors:
            valid = ", ".join(map(str, divisors))
            raise InputError(
                f"model.patch_size = {section.patch_size}, but the images have {side} pixels a side; give {valid}, or "
                "another data.image_size."
            )
        return section.patch_size
    if not divisors[1:]:
        raise InputError(f"no patch size divides images of {side} pixels; set data.image_size to a multiple of 4.")
    preferred = next((size for limit, size in ((16, 2), (48, 4), (112, 8)) if side <= limit), 16)
    return min(divisors[1:], key=lambda size: (abs(math.log(size / preferred)), size))


def _vit(width: int, layers: int, heads: int, section: ModelSection, shape: ImageShape) -> nn.Module:
    """A ViT; without ``model.patch_size`` the patch follows the image size. The MLP is 4 times as wide, ``model.norm``
    is always layer."""
    patch_size = choose_patch_size(section, shape.side)
    model: nn.Module = vision_transformer.VisionTransformer(
        image_size=shape.side,
        patch_size=patch_size,
        num_layers=layers,
        num_heads=heads,
        hidden_dim=width,
        mlp_dim=4 * width,
        dropout=section.dropout,
        num_classes=shape.num_classes,
    )
    if shape.channels != 3:  # torchvision fixes three channels; the initialization is the same
        model.conv_proj = nn.Conv2d(shape.channels, width, kernel_size=patch_size, stride=patch_size)
        nn.init.trunc_normal_(model.conv_proj.weight, std=math.sqrt(1 / (shape.channels * patch_size**2)))
        nn.init.zeros_(model.conv_proj.get_parameter("bias"))
    return model


# by name, as in sweep.config.tables: width, layers, heads
vit_micro = partial(_vit, 64, 4, 4)
vit_tiny = partial(_vit, 192, 12, 3)
vit_small = partial(_vit, 384, 12, 6)
vit_base = partial(_vit, 768, 12, 12)
