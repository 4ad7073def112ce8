"""A fixed piece of work, timed before each trial: when it takes longer than usual, so does everything else."""

import time

import torch

from sweep.measurement.device import make_synchronizer

_ELEMENTS = {"cpu": 2**18, "cuda": 2**24}  # small enough for a processor's cache; large enough to fill a GPU
_CALLS = 4
_REPEATS = 7


def measure_reference_seconds(device: torch.device) -> float:
    """Median seconds of sines over a tensor, after one call to warm up. About 20 ms in all.

    Element by element on purpose: it depends on the clock and the number of threads, draws no random numbers, and
    leaves no library's workspace behind that would count as memory of the trial.
    """
    wait = make_synchronizer(device)
    values = torch.linspace(0.0, 1.0, _ELEMENTS["cuda" if device.type == "cuda" else "cpu"], device=device)
    seconds = []
    for _ in range(_REPEATS + 1):
        wait()
        began = time.perf_counter()
        for _ in range(_CALLS):
            values.sin_()
        wait()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds[1:])[_REPEATS // 2]
