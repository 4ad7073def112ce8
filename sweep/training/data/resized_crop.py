"""A part of each image at a random place, size and aspect ratio, brought back to the whole side (Szegedy et al. 2014,
arXiv:1409.4842), in batches of uint8 images with channels last.

Boxes are drawn as by torchvision's ``RandomResizedCrop``. All arithmetic is in integers, so that an image is the same
to the last bit in every batch and on every device.
"""

from math import log
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweep.config.trial_config import TrialConfig
from sweep.training.data.augment import send_array
from sweep.training.data.images import Indices

_AREA = (0.08, 1.0)  # of the image
_LOG_RATIO = (log(3 / 4), log(4 / 3))  # of width over height
_NUM_TRIES = 10  # to draw a box that lies in the image, before the whole image is taken
_STREAM = 4  # of an epoch's random numbers; 0 is the plan's, 1 RandAugment's, 2 the mixer's, 3 the alternating flip's
_BITS = 11  # of a weight
_HALF = 1 << (_BITS - 1)


@final
class ResizedCrop:
    """Boxes for each sample of an epoch by its position, and the images that they give."""

    def __init__(self, config: TrialConfig, num_samples: int, side: int) -> None:
        self._seed = config.seed
        self._num_samples = num_samples
        self._side = side

    def begin_epoch(self, epoch: int) -> None:
        """Draws from the trial's seed and the epoch alone."""
        self._boxes = draw_boxes(np.random.default_rng((self._seed, epoch, _STREAM)), self._num_samples, self._side)

    def __call__(self, images: Tensor, where: slice | Indices) -> Tensor:
        """Transforms the ``images`` (b, s, s, c) uint8 of the positions ``where``."""
        return resize_boxes(images, send_array(self._boxes[where], images.device))


def draw_boxes(generator: np.random.Generator, count: int, side: int) -> Indices:
    """Boxes in square images: (count, 4), top, left, height and width in pixels."""
    boxes = np.tile(np.array([0, 0, side, side], dtype=np.int64), (count, 1))  # torchvision's fallback in a square
    missing = np.arange(count)
    for _ in range(_NUM_TRIES):
        area = side**2 * generator.uniform(*_AREA, len(missing))
        ratio = np.exp(generator.uniform(*_LOG_RATIO, len(missing)))
        height, width = _to_pixels(np.sqrt(area / ratio)), _to_pixels(np.sqrt(area * ratio))
        place = generator.random((2, len(missing)))
        top, left = _to_offsets(place[0], side - height), _to_offsets(place[1], side - width)
        is_inside = (height > 0) & (height <= side) & (width > 0) & (width <= side)
        boxes[missing[is_inside]] = np.stack([top, left, height, width], axis=1)[is_inside]
        missing = missing[~is_inside]
    return boxes


def _to_pixels(lengths: NDArray[np.float64]) -> Indices:
    return np.rint(lengths).astype(np.int64)


def _to_offsets(place: NDArray[np.float64], room: Indices) -> Indices:
    return np.floor(place * (room + 1)).astype(np.int64)  # 0 to room, all equally likely


def resize_boxes(images: Tensor, boxes: Tensor) -> Tensor:
    """The part of each of ``images`` (b, s, s, c) uint8 in its box (top, left, height, width), ``boxes`` (b, 4) int64,
    at the whole side, by bilinear interpolation: (b, s, s, c) uint8.
    """
    top, left, height, width = boxes.unbind(1)
    lines = _resize_lines(images, top, height)
    return _resize_lines(lines.transpose(1, 2), left, width).transpose(1, 2).contiguous()


def _resize_lines(images: Tensor, start: Tensor, length: Tensor) -> Tensor:
    """The lines from ``start``, ``length`` of them, both (b,), of ``images`` (b, s, n, c), brought to s lines."""
    count, side = images.shape[:2]
    steps = 2 * torch.arange(side, device=images.device) + 1
    # the middle of each new line, counted from that of the first old one, in units of 2^-11 lines
    middle = torch.div(((length[:, None] * steps) << _BITS) + side, 2 * side, rounding_mode="floor") - _HALF
    last = length[:, None] - 1
    middle = torch.minimum(middle.clamp_(min=0), last << _BITS)
    above, weight = middle >> _BITS, (middle & ((1 << _BITS) - 1)).to(torch.int32).view(-1, 1)
    first = start[:, None] + side * torch.arange(count, device=images.device)[:, None]
    flat = images.flatten(2).flatten(0, 1)  # whole lines are copied in one piece
    upper = flat.index_select(0, (first + above).flatten()).to(torch.int32)
    lower = flat.index_select(0, (first + torch.minimum(above + 1, last)).flatten()).to(torch.int32)
    lower.sub_(upper).mul_(weight).add_(_HALF).bitwise_right_shift_(_BITS).add_(upper)
    return lower.to(torch.uint8).view(images.shape)
