"""Augmentation in batches of uint8 images with channels last: crops and flips, RandAugment, resized crops, mixing.

All draws belong to the sample and not to a batch, so that they do not depend on the micro batch.
"""

import math
from collections.abc import Callable
from typing import Any, final

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from torch.nn.functional import one_hot

from sweep.config.trial import TrialConfig
from sweep.training.data.images import Indices, Pixels

_Operation = Callable[[Tensor, Tensor, float], Tensor]  # uint8 (b, s, s, c), sign (b,), strength in [0, 1] -> uint8
# Streams of an epoch's random numbers, after (seed, epoch). Its plan has the first one, the alternating flip number 3.
_RANDAUGMENT_STREAM, _MIX_STREAM, _RESIZED_CROP_STREAM = 1, 2, 4


def send_array(array: NDArray[Any], device: torch.device) -> Tensor:
    """``array`` as a tensor on ``device``. The host does not wait for a GPU: the driver copies the array at once."""
    return torch.from_numpy(array).to(device, non_blocking=True)


def pad_images(images: Tensor, pad: int) -> Tensor:
    """(n, s, s, c) -> (n, s + 2 pad, s + 2 pad, c), with a black border."""
    return torch.nn.functional.pad(images, (0, 0, pad, pad, pad, pad)) if pad else images


def crop_flip(padded: Tensor, rows: Tensor, top: Tensor, left: Tensor, flip: Tensor, side: int) -> Tensor:
    """Windows of ``padded`` (n, p, p, c) for the images ``rows``, each at its own offset and side: (b, s, s, c).

    One gather, in which flipped images read their columns backwards: the fastest way on a GPU.
    """
    steps = torch.arange(side, device=padded.device)
    columns = torch.where(flip[:, None], side - 1 - steps, steps) + left[:, None]
    lines = steps + top[:, None]
    return padded[rows[:, None, None], lines[:, :, None], columns[:, None, :]]


def crop_flip_on_cpu(
    padded: Pixels, rows: Indices, top: Indices, left: Indices, flip: NDArray[np.bool_], side: int
) -> Pixels:
    """The result of :func:`crop_flip` by strided windows, which are several times faster on a CPU than its gather."""
    windows = sliding_window_view(padded, (side, side), axis=(1, 2)).transpose(0, 1, 2, 4, 5, 3)
    images: Pixels = windows[rows, top, left]
    flipped = np.flatnonzero(flip)
    # by torch, because numpy copies a mirrored row pixel by pixel
    images[flipped] = torch.from_numpy(images[flipped]).flip(2).numpy()
    return images


@final
class MirroredCrops:
    """The fastest way to :func:`crop_flip` on a CPU: all images with a black border, and all of them mirrored, in one
    array.

    A window is copied as one piece, from its first byte to its last, including the bytes between its rows. The batch is
    a view of these pieces; the step's conversion to floating point drops the bytes between. ``channels_last`` is the
    memory format that the step requires; it changes the strides and no value.
    """

    def __init__(self, pixels: Pixels, pad: int, *, channels_last: bool) -> None:
        self._count, self._side, self._channels = len(pixels), int(pixels.shape[1]), int(pixels.shape[3])
        self._pad, self._padded = pad, self._side + 2 * pad
        self._channels_last = channels_last
        # bytes of a row and of a plane: one plane per channel, or one for all channels
        self._line = self._padded * (self._channels if channels_last else 1)
        self._plane = self._padded * self._padded
        padded = self._pad_and_mirror(pixels)
        # row i is the piece that begins with byte i: every window is one of these rows
        self._pieces = padded.as_strided((len(padded) - self._piece_bytes + 1, self._piece_bytes), (1, 1))

    @property
    def _piece_bytes(self) -> int:
        lines = (self._side - 1) * self._line
        if self._channels_last:
            return lines + self._side * self._channels
        return (self._channels - 1) * self._plane + lines + self._side

    def _pad_and_mirror(self, pixels: Pixels) -> Tensor:
        side, channels = self._padded, self._channels
        shape = (side, side, channels) if self._channels_last else (channels, side, side)
        # allocated by numpy, which requests huge pages; without them every image costs several TLB misses
        padded = torch.from_numpy(np.empty((2, self._count, *shape), dtype=np.uint8)).zero_()
        inside = padded if self._channels_last else padded.permute(0, 1, 3, 4, 2)
        inside = inside.narrow(2, self._pad, self._side).narrow(3, self._pad, self._side)
        inside[0] = images = torch.tensor(pixels)
        inside[1] = images.flip(2)
        return padded.flatten()

    def take(self, rows: Indices, top: Indices, left: Indices, flip: NDArray[np.bool_]) -> Tensor:
        images = rows + flip * self._count
        columns = np.where(flip, 2 * self._pad - left, left)
        step = self._channels if self._channels_last else 1
        first = images * (self._plane * self._channels) + top * self._line + columns * step
        pieces = self._pieces.index_select(0, torch.from_numpy(first))
        plane = 1 if self._channels_last else self._plane
        shape = (len(rows), self._side, self._side, self._channels)
        return pieces.as_strided(shape, (self._piece_bytes, self._line, step, plane))


