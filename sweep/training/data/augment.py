"""Random crops and flips, mixup and cutmix, in batches of uint8 images with channels last.

All draws belong to the sample and not to a batch, so that they do not depend on the micro batch.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, final

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from sweep.config.trial_config import TrialConfig
from sweep.training.data.images import Indices, Pixels

# rows, top, left and flip, each (b,) -> uint8 (b, s, s, c)
CropFunction = Callable[[Indices, Indices, Indices, NDArray[np.bool_]], Tensor]
_MIRRORED_BYTES = 2**30  # of a set with its mirror images; a larger one is mirrored batch by batch
_STREAM = 2  # of an epoch's random numbers; 0 is the plan's, 1 RandAugment's


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


def make_crops(pixels: Pixels, pad: int, *, channels_last: bool) -> CropFunction:
    """The fastest function on a CPU that computes :func:`crop_flip` of ``pixels`` (n, s, s, c).

    ``channels_last`` is the memory format that the step requires; it changes the strides and no value.
    """
    count, side, _, channels = pixels.shape
    if 2 * count * (side + 2 * pad) ** 2 * channels <= _MIRRORED_BYTES:
        return MirroredCrops(pixels, pad, channels_last=channels_last).take
    padded = pad_images(torch.tensor(pixels), pad).numpy()
    return partial(_crop_batch, padded, side)


def _crop_batch(
    padded: Pixels, side: int, rows: Indices, top: Indices, left: Indices, flip: NDArray[np.bool_]
) -> Tensor:
    return torch.from_numpy(crop_flip_on_cpu(padded, rows, top, left, flip, side))


@final
class MirroredCrops:
    """All images with a black border, and all of them mirrored, in one array.

    A window is copied as one piece, from its first byte to its last, including the bytes between its rows. The batch is
    a view of these pieces; the step's conversion to floating point drops the bytes between.
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
        """The windows, as :data:`CropFunction`."""
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
        generator = np.random.default_rng((self._seed, epoch, _STREAM))
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

    def positions(self, part: slice) -> Indices:
        """The samples of ``part`` and then their partners, by position in the epoch's order."""
        return np.concatenate([np.arange(part.start, part.stop), self._partner[part]])

    def __call__(self, images: Tensor, labels: Tensor, part: slice) -> tuple[Tensor, Tensor]:
        """Mixes the images of :meth:`positions`: (2 b, s, s, c) uint8 and labels (2 b,) -> (b, s, s, c) uint8 and class
        weights (b, classes)."""
        device, count = images.device, part.stop - part.start
        weight, outside, box = (send_array(draw[part], device) for draw in (self._weight, self._outside, self._box))
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
