"""Sensors of the host: processor time of other programs and of this one, and clock frequency."""

import os
import time
from pathlib import Path
from typing import final

import psutil

from sweep.measurement.device_trace import SensorReading
from sweep.measurement.monitor import SensorSource

_READINGS_PER_TREE = 4
_MAX_FREQUENCIES = 4  # processors whose frequency is read: a file each
_FREQUENCY = "/sys/devices/system/cpu/cpu{}/cpufreq/scaling_cur_freq"


@final
class HostSource(SensorSource):
    """Reads the processors that this process may use, and the process tree under ``root_pid``."""

    def __init__(self, root_pid: int | None = None) -> None:
        self._root = psutil.Process(root_pid or os.getpid())
        self._processors = sorted(os.sched_getaffinity(0))
        self._tree: list[psutil.Process] = []
        self._num_readings = 0

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
        # "steal" time, which the host of a virtual machine takes, counts as used by others
        times = psutil.cpu_times(percpu=True)
        mine = [times[number] for number in self._processors if number < len(times)]
        return float(sum(sum(one) - one.idle - getattr(one, "iowait", 0.0) - _guest(one) for one in mine))

    def _own_seconds(self) -> float | None:
        # The time of an ended process is added to its parent, and the counter of a process that is found late is
        # complete: so the tree need not be walked, which reads a file per process, at each reading.
        if self._num_readings % _READINGS_PER_TREE == 0:
            self._tree = [self._root, *self._root.children(recursive=True)]
        self._num_readings += 1
        total = 0.0
        for process in self._tree:
            try:
                total += sum(process.cpu_times()[:4])
            except psutil.Error:  # it has just ended
                continue
        return total

    def _frequency(self) -> float | None:
        files = [Path(_FREQUENCY.format(number)) for number in self._processors[:_MAX_FREQUENCIES]]
        try:
            return sum(1000.0 * float(file.read_text()) for file in files) / len(files)
        except (OSError, ValueError):  # absent in a virtual machine
            return None


def _guest(times: object) -> float:
    # the kernel already includes it in user and nice
    return float(getattr(times, "guest", 0.0)) + float(getattr(times, "guest_nice", 0.0))


def list_own_pids(root_pid: int | None = None) -> frozenset[int]:
    """The process tree under ``root_pid``, itself included; this process's when None."""
    root = psutil.Process(root_pid or os.getpid())
    return frozenset({root.pid, *(child.pid for child in root.children(recursive=True))})