@final
class SampleMixer:
    """Mixes each sample of an epoch with another one of it, by mixup (Zhang et al. 2017, arXiv:1710.09412) or cutmix
    (Yun et al. 2019, arXiv:1905.04899), by a fair coin where both are on.

    Weights are drawn from Beta(alpha, alpha). Each image is fetched twice, because its partner may be in another batch.
    """

    def __init__(self, config: TrialConfig, num_samples: int, side: int, num_classes: int) -> None:
        self._seed = config.seed
        self._alphas = (config.regularization.mixup, config.regularization.cutmix)
        self._num_samples = num_samples
        self._side = side
        self._num_classes = num_classes

    def begin_epoch(self, epoch: int) -> None:
        """Draws for all samples, from the trial's seed and the epoch alone."""
        generator = np.random.default_rng((self._seed, epoch, _MIX_STREAM))
        count, (mixup, cutmix) = self._num_samples, self._alphas
        self._partner = generator.permutation(count)
        is_cut = generator.random(count) < (0.5 if mixup and cutmix else float(cutmix > 0))
        share = np.where(is_cut, _beta(generator, cutmix, count), _beta(generator, mixup, count))
        middle = generator.integers(0, self._side, (2, count))
        half = np.where(is_cut, np.floor(self._side * np.sqrt(1 - share)), 0).astype(np.int64) // 2
        low, high = (np.clip(middle + sign * half, 0, self._side) for sign in (-1, 1))
        self._box = np.stack([low[0], high[0], low[1], high[1]], axis=1).astype(np.int64)  # rows, columns
        self._outside = np.where(is_cut, 1.0, share).astype(np.float32)
        area = (high - low).prod(axis=0) / self._side**2
        self._weight = np.where(is_cut, 1 - area, share).astype(np.float32)

    def positions(self, micro: slice) -> Indices:
        """The samples of ``micro`` and then their partners, by position in the epoch's order."""
        return np.concatenate([np.arange(micro.start, micro.stop), self._partner[micro]])

    def __call__(self, images: Tensor, labels: Tensor, micro: slice) -> tuple[Tensor, Tensor]:
        """Mixes the images of :meth:`positions`: (2 b, s, s, c) uint8 and labels (2 b,) -> (b, s, s, c) uint8 and class
        weights (b, classes)."""
        device, count = images.device, micro.stop - micro.start
        weight, outside, box = (send_array(draw[micro], device) for draw in (self._weight, self._outside, self._box))
        mixed = mix_images(images[:count], images[count:], outside, box)
        classes = one_hot(labels, self._num_classes).to(weight.dtype)
        return mixed, torch.lerp(classes[count:], classes[:count], weight[:, None])


def mix_images(images: Tensor, partners: Tensor, outside: Tensor, box: Tensor) -> Tensor:
    """Pastes the partner inside a box; elsewhere blends, with the share ``outside`` (b,) of the image.

    ``images`` and ``partners`` are (b, s, s, c) uint8, and so is the result; ``box`` is (b, 4): first and last row,
    first and last column (exclusive).
    """
    steps = torch.arange(images.shape[1], device=images.device)
    lines = (steps >= box[:, 0, None]) & (steps < box[:, 1, None])
    columns = (steps >= box[:, 2, None]) & (steps < box[:, 3, None])
    is_inside = (lines[:, :, None] & columns[:, None, :])[..., None]
    share = torch.where(is_inside, 0.0, outside[:, None, None, None])
    return torch.lerp(partners.to(share.dtype), images.to(share.dtype), share).round_().to(torch.uint8)


