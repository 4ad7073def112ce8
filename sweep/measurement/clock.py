"""The time of a trial by phase, the laps of its steps, and its waiting for processors that other programs used.

Imports no torch.
"""

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple, TypeVar, final, get_args

from sweep.measurement.quality import StepWindow, select_undisturbed

Item = TypeVar("Item")
# Every second of a trial is one of these. "compile" is what torch.compile and the recording of CUDA graphs take;
# "diagnostics" are measurements that are not part of the training.
Phase = Literal["setup", "compile", "memory", "warmup", "data_wait", "step", "eval", "checkpoint", "diagnostics"]
PHASES: tuple[Phase, ...] = get_args(Phase)
_SPAN_GAP_SECONDS = 0.05  # windows that follow one another so closely are one span of training
_TASKS = Path("/proc/self/task")


class Moments(NamedTuple):
    """A clock that never waits for the device: ``mark`` notes the present moment in the order of the device's work, and
    ``between`` gives the seconds between two moments once the device has passed them."""

    mark: Callable[[], Any]
    between: Callable[[Any, Any], float]


def read_host_moments() -> Moments:
    """The clock of the host, whose processor computes what it launches."""
    return Moments(lambda: time.perf_counter(), lambda begin, end: end - begin)


@final
class Ledger:
    """Seconds by phase. The device is synchronized at the edges of phases and windows, never per step.

    ``synchronize`` waits for the device, and ``moments`` is its clock; both are set when the device is known.
    """

    def __init__(self) -> None:
        self.synchronize: Callable[[], None] = lambda: None
        self.moments = read_host_moments()
        self._began = time.perf_counter()
        self.seconds: dict[Phase, float] = dict.fromkeys(PHASES, 0.0)
        self.windows: list[StepWindow] = []
        self.spans: list[tuple[float, float]] = []  # in which this attempt trained, by time.perf_counter()
        self._earlier_seconds = 0.0  # of attempts before this one
        self._window_began: float | None = None  # while one is open
        self._waits: list[tuple[Any, Any]] = []  # moments between which the open window waited for data
        self._before: dict[int, float] = {}  # the waits for processors when the open window began

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Counts the block as ``name``, also where it raises."""
        began = time.perf_counter()
        try:
            yield
            self.synchronize()
        finally:
            self.seconds[name] += time.perf_counter() - began

    def open_window(self) -> None:
        """Begins to count time as training."""
        self.synchronize()
        self._waits = []
        began = time.perf_counter()
        self._before = read_waits()
        self._window_began = time.perf_counter()
        self.seconds["diagnostics"] += self._window_began - began

    def close_window(self, num_steps: int, samples: int, is_full: bool) -> None:
        """Counts the time since :meth:`open_window` as data wait and, for the rest, as steps."""
        self.synchronize()
        elapsed, begin = self._open_seconds, self._window_began or 0.0
        span_begin = begin
        if self.spans and begin - self.spans[-1][1] < _SPAN_GAP_SECONDS:
            span_begin = self.spans.pop()[0]
        self.spans.append((span_begin, begin + elapsed))
        self._window_began = None
        began = time.perf_counter()
        waited = find_longest_wait(self._before, read_waits())
        self.seconds["diagnostics"] += time.perf_counter() - began
        wait = min(sum(self.moments.between(begin, end) for begin, end in self._waits), elapsed)
        self._waits = []
        self.seconds["data_wait"] += wait
        self.seconds["step"] += elapsed - wait
        self.windows.append(StepWindow(elapsed, num_steps, samples, is_full, waited))

    def note_wait(self, began: Any, ended: Any) -> None:
        """The device waited for data between these two moments of its clock."""
        self._waits.append((began, ended))

    def waiting(self, items: Iterable[Item]) -> Iterator[Item]:
        """``items``; the time that the device waits for each counts as data wait: idle time, or its own work on the
        images."""
        iterator = iter(items)
        while True:
            began = self.moments.mark()
            try:
                item = next(iterator)
            except StopIteration:
                return
            finally:
                self.note_wait(began, self.moments.mark())
            yield item

    @property
    def train_seconds(self) -> float:
        """Data wait and steps, nothing else."""
        return self.seconds["data_wait"] + self.seconds["step"]

    @property
    def running_seconds(self) -> float:
        """Train seconds, the open window included, by the host's clock, without synchronizing the device."""
        return self.train_seconds + self._open_seconds

    @property
    def total_seconds(self) -> float:
        """Wall-clock seconds of this attempt and, until their last checkpoint, of the attempts before it."""
        return self._earlier_seconds + time.perf_counter() - self._began

    @property
    def images_per_second(self) -> float:
        """Training samples over train seconds; 0 before the first window."""
        seconds = sum(window.seconds for window in self.windows)
        return sum(window.samples for window in self.windows) / seconds if seconds else 0.0

    @property
    def usual_samples(self) -> int:
        """Samples of most steps; a growing batch has steps of several sizes. 0 before the first window."""
        sizes = Counter(round(window.samples / window.num_steps) for window in self.windows)
        return sizes.most_common(1)[0][0] if sizes else 0

    @property
    def full_windows(self) -> list[StepWindow]:
        """The windows of whole global batches; all of them if there is none."""
        return [window for window in self.windows if window.is_full] or self.windows

    @property
    def even_windows(self) -> list[StepWindow]:
        """The windows of steps of the usual size, in the order of time."""
        usual = self.usual_samples
        return [window for window in self.windows if round(window.samples / window.num_steps) == usual]

    def even_step_seconds(self) -> list[float]:
        """Time of a step in each window of steps of the usual size, data wait included, in the order of time."""
        return [window.step_seconds for window in self.even_windows]

    def step_seconds(self) -> float:
        """The median time of a step over the windows, data wait included; NaN without a window.

        Only windows of whole global batches count, unless there is none, and only undisturbed ones, where others slowed
        the training down.
        """
        windows = select_undisturbed(self.full_windows)
        return median(window.step_seconds for window in windows) if windows else math.nan

    def state_dict(self) -> dict[str, Any]:
        windows = [list(window) for window in self.windows]
        return {"seconds": dict(self.seconds), "total": self.total_seconds, "windows": windows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Adds what earlier attempts measured; the time between attempts does not count."""
        for name in self.seconds:
            self.seconds[name] += state["seconds"][name]
        self.windows[:0] = [StepWindow(*window) for window in state["windows"]]
        self._earlier_seconds += state["total"]

    @property
    def _open_seconds(self) -> float:
        return 0.0 if self._window_began is None else time.perf_counter() - self._window_began


def read_waits() -> dict[int, float]:
    """Seconds that this thread and the threads of native libraries have waited for a processor since they began, by
    their numbers, as the kernel's scheduler counts them; empty where it does not. Other Python threads are left out,
    because the training does not wait for them at each step."""
    waits = {}
    others = {thread.native_id for thread in threading.enumerate()} - {threading.get_native_id()}
    try:
        numbers = [int(name) for name in os.listdir(_TASKS)]  # noqa: PTH208 - a path for each is slower
    except OSError:
        return {}
    for number in numbers:
        if number in others:
            continue
        try:
            running, waited, _ = (_TASKS / str(number) / "schedstat").read_bytes().split()
        except (OSError, ValueError):  # it has just ended, or there is no such file
            continue
        if int(running):  # without statistics all numbers are 0
            waits[number] = int(waited) / 1e9
    return waits


def find_longest_wait(before: dict[int, float], after: dict[int, float]) -> float | None:
    """Seconds between two readings in which the thread that waited most was ready to run and had no processor; None
    where they are not known."""
    if threading.get_native_id() not in after or not before:
        return None
    return max(waited - before.get(number, 0.0) for number, waited in after.items())
