"""Which device a trial trains on, and how to wait for it."""

import platform
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from sweep.config.errors import InputError
from sweep.measurement.clock import Laps


def resolve_device(name: str) -> torch.device:
    """``auto`` (a GPU where there is one), ``cpu``, ``cuda`` or ``cuda:N``.

    Raises:
        InputError: for another name, or a GPU that is not there.
    """
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdigit() or name.endswith(":"):
        raise InputError(f"unknown device {name!r}. Known: auto, cpu, cuda, cuda:N.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        raise InputError(f"device {name!r} is not there: {count} CUDA devices were found. Use --device cpu or auto.")
    return torch.device("cuda", int(index or 0))


def make_synchronizer(device: torch.device) -> Callable[[], None]:
    """Waits until the device has done what it was asked for; nothing to do on a CPU."""
    return partial(torch.cuda.synchronize, device) if device.type == "cuda" else _already_done


def make_laps(device: torch.device) -> Laps:
    """Splits steps by the host's clock on a CPU; on a GPU by events in its queue, which nobody waits for."""
    if device.type != "cuda":
        return Laps()

    cuda: Any = torch.cuda  # which leaves events untyped

    def mark() -> Any:
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    return Laps(mark, lambda begin, end: float(begin.elapsed_time(end)) / 1e3)


def name_device_class(device: torch.device, ranks: int = 1) -> str:
    """What times and memory may be compared within: the GPU's name, or the CPU's with the number of threads.

    ``ranks`` train together, with as many threads each as this process has.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {read_cpu_model()} x{torch.get_num_threads() * ranks} threads"


@cache
def read_cpu_model() -> str:
    """The processor's name as the kernel gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine()


def _already_done() -> None:
    return