def _beta(generator: np.random.Generator, alpha: float, count: int) -> NDArray[np.float64]:
    return generator.beta(alpha, alpha, count) if alpha else np.ones(count)


_LEVELS = 30  # magnitudes of RandAugment go from 0 to this
_GRAY = np.array((0.2989, 0.587, 0.114), dtype=np.float32)


@final
class RandAugment:
    """RandAugment (Cubuk et al. 2019, arXiv:1909.13719) in batches, each image with its own operations.

    ``data.augment_ops`` operations in succession are drawn for each sample of an epoch by its position.
    """

    def __init__(self, config: TrialConfig, num_samples: int) -> None:
        self._config = config
        self._num_samples = num_samples
        self._strength = config.data.augment_magnitude / _LEVELS

    def begin_epoch(self, epoch: int) -> None:
        generator = np.random.default_rng((self._config.seed, epoch, _RANDAUGMENT_STREAM))
        shape = (self._config.data.augment_ops, self._num_samples)
        self._operations = generator.integers(0, len(OPERATIONS), shape)
        self._signs = generator.integers(0, 2, shape).astype(np.float32) * 2 - 1

    def __call__(self, images: Tensor, where: slice | Indices) -> Tensor:
        for numbers, signs in zip(self._operations[:, where], self._signs[:, where], strict=True):
            images = apply_operations(images, numbers, signs, self._strength)
        return images


def apply_operations(images: Tensor, numbers: Indices, signs: NDArray[np.float32], strength: float) -> Tensor:
    """Applies to each of ``images`` (b, s, s, c) the operation of its number in the table, with its sign, both (b,).

    The host has the numbers, so that each operation gets its own images only and the host does not wait for a GPU.
    """
    out = images.clone()
    operations = list(OPERATIONS.values())
    for number in np.unique(numbers):
        members = np.flatnonzero(numbers == number)
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


def _along_y(operation: _Operation) -> _Operation:
    return lambda images, sign, strength: operation(images.transpose(1, 2), sign, strength).transpose(1, 2)


def _shear_x(images: Tensor, sign: Tensor, strength: float) -> Tensor:
    x, y = _coordinates(images)
    sheared = x + 0.3 * strength * sign[:, None, None] * (y + 0.5)
    return _sample_pixels(images, sheared, y.expand(len(images), -1, x.shape[2]))


def _translate_x(images: Tensor, sign: Tensor, strength: float) -> Tensor:
    x, y = _coordinates(images)
    shift = math.floor(150 / 331 * images.shape[1] * strength) * sign[:, None, None]
    return _sample_pixels(images, x - shift + 0 * y, y.expand(len(images), -1, x.shape[2]))


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


def _gray(images: Tensor) -> Tensor:
    if images.shape[3] != 3:
        return images[..., :1]
    return (images * send_array(_GRAY, images.device)).sum(3, keepdim=True).to(torch.uint8)


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


OPERATIONS: dict[str, _Operation] = {
    "Identity": lambda images, _sign, _strength: images,
    "ShearX": _shear_x,
    "ShearY": _along_y(_shear_x),
    "TranslateX": _translate_x,
    "TranslateY": _along_y(_translate_x),
    "Rotate": _rotate,
    "Brightness": lambda images, sign, strength: _blend(images, 0.0, sign, strength),
    "Color": lambda images, *by: images if images.shape[3] != 3 else _blend(images, _gray(images), *by),
    "Contrast": _contrast,
    "Sharpness": _sharpness,
    "Posterize": lambda images, _sign, strength: images.bitwise_and(256 - 2 ** round(4 * strength)),
    "Solarize": lambda images, _sign, strength: torch.where(images >= 255 * (1 - strength), 255 - images, images),
    "AutoContrast": _auto_contrast,
    "Equalize": _equalize,
}


