"""The device of a trial and the environment around it: name, clock, versions, and how fast it computes now."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sweep.config.errors import DeviceFullError, InputError
from sweep.measurement.clock import Moments, read_host_moments
from sweep.measurement.monitor import read_driver_version, read_power_limit, read_process_bytes

# The reference work is timed before each trial: if it takes longer, all else takes longer as well.
_ELEMENTS = {"cpu": 2**18, "cuda": 2**24}  # small enough for a processor's cache; large enough to fill a GPU
_CALLS = 4  # of one piece of the work
_WARMUP_SECONDS = 0.02
_MAX_SETTLING_SECONDS = 1.0
_SETTLED = 0.02  # by which share readings of a settled clock differ
_REFERENCE_SECONDS = 0.06  # several time slices of a scheduler, so that their mean describes the machine
_PACKAGES = ("torch", "torchvision", "optuna", "numpy", "batch-sweep")
_VARIABLE_PREFIXES = ("CUDA_", "OMP_", "GOMP_", "MKL_", "PYTORCH_")  # the whole environment holds secrets


def resolve_device(name: str) -> torch.device:
    """``auto`` (a GPU where there is one), ``cpu``, ``cuda`` or ``cuda:N``. Raises ``InputError``: for another name, or
    a GPU that does not exist."""
    if name == "auto":
        return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    if name == "cpu":
        return torch.device("cpu")
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index or "0").isdigit() or name.endswith(":"):
        raise InputError(f"unknown device {name!r}. Known: auto, cpu, cuda, cuda:N.")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(index or 0) >= count:
        raise InputError(f"device {name!r} is not there: {count} CUDA devices were found. Use --on cpu or --on auto.")
    return torch.device("cuda", int(index or 0))


@contextmanager
def _blame_others_for_memory() -> Iterator[None]:
    """Turns running out of memory, before anything of a trial is on the device, into :class:`DeviceFullError`."""
    try:
        yield
    except RuntimeError as error:
        if "out of memory" not in str(error).lower():
            raise
        raise DeviceFullError(
            f"other programs hold the memory of the GPU, before anything of the trial is on it: {error}; end them, or "
            "choose another GPU with --on or CUDA_VISIBLE_DEVICES."
        ) from error


def reach_gpu(device: torch.device) -> None:
    """Makes ``device`` the GPU of this process, with all that the driver requires there; no effect for a CPU. Raises
    ``DeviceFullError``: there is no memory even for that."""
    if device.type != "cuda":
        return
    with _blame_others_for_memory():
        torch.cuda.set_device(device)
        torch.zeros(1, device=device)
        torch.cuda.synchronize(device)


def identify_gpu(device: torch.device) -> str:
    """The UUID of the GPU ``device`` in the driver's library: ``GPU-...``, or ``MIG-...`` if the process was restricted
    to a part of a GPU. torch gives both the same form."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    entry = visible[device.index or 0].strip() if (device.index or 0) < len(visible) else ""
    return entry if entry.startswith("MIG-") else f"GPU-{torch.cuda.get_device_properties(device).uuid}"


