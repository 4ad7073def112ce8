"""RandAugment (Cubuk et al. 2019, arXiv:1909.13719) in batches, each image with its own operations.

The fourteen operations and their strengths are torchvision's, on uint8 images with channels last.
"""

import math
from collections.abc import Callable
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from sweep.config.trial_config import TrialConfig
from sweep.training.data.augment import send_array
from sweep.training.data.images import Indices

_LEVELS = 30  # magnitudes go from 0 to this
_STREAM = 1  # of an epoch's random numbers; 0 is the plan's
_GRAY = np.array((0.2989, 0.587, 0.114), dtype=np.float32)

Operation = Callable[[Tensor, Tensor, float], Tensor]  # uint8 (b, s, s, c), sign (b,), strength in [0, 1] -> uint8


@final
class RandAugment:
    """``data.augment_ops`` operations in succession, drawn for each sample of an epoch by its position."""

    def __init__(self, config: TrialConfig, num_samples: int) -> None:
        self._config = config
        self._num_samples = num_samples
        self._strength = config.data.augment_magnitude / _LEVELS

    def begin_epoch(self, epoch: int) -> None:
        """Draws from the trial's seed and the epoch alone."""
        generator = np.random.default_rng((self._config.seed, epoch, _STREAM))
        shape = (self._config.data.augment_ops, self._num_samples)
        self._operations = generator.integers(0, len(OPERATIONS), shape)
        self._signs = generator.integers(0, 2, shape).astype(np.float32) * 2 - 1

    def __call__(self, images: Tensor, where: slice | Indices) -> Tensor:
        """Transforms the ``images`` (b, s, s, c) uint8 of the positions ``where``."""
        for chosen, signs in zip(self._operations[:, where], self._signs[:, where], strict=True):
            images = apply_operations(images, chosen, signs, self._strength)
        return images


def apply_operations(images: Tensor, chosen: Indices, signs: NDArray[np.float32], strength: float) -> Tensor:
    """Applies to each of ``images`` (b, s, s, c) an operation: its number in the table and sign, both (b,).

    The host has the choices, so that each operation gets its own images only and the host does not wait for a GPU.
    """
    out = images.clone()
    operations = list(OPERATIONS.values())
    for number in np.unique(chosen):
        members = np.flatnonzero(chosen == number)
        rows, sign = send_array(members, images.device), send_array(signs[members], images.device)
        out[rows] = operations[number](images[rows], sign, strength)
    return out


def _sample_pixels(images: Tensor, x: Tensor, y: Tensor) -> Tensor:
    # the pixels at (x, y), each (b, s, s), in pixels from the center of the first one; black outside
    side = images.shape[1]
    columns, lines = x.round().long(), y.round().long()
    is_inside = (columns >= 0) & (columns < side) & (lines >= 0) & (lines < side)
    batch = torch.arange(len(images), device=images.device)[:, None, None]
    return images[batch, lines.clamp(0, side - 1), columns.clamp(0, side - 1)] * is_inside[..., None]


def _coordinates(images: Tensor) -> tuple[Tensor, Tensor]:
    steps = torch.arange(images.shape[1], device=images.device, dtype=torch.float32)
    return steps[None, None, :], steps[None, :, None]


def _shear_x(images: Tensor, sign: Tensor, strength: float) -> Tensor:
    x, y = _coordinates(images)
    return _sample_pixels(
        images, x + 0.3 * strength * sign[:, None, None] * (y + 0.5), y.expand(len(images), -1, x.shape[2])
    )


def _shear_y(images: Tensor, sign: Tensor, strength: float) -> Tensor:
    return _transpose(_shear_x(_transpose(images), sign, strength))


def _translate_x(images: Tensor, sign: Tensor, strength: float) -> Tensor:
    x, y = _coordinates(images)
    shift = math.floor(150 / 331 * images.shape[1] * strength) * sign[:, None, None]
    return _sample_pixels(images, x - shift + 0 * y, y.expand(len(images), -1, x.shape[2]))


def _translate_y(images: Tensor, sign: Tensor, strength: float) -> Tensor:
    return _transpose(_translate_x(_transpose(images), sign, strength))


