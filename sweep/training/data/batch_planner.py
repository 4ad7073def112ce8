"""The windows of a whole training, one after another, cut as they are asked for."""

from collections import deque
from typing import Any, final

from sweep.training.data.feeders import Feeder
from sweep.training.data.windows import SizeAt, Window, cut_windows


@final
class BatchPlanner:
    """Goes through the training split epoch by epoch; ``num_samples`` of it, in micro batches of at most ``micro`` and,
    where that can be, of ``least`` or more.

    An epoch is cut into windows ahead, for the sake of feeders that read ahead; where another global or micro batch is
    wanted than was planned, what is left of it is cut anew.
    """

    def __init__(self, feeder: Feeder, num_samples: int, micro: int, least: int = 1) -> None:
        self.num_samples = num_samples
        self.micro = micro
        self._feeder = feeder
        self._least = least
        self._epoch = 0
        self._taken = 0  # samples of this epoch
        self._planned: deque[Window] = deque()

    def next_window(self, size_at: SizeAt) -> Window:
        """The next window, as large as ``size_at`` says; the feeder is ready to hand out its micro batches."""
        if self._taken == self.num_samples:
            self._epoch, self._taken = self._epoch + 1, 0
        if not self._planned or self._planned[0].wanted != size_at(0, 0):
            self._plan(size_at)
        window = self._planned.popleft()
        self._taken += window.samples
        return window

    def take_back(self, window: Window, micro: int) -> None:
        """The last window comes again, in micro batches of at most ``micro``."""
        self._taken -= window.samples
        self.set_micro(micro)

    def set_micro(self, micro: int) -> None:
        """From the next window on, micro batches of at most ``micro``."""
        self.micro = micro
        self._planned.clear()

    @property
    def at_epoch_end(self) -> bool:
        """No sample of this epoch is left."""
        return self._taken == self.num_samples

    @property
    def is_next_whole(self) -> bool:
        """The next window is not cut short by the end of the epoch, as far as is known."""
        return not self._planned or self._planned[0].is_whole

    def windows_of_epoch(self, global_batch: int) -> tuple[Window, ...]:
        """All windows of an epoch with one global batch."""
        return self._cut(0, lambda _windows, _samples: global_batch)

    def state_dict(self) -> dict[str, Any]:
        """The place in the training."""
        return {"epoch": self._epoch, "taken": self._taken, "micro": self.micro}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from that place."""
        self._epoch, self._taken = state["epoch"], state["taken"]
        self.set_micro(state["micro"])

    def _plan(self, size_at: SizeAt) -> None:
        windows = self._cut(self._taken, size_at)
        self._feeder.begin_epoch(self._epoch, windows)
        self._planned = deque(windows)

    def _cut(self, start: int, size_at: SizeAt) -> tuple[Window, ...]:
        return cut_windows(start, self.num_samples, size_at, self.micro, self._least)