def make_synchronizer(device: torch.device) -> Callable[[], None]:
    """A function that waits until the device is idle; on a CPU it does nothing."""
    return (lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else (lambda: None)


def time_calls(call: Callable[[], object], num_calls: int, synchronize: Callable[[], None]) -> float:
    """Mean seconds of a ``call``, from one synchronization of the device to the next."""
    synchronize()
    began = time.perf_counter()
    for _ in range(num_calls):
        call()
    synchronize()
    return (time.perf_counter() - began) / num_calls


def make_moments(device: torch.device) -> Moments:
    """The clock of the host for a CPU; for a GPU events in its queue, which the host does not wait for."""
    if device.type != "cuda":
        return read_host_moments()

    cuda: Any = torch.cuda  # torch leaves events untyped

    def mark() -> Any:
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    return Moments(mark, lambda begin, end: float(begin.elapsed_time(end)) / 1e3)


def snapshot_pass(tensors: Iterable[Tensor], device: torch.device) -> Callable[[], None]:
    """A function that restores the present ``tensors`` and random generators, which a forward pass changes."""
    changed = list(tensors)
    before = [tensor.clone() for tensor in changed]
    host_generator = torch.get_rng_state()
    device_generator = torch.cuda.get_rng_state(device) if device.type == "cuda" else None

    @torch.no_grad()
    def restore() -> None:
        torch.set_rng_state(host_generator)
        if device_generator is not None:
            torch.cuda.set_rng_state(device_generator, device)
        for tensor, value in zip(changed, before, strict=True):
            tensor.copy_(value)

    return restore


def name_device_class(device: torch.device, ranks: int = 1) -> str:
    """Times and memory are comparable within a class: the GPU's name, or the CPU's with the number of threads.

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


def measure_reference_seconds(device: torch.device) -> float:
    """Mean seconds of one piece of work, sines over a tensor, repeated for at least 60 ms after 20 ms to warm up; on a
    GPU the warm-up lasts until its clock has settled, at most a second.

    The work is element by element on purpose: it depends on the clock and the number of threads, draws no random
    numbers, and leaves no library's workspace behind that would count as memory of the trial. Raises
    ``DeviceFullError``: other programs hold all memory of the GPU."""
    synchronize = make_synchronizer(device)
    with _blame_others_for_memory():
        values = torch.linspace(0.0, 1.0, _ELEMENTS["cuda" if device.type == "cuda" else "cpu"], device=device)

    def repeat(seconds: float) -> float:
        spent, count = 0.0, 0
        while spent < seconds:
            spent += _CALLS * time_calls(values.sin_, _CALLS, synchronize)
            count += 1
        return spent / count

    if device.type == "cuda":
        wait_until_settled(lambda: repeat(_WARMUP_SECONDS), int(_MAX_SETTLING_SECONDS / _WARMUP_SECONDS))
    else:
        repeat(_WARMUP_SECONDS)
    return repeat(_REFERENCE_SECONDS)


def wait_until_settled(measure: Callable[[], float], most: int) -> None:
    """Calls ``measure`` until three values in a row differ by 2 % at most, ``most`` times at most.

    An idle GPU has a low clock, which rises within tenths of a second of work.
    """
    latest: deque[float] = deque(maxlen=3)
    for _ in range(most):
        latest.append(measure())
        if len(latest) == latest.maxlen and max(latest) <= (1.0 + _SETTLED) * min(latest):
            return


# ---------------------------------------------------------------------- where a trial ran


def describe_machine(device: str, threads: int | None) -> dict[str, Any]:
    """The environment of a trial on ``device`` with ``threads``, for a process that trains nothing.

    For a GPU it has ``device_free_bytes``, which another such process could allocate now, and ``process_bytes``, which
    a process requires in addition; 0 where the driver does not report them. Raises ``DeviceFullError``: other programs
    hold all memory of the GPU."""
    if threads is not None:
        torch.set_num_threads(threads)  # the class of a CPU contains their number
    resolved = resolve_device(device)
    description = describe_environment(resolved)
    if resolved.type != "cuda":
        return description
    reach_gpu(resolved)
    torch.cuda.empty_cache()
    free_bytes, _ = torch.cuda.mem_get_info(resolved)
    held = read_process_bytes(identify_gpu(resolved)) - torch.cuda.memory_reserved(resolved)
    return description | {"device_free_bytes": free_bytes, "process_bytes": max(held, 0)}


def describe_environment(device: torch.device) -> dict[str, Any]:
    """The facts that a timing depends on, ready for JSON; an empty string where one cannot be determined."""
    properties = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    cudnn: Any = torch.backends.cudnn  # torch leaves it untyped
    return {
        "device": name_device_class(device),
        "device_type": device.type,
        "device_memory_bytes": properties.total_memory if properties else 0,
        "driver": read_driver_version() if properties else "",
        "cuda": (torch.version.cuda or "") if properties else "",
        "cudnn": str(cudnn.version() or "") if properties else "",
        "power_limit_watts": read_power_limit(identify_gpu(device)) if properties else 0.0,
        "cpu": read_cpu_model(),
        "num_cpus": os.cpu_count() or 0,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": {name: _find_version(name) for name in _PACKAGES},
        "variables": {name: value for name, value in sorted(os.environ.items()) if name.startswith(_VARIABLE_PREFIXES)},
        "project_commit": _find_commit(Path.cwd()),  # the user works there: it has the study file or the plug-in
    }


@cache
def _find_version(name: str) -> str:
    if name == "torch":
        return str(torch.__version__)  # with its build, such as +cu132, which the metadata may lack
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


@cache
def _find_commit(folder: Path) -> str:
    command = [shutil.which("git") or "git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no repository
        return ""