_AREA = (0.08, 1.0)  # of a resized crop, as a share of the image
_LOG_RATIO = (math.log(3 / 4), math.log(4 / 3))  # of its width over its height
_NUM_TRIES = 10  # to draw a box that lies in the image, before the whole image is taken
_BITS = 11  # of a weight
_HALF = 1 << (_BITS - 1)


@final
class ResizedCrop:
    """A part of each image at a random position, size and aspect ratio, brought to one ``side`` (Szegedy et al. 2014,
    arXiv:1409.4842); drawn for each sample of an epoch by its position, in images of ``stored_side``."""

    def __init__(self, config: TrialConfig, num_samples: int, stored_side: int, side: int) -> None:
        self._seed = config.seed
        self._num_samples = num_samples
        self._stored_side, self._side = stored_side, side

    def begin_epoch(self, epoch: int) -> None:
        generator = np.random.default_rng((self._seed, epoch, _RESIZED_CROP_STREAM))
        self._boxes = draw_boxes(generator, self._num_samples, self._stored_side)

    def __call__(self, images: Tensor, where: slice | Indices) -> Tensor:
        return resize_boxes(images, send_array(self._boxes[where], images.device), self._side)


def draw_boxes(generator: np.random.Generator, count: int, side: int) -> Indices:
    """Boxes in square images: (count, 4), top, left, height and width in pixels."""
    boxes = np.tile(np.array([0, 0, side, side], dtype=np.int64), (count, 1))  # torchvision's fallback in a square
    missing = np.arange(count)
    for _ in range(_NUM_TRIES):
        area = side**2 * generator.uniform(*_AREA, len(missing))
        ratio = np.exp(generator.uniform(*_LOG_RATIO, len(missing)))
        height, width = (np.rint(np.sqrt(square)).astype(np.int64) for square in (area / ratio, area * ratio))
        # 0 to the room that is left, all equally likely
        offsets = generator.random((2, len(missing))) * (side - np.stack([height, width]) + 1)
        top, left = np.floor(offsets).astype(np.int64)
        is_inside = (height > 0) & (height <= side) & (width > 0) & (width <= side)
        boxes[missing[is_inside]] = np.stack([top, left, height, width], axis=1)[is_inside]
        missing = missing[~is_inside]
    return boxes


def resize_boxes(images: Tensor, boxes: Tensor, side: int) -> Tensor:
    """The part of each of ``images`` (b, s, s, c) uint8 in its box (top, left, height, width), ``boxes`` (b, 4) int64,
    by bilinear interpolation: (b, side, side, c) uint8.
    """
    top, left, height, width = boxes.unbind(1)
    lines = _resize_lines(images, top, height, side)
    return _resize_lines(lines.transpose(1, 2), left, width, side).transpose(1, 2).contiguous()


def _resize_lines(images: Tensor, start: Tensor, length: Tensor, side: int) -> Tensor:
    """The ``length`` lines from ``start``, both (b,), of ``images`` (b, s, n, c), brought to ``side`` lines."""
    count, num_lines = images.shape[:2]
    steps = 2 * torch.arange(side, device=images.device) + 1
    # the middle of each new line, counted from the middle of the first old one, in units of 2^-11 lines
    middle = torch.div(((length[:, None] * steps) << _BITS) + side, 2 * side, rounding_mode="floor") - _HALF
    last = length[:, None] - 1
    middle = torch.minimum(middle.clamp_(min=0), last << _BITS)
    above, weight = middle >> _BITS, (middle & ((1 << _BITS) - 1)).to(torch.int32).view(-1, 1)
    first = start[:, None] + num_lines * torch.arange(count, device=images.device)[:, None]
    flat = images.flatten(2).flatten(0, 1)  # whole lines are copied in one piece
    upper = flat.index_select(0, (first + above).flatten()).to(torch.int32)
    lower = flat.index_select(0, (first + torch.minimum(above + 1, last)).flatten()).to(torch.int32)
    lower.sub_(upper).mul_(weight).add_(_HALF).bitwise_right_shift_(_BITS).add_(upper)
    return lower.to(torch.uint8).view(count, side, *images.shape[2:])