def _transpose(images: Tensor) -> Tensor:
    return images.transpose(1, 2)


def _rotate(images: Tensor, sign: Tensor, strength: float) -> Tensor:
    x, y = _coordinates(images)
    center = (images.shape[1] - 1) / 2
    angle = math.radians(30 * strength) * sign[:, None, None]
    x, y, cosine, sine = x - center, y - center, angle.cos(), angle.sin()
    return _sample_pixels(images, cosine * x - sine * y + center, sine * x + cosine * y + center)


def _blend(images: Tensor, other: Tensor | float, sign: Tensor, strength: float) -> Tensor:
    # toward ``other`` with a negative sign, away from it with a positive one
    factor = (1 + 0.9 * strength * sign)[:, None, None, None]
    return (factor * images + (1 - factor) * other).clamp_(0, 255).to(torch.uint8)


def _brightness(images: Tensor, sign: Tensor, strength: float) -> Tensor:
    return _blend(images, 0.0, sign, strength)


def _gray(images: Tensor) -> Tensor:
    if images.shape[3] != 3:
        return images[..., :1]
    return (images * send_array(_GRAY, images.device)).sum(3, keepdim=True).to(torch.uint8)


def _color(images: Tensor, sign: Tensor, strength: float) -> Tensor:
    return images if images.shape[3] != 3 else _blend(images, _gray(images), sign, strength)


def _contrast(images: Tensor, sign: Tensor, strength: float) -> Tensor:
    return _blend(images, _gray(images).float().mean((1, 2, 3), keepdim=True), sign, strength)


def _sharpness(images: Tensor, sign: Tensor, strength: float) -> Tensor:
    channels = images.shape[3]
    kernel = torch.ones(3, 3, device=images.device)
    kernel[1, 1] = 5
    floats = images.permute(0, 3, 1, 2).float()
    smooth = functional.conv2d(floats, (kernel / 13).expand(channels, 1, 3, 3), groups=channels).round()
    floats[:, :, 1:-1, 1:-1] = smooth
    return _blend(images, floats.permute(0, 2, 3, 1), sign, strength)


def _posterize(images: Tensor, _sign: Tensor, strength: float) -> Tensor:
    bits = 8 - round(4 * strength)
    return images.bitwise_and(256 - 2 ** (8 - bits))


def _solarize(images: Tensor, _sign: Tensor, strength: float) -> Tensor:
    return torch.where(images >= 255 * (1 - strength), 255 - images, images)


def _auto_contrast(images: Tensor, _sign: Tensor, _strength: float) -> Tensor:
    low, high = images.amin((1, 2), keepdim=True).float(), images.amax((1, 2), keepdim=True).float()
    is_flat = high == low
    scale = torch.where(is_flat, 1.0, 255 / (high - low))
    return ((images - torch.where(is_flat, 0.0, low)) * scale).clamp_(0, 255).to(torch.uint8)


def _equalize(images: Tensor, _sign: Tensor, _strength: float) -> Tensor:
    levels = images.permute(0, 3, 1, 2).flatten(2).long()  # (b, c, pixels)
    counts = levels.new_zeros((*levels.shape[:2], 256)).scatter_add_(2, levels, torch.ones_like(levels))
    brightest = counts.gather(2, levels.amax(2, keepdim=True))
    step = (levels.shape[2] - brightest) // 255
    table = (counts.cumsum(2) - counts + step // 2) // step.clamp(min=1)
    table = torch.where(step > 0, table.clamp(0, 255), torch.arange(256, device=images.device))
    out = table.gather(2, levels).to(torch.uint8)
    return out.reshape(images.shape[0], images.shape[3], *images.shape[1:3]).permute(0, 2, 3, 1)


OPERATIONS: dict[str, Operation] = {
    "Identity": lambda images, _sign, _strength: images,
    "ShearX": _shear_x,
    "ShearY": _shear_y,
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
    "Rotate": _rotate,
    "Brightness": _brightness,
    "Color": _color,
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": _posterize,
    "Solarize": _solarize,
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
}
