"""The way of the images to the device: resident there as one uint8 tensor, or streamed from the host."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sweep.config.trial_config import TrialConfig
from sweep.training.data.augment import crop_flip, pad_images
from sweep.training.data.crops import make_crops
from sweep.training.data.images import ArrayImages, Images, Indices, Pixels
from sweep.training.data.mixing import SampleMixer
from sweep.training.data.randaugment import RandAugment
from sweep.training.data.windows import Window, choose_crop_pad, plan_epoch
from sweep.training.subprocesses import die_with_parent

# uint8 (b, s, s, c), or float (b, c, s, s) where normalised already, and int64 (b,), both on the device; of mixed
# images float (b, classes), the weights of the classes
Batch = tuple[Tensor, Tensor]
_READY_PIXELS = 2**22  # of a set that is kept normalised, at most
_RESIDENT_SHARE = 0.25  # of the free device memory; a larger set stays on the host


class Feeder(Protocol):
    """Hands out the training split epoch by epoch, window by window, in the plan's order."""

    def begin_epoch(self, epoch: int, windows: tuple[Window, ...]) -> None:
        """Orders the whole split for ``epoch``; ``windows`` are what will be asked for, maybe a part of it."""
        ...

    def micro_batches(self, window: Window) -> Iterator[Batch]: ...


def make_feeder(
    config: TrialConfig,
    images: Images,
    device: torch.device,
    num_classes: int = 0,
    normalize: Callable[[Tensor], Tensor] | None = None,
) -> Feeder:
    """A feeder of the training split: resident where it was asked for and there is room, else streamed.

    ``num_classes`` is for mixup and cutmix, whose labels are weights of all classes. With ``normalise``, images that
    nothing will change may come normalised.
    """
    if isinstance(images, ArrayImages) and config.data.placement == "device" and _fits(images, device):
        if normalize and _is_small_and_fixed(config, images):
            return ReadyFeeder(config, images, device, normalize)
        return ResidentFeeder(config, images, device, num_classes)
    return StreamFeeder(config, images, device, num_classes)


