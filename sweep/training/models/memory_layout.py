"""Layers whose gradients keep the memory layout of their input.

torch's own slice and mean hand back a contiguous gradient whatever the layout was; where it meets channels_last
activations, element-wise kernels walk two layouts at once, an order of magnitude slower on a CPU. The values are the
same, bit for bit, where the layout is contiguous.
"""

from typing import final

import torch
from torch import Tensor, nn
from torch.nn import functional


def is_channels_last(images: Tensor) -> bool:
    """Whether ``images`` (n, c, h, w) lie in memory with their channels last, and only so."""
    return images.is_contiguous(memory_format=torch.channels_last) and not images.is_contiguous()


@final
class GlobalPool(nn.Module):
    """The mean over all pixels: (n, c, h, w) -> (n, c, 1, 1)."""

    def forward(self, images: Tensor) -> Tensor:
        """As ``AdaptiveAvgPool2d(1)``."""
        if is_channels_last(images):
            return images.permute(0, 2, 3, 1).mean((1, 2))[:, :, None, None]
        return functional.adaptive_avg_pool2d(images, 1)


def every_second_pixel(images: Tensor, before: int, after: int) -> Tensor:
    """(n, c, h, w) -> (n, before + c + after, ceil(h / 2), ceil(w / 2)); the new channels are zero."""
    if is_channels_last(images):
        last = images.permute(0, 2, 3, 1)
        return functional.pad(last[:, ::2, ::2], (before, after)).permute(0, 3, 1, 2)
    return functional.pad(images[:, :, ::2, ::2], (0, 0, 0, 0, before, after))
