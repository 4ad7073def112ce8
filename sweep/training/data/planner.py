"""The windows of a whole training in their order, and the part of each that a rank trains on."""

from collections import deque
from collections.abc import Iterator
from typing import Any, final

import numpy as np
import torch

from sweep.training.data.feeders import Batch, Feeder
from sweep.training.data.images import Images
from sweep.training.data.windows import SizeAt, Window, cut_windows
from sweep.training.world import World


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
            self._plan(size_at)
        window = self._planned.popleft()
        self._taken += window.samples
        return window

    def take_back(self, window: Window, micro: int) -> None:
        """Makes the last ``window`` the next one again, in micro batches of at most ``micro``."""
        self._taken -= window.samples
        self.set_micro(micro)

    def set_micro(self, micro: int) -> None:
        """From the next window on, micro batches of at most ``micro``."""
        self.micro = micro
        self._planned.clear()

    @property
    def at_epoch_end(self) -> bool:
        """Whether no sample of this epoch is left."""
        return self._taken == self.num_samples

    @property
    def is_next_whole(self) -> bool:
        """Whether the next window, as far as it is planned, is not cut short by the end of the epoch."""
        return not self._planned or self._planned[0].is_whole

    def windows_of_epoch(self, global_batch: int) -> tuple[Window, ...]:
        """All windows of an epoch with a constant ``global_batch``."""
        return self.cut_rest(0, global_batch)

    def cut_rest(self, taken: int, global_batch: int) -> tuple[Window, ...]:
        """The windows of an epoch after ``taken`` samples, with a constant ``global_batch``."""
        return self._cut(taken, lambda _windows, _samples: global_batch)

    def state_dict(self) -> dict[str, Any]:
        """The position in the training."""
        return {"epoch": self._epoch, "taken": self._taken, "micro": self.micro}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from that position."""
        self._epoch, self._taken = state["epoch"], state["taken"]
        self.set_micro(state["micro"])

    def _plan(self, size_at: SizeAt) -> None:
        windows = self._cut(self._taken, size_at)
        self._feeder.begin_epoch(self._epoch, windows)
        self._planned = deque(windows)

    def _cut(self, start: int, size_at: SizeAt) -> tuple[Window, ...]:
        return cut_windows(start, self.num_samples, size_at, self.micro, self.least)


def shard_window(window: Window, world: World) -> Window:
    """The rank's part of ``window``: an even share of each micro batch; sizes differ by one sample at most.

    All ranks get the same number of micro batches, because all take part in the reduction of gradients; of one with
    fewer samples than ranks, some ranks get an empty share.
    """

    shares = []
    for part in window.slices:
        first, last = (
            part.start + (part.stop - part.start) * rank // world.size for rank in (world.rank, world.rank + 1)
        )
        shares.append(slice(first, last))
    return window._replace(slices=tuple(shares), samples=sum(share.stop - share.start for share in shares))


def check_shards(windows: tuple[Window, ...], world: World) -> None:
    """Checks that the ranks' parts of ``windows`` add up to them.

    Raises:
        RuntimeError: they do not.
    """
    samples = world.sum(torch.tensor([shard_window(window, world).samples for window in windows]))
    if samples.tolist() != [window.samples for window in windows]:
        raise RuntimeError("the windows of the ranks do not add up to the global batch")


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