def _fits(images: ArrayImages, device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return images.pixels.nbytes <= _RESIDENT_SHARE * free_bytes


def _is_small_and_fixed(config: TrialConfig, images: ArrayImages) -> bool:
    is_mixed = config.regularization.mixup or config.regularization.cutmix
    is_changed = config.data.augment != "none" or is_mixed
    return not is_changed and len(images) * images.side**2 <= _READY_PIXELS


@final
class ReadyFeeder:
    """A small set that nothing changes: normalised once, put in order once an epoch; a batch is a part of that.

    It is for models so small that fetching and normalising a batch would be felt.
    """

    def __init__(
        self, config: TrialConfig, images: ArrayImages, device: torch.device, normalize: Callable[[Tensor], Tensor]
    ) -> None:
        self._config = config
        self._all_images = normalize(torch.tensor(images.pixels, device=device))
        self._all_labels = torch.tensor(images.labels, device=device)

    def begin_epoch(self, epoch: int, windows: tuple[Window, ...]) -> None:
        del windows  # any can be asked for
        plan = plan_epoch(self._config, len(self._all_labels), 0, epoch)
        order = torch.from_numpy(plan.order).to(self._all_labels.device)
        # by an index in brackets, which keeps channels_last
        self._images, self._labels = self._all_images[order], self._all_labels[order]

    def micro_batches(self, window: Window) -> Iterator[Batch]:
        for part in window.slices:
            yield self._images[part], self._labels[part]


@final
class ResidentFeeder:
    """All images on the device; a batch is one gather there."""

    def __init__(self, config: TrialConfig, images: ArrayImages, device: torch.device, num_classes: int = 0) -> None:
        self._extras = _Extras(config, images, num_classes)
        self._config = config
        self._side = images.side
        self._pad = choose_crop_pad(config, images.side)
        self._labels = torch.tensor(images.labels, device=device)
        if device.type == "cpu" and config.data.augment != "none":
            self._crops = make_crops(images.pixels, self._pad, channels_last=config.precision.channels_last)
        else:
            # a copy, because a decoded folder may be a read-only map of a file
            self._images = pad_images(torch.tensor(images.pixels, device=device), self._pad)

    def begin_epoch(self, epoch: int, windows: tuple[Window, ...]) -> None:
        del windows  # any can be asked for
        self._extras.begin_epoch(epoch)
        self._plan = plan = plan_epoch(self._config, len(self._labels), self._pad, epoch)
        self._order = torch.from_numpy(plan.order).to(self._labels.device)
        if self._labels.device.type != "cpu" and self._config.data.augment != "none":
            draws = (plan.top, plan.left, plan.flip)
            self._draws = tuple(torch.from_numpy(draw).to(self._labels.device) for draw in draws)

    def micro_batches(self, window: Window) -> Iterator[Batch]:
        for part in window.slices:
            where = self._extras.positions(part)
            on_device = where if isinstance(where, slice) else torch.from_numpy(where).to(self._order.device)
            rows = self._order[on_device]
            yield self._extras.finish(self._gather(rows, where, on_device), self._labels.index_select(0, rows), part)

    def _gather(self, rows: Tensor, where: slice | Indices, on_device: slice | Tensor) -> Tensor:
        if self._config.data.augment == "none":
            return self._images.index_select(0, rows)
        if rows.device.type != "cpu":
            top, left, flip = (draw[on_device] for draw in self._draws)
            return crop_flip(self._images, rows, top, left, flip, self._side)
        plan = self._plan
        return self._crops(plan.order[where], plan.top[where], plan.left[where], plan.flip[where])


@final
class StreamFeeder:
    """Images on the host or in files, read by DataLoader workers; augmentation is done on the device."""

    def __init__(self, config: TrialConfig, images: Images, device: torch.device, num_classes: int = 0) -> None:
        self._extras = _Extras(config, images, num_classes)
        self._config = config
        self._side = images.side
        self._pad = choose_crop_pad(config, images.side)
        self._device = device
        self._num_samples = len(images)
        self._order = _Order()
        self._loader = _loader(images, self._order, config.data.workers, device, keep_workers=True)

    def begin_epoch(self, epoch: int, windows: tuple[Window, ...]) -> None:
        self._extras.begin_epoch(epoch)
        self._plan = plan_epoch(self._config, self._num_samples, self._pad, epoch)
        parts = [part for window in windows for part in window.slices]
        self._order.parts = [self._plan.order[self._extras.positions(part)] for part in parts]
        self._batches = _handed_over(self._loader)

    def micro_batches(self, window: Window) -> Iterator[Batch]:
        for part in window.slices:
            pixels, labels = next(self._batches)
            images = self._augment(pixels.to(self._device, non_blocking=True), self._extras.positions(part))
            yield self._extras.finish(images, labels.to(self._device, non_blocking=True), part)

    def _augment(self, images: Tensor, where: slice | Indices) -> Tensor:
        if self._config.data.augment == "none":
            return images
        draws = (self._plan.top, self._plan.left, self._plan.flip)
        top, left, flip = (torch.from_numpy(draw[where]).to(self._device) for draw in draws)
        rows = torch.arange(len(images), device=self._device)
        return crop_flip(pad_images(images, self._pad), rows, top, left, flip, self._side)


@final
class _Extras:
    """What some trainings do with cropped and flipped images: more operations on each, and mixing two."""

    def __init__(self, config: TrialConfig, images: Images, num_classes: int) -> None:
        is_mixed = config.regularization.mixup or config.regularization.cutmix
        self._operations = RandAugment(config, len(images)) if config.data.augment == "randaugment" else None
        self._mixing = SampleMixer(config, len(images), images.side, num_classes) if is_mixed else None

    def begin_epoch(self, epoch: int) -> None:
        """Draws for all samples."""
        for each in (self._operations, self._mixing):
            if each:
                each.begin_epoch(epoch)

    def positions(self, part: slice) -> slice | Indices:
        """What must be fetched for ``part``."""
        return self._mixing.positions(part) if self._mixing else part

    def finish(self, images: Tensor, labels: Tensor, part: slice) -> Batch:
        """The batch of ``part`` from what was fetched for it."""
        if self._operations:
            images = self._operations(images, self.positions(part))
        return self._mixing(images, labels, part) if self._mixing else (images, labels)


def make_plain_batches(
    config: TrialConfig, images: Images, size: int, device: torch.device
) -> Callable[[], Iterable[Batch]]:
    """A function that goes through all ``images`` in their order, without augmentation, ``size`` at a time."""
    parts = [np.arange(start, min(start + size, len(images))) for start in range(0, len(images), size)]
    if isinstance(images, ArrayImages) and config.data.placement == "device" and _fits(images, device):
        resident = [_to_device(images, part, device) for part in parts]
        return lambda: resident
    order = _Order()
    order.parts = parts
    loader = _loader(images, order, config.data.workers, device, keep_workers=False)
    return lambda: ((pixels.to(device), labels.to(device)) for pixels, labels in _handed_over(loader))


def _to_device(images: ArrayImages, part: Indices, device: torch.device) -> Batch:
    return torch.tensor(images.pixels[part], device=device), torch.tensor(images.labels[part], device=device)


@final
class _Order:
    """A sampler whose batches are set anew each epoch, while the workers live on."""

    def __init__(self) -> None:
        self.parts: list[Indices] = []

    def __iter__(self) -> Iterator[Indices]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)


@final
class _Batches(Dataset[Batch]):
    """Reads a whole batch at once: its index is an array."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __getitem__(self, indices: Indices) -> Batch:
        pixels: Pixels = np.ascontiguousarray(self.images.read(indices))
        return torch.from_numpy(pixels), torch.from_numpy(self.images.labels[indices])


def _loader(
    images: Images, order: _Order, workers: int, device: torch.device, *, keep_workers: bool
) -> DataLoader[Batch]:
    return DataLoader(
        _Batches(images),
        sampler=order,
        batch_size=None,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # a pass must draw nothing from the one that dropout draws from
        multiprocessing_context="fork" if workers else None,
        worker_init_fn=_die_with_parent if workers else None,
        persistent_workers=keep_workers and workers > 0,
    )


def _handed_over(loader: DataLoader[Batch]) -> Iterator[Batch]:
    """What the workers read. One that dies amid handing over breaks a connection before its death is noticed.

    Raises:
        RuntimeError: as torch says it of a worker that died between two batches.
    """
    try:
        yield from loader
    except (ConnectionError, EOFError) as error:
        raise RuntimeError(f"DataLoader worker (pid unknown) was lost amid handing over images: {error!r}") from error


def _die_with_parent(_worker: int) -> None:
    die_with_parent(os.getppid())  # a killed trial must leave no worker behind
    for number in (signal.SIGINT, signal.SIGUSR1):  # the trial's to decide, which may want more images before it leaves
        signal.signal(number, signal.SIG_IGN)
