"""The host that a trial trains on: how busy others keep its processors, and how fast these run."""

import os
import time
from pathlib import Path
from typing import final

import psutil

from sweep.measurement.device_trace import SensorReading
from sweep.measurement.monitor import SensorSource

_LOOKS_A_TREE = 4
_MAX_ASKED = 4  # processors whose frequency is read: a file each
_FREQUENCY = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"


@final
class HostSource(SensorSource):
    """Looks at the processors that this process may use, and at the process tree under ``root_pid``."""

    def __init__(self, root_pid: int | None = None) -> None:
        self._root = psutil.Process(root_pid or os.getpid())
        self._processors = sorted(os.sched_getaffinity(0))
        self._tree: list[psutil.Process] = []
        self._num_looks = 0

    def read(self) -> SensorReading:
        return SensorReading(
            at=time.perf_counter(),
            clock_hertz=self._frequency(),
            busy_seconds=self._busy_seconds(),
            own_busy_seconds=self._own_seconds(),
            num_processors=len(self._processors),
        )

    def close(self) -> None:
        return

    def _busy_seconds(self) -> float | None:
        # what the machine under a virtual one takes is taken by others as well
        times = psutil.cpu_times(percpu=True)
        mine = [times[number] for number in self._processors if number < len(times)]
        return float(sum(sum(one) - one.idle - getattr(one, "iowait", 0.0) - _guest(one) for one in mine))

    def _own_seconds(self) -> float | None:
        # What an ended process spent is with the parent that waited for it, and a counter that is found late brings
        # all that it has counted: so the tree need not be walked, which takes a file for every process, at each look.
        if self._num_looks % _LOOKS_A_TREE == 0:
            self._tree = [self._root, *self._root.children(recursive=True)]
        self._num_looks += 1
        total = 0.0
        for process in self._tree:
            try:
                total += sum(process.cpu_times()[:4])
            except psutil.Error:  # it has just ended
                continue
        return total

    def _frequency(self) -> float | None:
        files = [Path(_FREQUENCY.format(number)) for number in self._processors[:_MAX_ASKED]]
        try:
            return sum(1000.0 * float(file.read_text()) for file in files) / len(files)
        except (OSError, ValueError):  # a virtual machine's kernel does not tell
            return None


def _guest(times: object) -> float:
    # which the kernel counts into user and nice already
    return float(getattr(times, "guest", 0.0)) + float(getattr(times, "guest_nice", 0.0))


def list_own_pids(root_pid: int | None = None) -> frozenset[int]:
    """The process tree under ``root_pid``, itself included; this process's when None."""
    root = psutil.Process(root_pid or os.getpid())
    return frozenset({root.pid, *(child.pid for child in root.children(recursive=True))})
