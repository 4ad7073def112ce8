"""From the windows of a training to batches on the device: their order, each rank's part, and the transfer of images,
which are resident on the device as one tensor or streamed from the host."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sweep.config.trial import TrialConfig
from sweep.training.constants import CPU_RESIDENT_BYTES, READY_PIXELS, RESIDENT_SHARE
from sweep.training.data.augment import (
    MirroredCrops,
    RandAugment,
    ResizedCrop,
    SampleMixer,
    crop_flip,
    crop_flip_on_cpu,
    pad_images,
    send_array,
)
from sweep.training.data.images import ArrayImages, Images, Indices, Pixels
from sweep.training.data.windows import SizeAt, Window, choose_crop_pad, cut_windows, plan_epoch
from sweep.training.processes import die_with_parent
from sweep.training.world import World

_COPIED_IMAGES = 2**13  # at a time to the device

# images uint8 (b, s, s, c), or float (b, c, s, s) where already normalized, and labels int64 (b,), or for mixed images
# class weights (b, classes); both on the device
Batch = tuple[Tensor, Tensor]


class Feeder(Protocol):
    """Hands out the micro batches of the train split, epoch by epoch and window by window."""

    def begin_epoch(self, epoch: int, windows: tuple[Window, ...]) -> None:
        """Orders the whole split for ``epoch``; ``windows``, maybe a part of the epoch, are those that will be used."""
        ...

    def micro_batches(self, window: Window) -> Iterator[Batch]: ...


def make_feeder(
    config: TrialConfig,
    images: Images,
    device: torch.device,
    num_classes: int = 0,
    normalize: Callable[[Tensor], Tensor] | None = None,
) -> Feeder:
    """A feeder of the train split ``images``: resident where it is configured and the images fit, else streamed.

    ``num_classes`` is required for mixup and cutmix. With ``normalize``, a feeder of images that are not augmented may
    return them normalized.
    """
    if isinstance(images, ArrayImages) and config.data.placement == "device" and _fits(_stored(config, images), device):
        is_mixed = config.regularization.mixup or config.regularization.cutmix
        is_small = len(images) * images.side**2 <= READY_PIXELS
        if normalize and is_small and config.data.augment == "none" and not is_mixed:
            return ReadyFeeder(config, images, device, normalize)
        return ResidentFeeder(config, images, device, num_classes)
    return StreamFeeder(config, images, device, num_classes)


def _fits(images: ArrayImages, device: torch.device) -> bool:
    if device.type != "cuda":
        return images.num_bytes <= CPU_RESIDENT_BYTES
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return images.num_bytes <= RESIDENT_SHARE * free_bytes


def _stored(config: TrialConfig, images: ArrayImages) -> ArrayImages:
    """The images that are augmented: a resized crop is cut out of all that is stored."""
    return images.uncropped() if config.data.augment == "random_resized_crop" else images


def _copy_to(device: torch.device, images: ArrayImages) -> Tensor:
    pixels = torch.empty((len(images), images.side, images.side, images.channels), dtype=torch.uint8, device=device)
    for part in _even_parts(len(images), _COPIED_IMAGES, 0):  # the host never holds all of them
        pixels[part] = torch.from_numpy(np.ascontiguousarray(images.read(np.arange(part.start, part.stop))))
    return pixels


@final
class ReadyFeeder:
    """A small set without augmentation: normalized once, ordered once per epoch; a batch is a slice.

    It serves models so small that fetching and normalizing a batch would take a noticeable share of a step.
    """

    def __init__(
        self, config: TrialConfig, images: ArrayImages, device: torch.device, normalize: Callable[[Tensor], Tensor]
    ) -> None:
        self._config = config
        self._all_images = normalize(_copy_to(device, images))
        self._all_labels = torch.tensor(images.labels, device=device)

    def begin_epoch(self, epoch: int, windows: tuple[Window, ...]) -> None:
        del windows  # all are available
        plan = plan_epoch(self._config, len(self._all_labels), 0, epoch)
        order = send_array(plan.order, self._all_labels.device)
        # by indexing, which keeps channels_last
        self._images, self._labels = self._all_images[order], self._all_labels[order]

    def micro_batches(self, window: Window) -> Iterator[Batch]:
        for micro in window.slices:
            yield self._images[micro], self._labels[micro]


@final
class ResidentFeeder:
    """All images on the device; a batch is one gather."""

    def __init__(self, config: TrialConfig, images: ArrayImages, device: torch.device, num_classes: int = 0) -> None:
        self._transforms = _SampleTransforms(config, images, num_classes)
        images = _stored(config, images)
        self._config = config
        self._side = images.side
        self._pad = choose_crop_pad(config, images.side)
        self._labels = torch.tensor(images.labels, device=device)
        if device.type == "cpu" and config.data.augment != "none":
            self._crops = MirroredCrops(images.pixels, self._pad, channels_last=config.precision.channels_last)
        else:
            self._images = pad_images(_copy_to(device, images), self._pad)

    def begin_epoch(self, epoch: int, windows: tuple[Window, ...]) -> None:
        del windows  # all are available
        self._transforms.begin_epoch(epoch)
        self._plan = plan = plan_epoch(self._config, len(self._labels), self._pad, epoch)
        self._order = send_array(plan.order, self._labels.device)
        if self._labels.device.type != "cpu" and self._config.data.augment != "none":
            draws = (plan.top, plan.left, plan.flip)
            self._draws = tuple(send_array(draw, self._labels.device) for draw in draws)

    def micro_batches(self, window: Window) -> Iterator[Batch]:
        for micro in window.slices:
            where = self._transforms.positions(micro)
            on_device = where if isinstance(where, slice) else send_array(where, self._order.device)
            rows = self._order[on_device]
            images, labels = self._gather(rows, where, on_device), self._labels.index_select(0, rows)
            yield self._transforms.finish(images, labels, micro)

    def _gather(self, rows: Tensor, where: slice | Indices, on_device: slice | Tensor) -> Tensor:
        if self._config.data.augment == "none":
            return self._images.index_select(0, rows)
        if rows.device.type != "cpu":
            top, left, flip = (draw[on_device] for draw in self._draws)
            return crop_flip(self._images, rows, top, left, flip, self._side)
        plan = self._plan
        return self._crops.take(plan.order[where], plan.top[where], plan.left[where], plan.flip[where])


@final
class StreamFeeder:
    """Images on the host or in files, read by data loader workers or a thread; augmented on the device."""

    def __init__(self, config: TrialConfig, images: Images, device: torch.device, num_classes: int = 0) -> None:
        self._transforms = _SampleTransforms(config, images, num_classes)
        if isinstance(images, ArrayImages):
            images = _stored(config, images)
        self._config = config
        self._side = images.side
        self._pad = choose_crop_pad(config, images.side)
        self._device = device
        self._num_samples = len(images)
        self._order: list[Indices] = []  # of the present epoch, a batch each; the loader and its workers outlive it
        self._loader = _loader(config, images, self._order, device, keep_workers=True)

    def begin_epoch(self, epoch: int, windows: tuple[Window, ...]) -> None:
        self._transforms.begin_epoch(epoch)
        self._plan = plan_epoch(self._config, self._num_samples, self._pad, epoch)
        slices = [micro for window in windows for micro in window.slices]
        self._order[:] = [self._plan.order[self._transforms.positions(micro)] for micro in slices]
        self._batches = _receive_batches(self._loader)

    def micro_batches(self, window: Window) -> Iterator[Batch]:
        for micro in window.slices:
            pixels, labels = next(self._batches)
            images = self._augment(pixels.to(self._device, non_blocking=True), self._transforms.positions(micro))
            yield self._transforms.finish(images, labels.to(self._device, non_blocking=True), micro)

    def _augment(self, images: Tensor, where: slice | Indices) -> Tensor:
        if self._config.data.augment == "none":
            return images
        draws = self._plan.top[where], self._plan.left[where], self._plan.flip[where]
        padded, rows = pad_images(images, self._pad), np.arange(len(images))
        if self._device.type == "cpu":
            return torch.from_numpy(crop_flip_on_cpu(padded.numpy(), rows, *draws, side=self._side))
        order, top, left, flip = (send_array(values, self._device) for values in (rows, *draws))
        return crop_flip(padded, order, top, left, flip, self._side)


@final
class _SampleTransforms:
    """RandAugment or a resized crop, and mixing, where configured, after crop and flip."""

    def __init__(self, config: TrialConfig, images: Images, num_classes: int) -> None:
        is_mixed = config.regularization.mixup or config.regularization.cutmix
        self._operations: RandAugment | ResizedCrop | None = None
        if config.data.augment == "randaugment":
            self._operations = RandAugment(config, len(images))
        elif config.data.augment == "random_resized_crop":
            stored_side = images.stored_side if isinstance(images, ArrayImages) else images.side
            self._operations = ResizedCrop(config, len(images), stored_side, images.side)
        self._mixing = SampleMixer(config, len(images), images.side, num_classes) if is_mixed else None

    def begin_epoch(self, epoch: int) -> None:
        for transform in (self._operations, self._mixing):
            if transform:
                transform.begin_epoch(epoch)

    def positions(self, micro: slice) -> slice | Indices:
        """Positions of the images that are required for ``micro``."""
        return self._mixing.positions(micro) if self._mixing else micro

    def finish(self, images: Tensor, labels: Tensor, micro: slice) -> Batch:
        """The batch of ``micro`` from the ``images`` (n, s, s, c) and ``labels`` (n,) at its positions."""
        if self._operations:
            images = self._operations(images, self.positions(micro))
        return self._mixing(images, labels, micro) if self._mixing else (images, labels)


def make_plain_batches(
    config: TrialConfig, images: Images, device: torch.device, most_images: int = 0
) -> Callable[[int], Iterable[Batch]]:
    """A function of the size of a batch, at most, that iterates over all ``images`` in their order, not augmented.

    Sizes differ by one image at most, so that there are at most two shapes. Ranks that give the number of images of the
    rank with ``most_images`` have equally many batches.
    """
    if isinstance(images, ArrayImages) and config.data.placement == "device" and _fits(images, device):
        pixels, labels = _copy_to(device, images), torch.tensor(images.labels, device=device)
        return lambda size: [(pixels[micro], labels[micro]) for micro in _even_parts(len(images), size, most_images)]

    def read_batches(size: int) -> Iterator[Batch]:
        order = [np.arange(micro.start, micro.stop) for micro in _even_parts(len(images), size, most_images)]
        loader = _loader(config, images, order, device, keep_workers=False)
        return ((pixels.to(device), labels.to(device)) for pixels, labels in _receive_batches(loader))

    return read_batches


def _even_parts(count: int, size: int, most: int) -> list[slice]:
    num_parts = max(1, -(-max(count, most) // size))
    edges = [count * index // num_parts for index in range(num_parts + 1)]
    return [slice(low, high) for low, high in pairwise(edges) if high > low]


@final
class _BatchDataset(Dataset[Batch]):
    """Reads a whole batch at once, because its index is an array."""

    def __init__(self, images: Images) -> None:
        self.images = images

    def __getitem__(self, indices: Indices) -> Batch:
        pixels: Pixels = np.ascontiguousarray(self.images.read(indices))
        return torch.from_numpy(pixels), torch.from_numpy(self.images.labels[indices])


@final
class _ReadAhead:
    """Batches of images in memory, which a thread copies into pinned memory while a GPU works."""

    def __init__(self, images: ArrayImages, order: Sequence[Indices], num_ahead: int) -> None:
        self._images, self._order, self._num_ahead = images, order, num_ahead

    def __iter__(self) -> Iterator[Batch]:
        ahead: deque[Future[Batch]] = deque()
        with ThreadPoolExecutor(1) as thread:
            for indices in self._order:
                ahead.append(thread.submit(self._read, indices))
                if len(ahead) > self._num_ahead:
                    yield ahead.popleft().result()
            yield from (batch.result() for batch in ahead)

    def _read(self, indices: Indices) -> Batch:
        images = self._images
        pixels = torch.empty(
            (len(indices), images.side, images.side, images.channels), dtype=torch.uint8, pin_memory=True
        )
        images.read(indices, out=pixels.numpy())
        return pixels, torch.from_numpy(images.labels[indices]).pin_memory()


def _loader(
    config: TrialConfig, images: Images, order: list[Indices], device: torch.device, *, keep_workers: bool
) -> Iterable[Batch]:
    workers = config.data.workers
    if device.type == "cuda" and not workers and isinstance(images, ArrayImages):
        return _ReadAhead(images, order, config.data.prefetch)
    return DataLoader(
        _BatchDataset(images),
        sampler=order,
        batch_size=None,
        num_workers=workers,
        prefetch_factor=config.data.prefetch if workers else None,
        pin_memory=device.type == "cuda",
        generator=torch.Generator(),  # so that a pass does not draw from torch's own, which dropout uses
        multiprocessing_context="fork" if workers else None,
        worker_init_fn=_die_with_parent if workers else None,
        persistent_workers=keep_workers and workers > 0,
    )


def _receive_batches(loader: Iterable[Batch]) -> Iterator[Batch]:
    """The batches that the workers read. A worker that dies while it transfers one breaks a connection first."""
    try:
        yield from loader
    except (ConnectionError, EOFError) as error:
        raise RuntimeError(f"DataLoader worker (pid unknown) died while it transferred images: {error!r}") from error


def _die_with_parent(_worker: int) -> None:
    die_with_parent(os.getppid())  # no worker survives a killed trial
    for number in (signal.SIGINT, signal.SIGUSR1):  # the trial may require more images before it ends
        signal.signal(number, signal.SIG_IGN)


@final
class BatchPlanner:
    """Goes through the ``num_samples`` of the training split epoch by epoch, in micro batches of at most ``micro`` and,
    where possible, at least ``least`` samples.

    An epoch is cut into windows ahead of time, for feeders that prefetch. Where another global or micro batch than the
    planned one is required, the remainder of the epoch is cut again.
    """

    def __init__(self, feeder: Feeder, num_samples: int, micro: int, least: int = 1) -> None:
        self.num_samples = num_samples
        self.micro = micro
        self._feeder = feeder
        self.least = least
        self._epoch = 0
        self._taken = 0  # samples of this epoch
        self._planned: deque[Window] = deque()

    def next_window(self, size_at: SizeAt) -> Window:
        """The next window, of the size that ``size_at`` gives; the feeder is ready to hand out its micro batches."""
        if self._taken == self.num_samples:
            self._epoch, self._taken = self._epoch + 1, 0
        if not self._planned or self._planned[0].global_batch != size_at(0, 0):
            windows = self._cut(self._taken, size_at)
            self._feeder.begin_epoch(self._epoch, windows)
            self._planned = deque(windows)
        window = self._planned.popleft()
        self._taken += window.samples
        return window

    def take_back(self, window: Window, micro: int) -> None:
        """Makes the last ``window`` the next one again, in micro batches of at most ``micro``."""
        self._taken -= window.samples
        self.set_micro(micro)

    def set_micro(self, micro: int) -> None:
        self.micro = micro
        self._planned.clear()

    @property
    def at_epoch_end(self) -> bool:
        return self._taken == self.num_samples

    @property
    def is_next_whole(self) -> bool:
        """Whether the next window, as far as it is planned, is not cut short by the end of the epoch."""
        return not self._planned or self._planned[0].is_whole

    def windows_of_epoch(self, global_batch: int, taken: int = 0) -> tuple[Window, ...]:
        return self._cut(taken, lambda _windows, _samples: global_batch)

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch, "taken": self._taken, "micro": self.micro}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._taken = state["epoch"], state["taken"]
        self.set_micro(state["micro"])

    def _cut(self, start: int, size_at: SizeAt) -> tuple[Window, ...]:
        return cut_windows(start, self.num_samples, size_at, self.micro, self.least)


def shard_window(window: Window, world: World) -> Window:
    """The rank's part of ``window``: an even share of each micro batch; sizes differ by one sample at most.

    All ranks get the same number of micro batches, because all take part in the reduction of gradients; of one with
    fewer samples than ranks, some ranks get an empty share.
    """
    shares = []
    for micro in window.slices:
        count = micro.stop - micro.start
        first, last = (micro.start + count * rank // world.size for rank in (world.rank, world.rank + 1))
        shares.append(slice(first, last))
    return window._replace(slices=tuple(shares), samples=sum(share.stop - share.start for share in shares))


def shard_images(images: Images, world: World) -> Images:
    """The rank's part of ``images`` for an evaluation: every ``world.size``-th one."""
    return images if world.size == 1 else images.pick(np.arange(world.rank, len(images), world.size, dtype=np.int64))


@final
class ShardedFeeder:
    """A feeder of global windows that hands out one rank's part of them."""

    def __init__(self, feeder: Feeder, world: World) -> None:
        self._feeder = feeder
        self._world = world

    def begin_epoch(self, epoch: int, windows: tuple[Window, ...]) -> None:
        self._feeder.begin_epoch(epoch, tuple(shard_window(window, self._world) for window in windows))

    def micro_batches(self, window: Window) -> Iterator[Batch]:
        return self._feeder.micro_batches(shard_window(window, self._world))
