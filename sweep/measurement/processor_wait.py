"""How long the threads of a training waited for a processor that other programs used. Imports no torch."""

import os
import threading
from pathlib import Path
from typing import final

_TASKS = Path("/proc/self/task")


@final
class WaitMeter:
    """Measures the waiting of this thread and of the threads of native libraries, by the kernel's scheduler statistics.

    Other Python threads of the process do not count: the training does not wait for them at each step.
    """

    def __init__(self) -> None:
        self._before: dict[int, float] = {}

    def begin(self) -> None:
        self._before = _read_waits()

    def end(self) -> float | None:
        """Seconds since :meth:`begin` that the thread which waited most was ready to run and had no processor; None
        where the kernel does not count them."""
        after = _read_waits()
        if threading.get_native_id() not in after or not self._before:
            return None
        return max(waited - self._before.get(number, 0.0) for number, waited in after.items())


def _read_waits() -> dict[int, float]:
    """Seconds of waiting since each thread began, by its number."""
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
