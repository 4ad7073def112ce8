"""The fastest way to random crops and flips on a CPU: one copy of one run of bytes an image."""

from collections.abc import Callable
from functools import partial
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sweep.training.data.augment import crop_flip_on_cpu, pad_images
from sweep.training.data.images import Indices, Pixels

CropFunction = Callable[[Indices, Indices, Indices, NDArray[np.bool_]], Tensor]
_MIRRORED_BYTES = 2**30  # of a set with its mirror images; a larger one is mirrored batch by batch


def make_crops(pixels: Pixels, pad: int, *, channels_last: bool) -> CropFunction:
    """A function of rows, top, left and flip to uint8 windows (b, s, s, c) of ``pixels`` (n, s, s, c) on the CPU.

    The windows are those of :func:`~sweep.training.data.augment.crop_flip`. ``channels_last`` says which layout the
    step wants them in; it changes the strides and no value.
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
    """All images with black around them, and all of them mirrored, in one array.

    A window is cut out in one piece: from its first byte to its last, with what lies between its lines. The batch is a
    view of these pieces, and the step's conversion to floating point leaves the rest out.
    """

    def __init__(self, pixels: Pixels, pad: int, *, channels_last: bool) -> None:
        self._count, self._side, self._channels = len(pixels), int(pixels.shape[1]), int(pixels.shape[3])
        self._pad, self._padded = pad, self._side + 2 * pad
        self._channels_last = channels_last
        # of a pixel's neighbours in memory: one plane a channel, or one for all
        self._line = self._padded * (self._channels if channels_last else 1)
        self._plane = self._padded * self._padded
        stock = self._stock(pixels)
        # row i is the piece that begins with byte i: every window is one of these rows
        self._pieces = stock.as_strided((len(stock) - self._piece_bytes + 1, self._piece_bytes), (1, 1))

    @property
    def _piece_bytes(self) -> int:
        lines = (self._side - 1) * self._line
        if self._channels_last:
            return lines + self._side * self._channels
        return (self._channels - 1) * self._plane + lines + self._side

    def _stock(self, pixels: Pixels) -> Tensor:
        side, channels = self._padded, self._channels
        shape = (side, side, channels) if self._channels_last else (channels, side, side)
        # numpy asks the kernel for huge pages, without which every image costs several misses of the address cache
        stock = torch.from_numpy(np.empty((2, self._count, *shape), dtype=np.uint8)).zero_()
        inside = stock if self._channels_last else stock.permute(0, 1, 3, 4, 2)
        inside = inside.narrow(2, self._pad, self._side).narrow(3, self._pad, self._side)
        inside[0] = images = torch.tensor(pixels)
        inside[1] = images.flip(2)
        return stock.flatten()

    def take(self, rows: Indices, top: Indices, left: Indices, flip: NDArray[np.bool_]) -> Tensor:
        """The windows, as :data:`Crops` says."""
        images = rows + flip * self._count
        columns = np.where(flip, 2 * self._pad - left, left)
        step = self._channels if self._channels_last else 1
        first = images * (self._plane * self._channels) + top * self._line + columns * step
        pieces = self._pieces.index_select(0, torch.from_numpy(first))
        plane = 1 if self._channels_last else self._plane
        shape = (len(rows), self._side, self._side, self._channels)
        return pieces.as_strided(shape, (self._piece_bytes, self._line, step, plane))
