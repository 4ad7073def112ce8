"""Readings of the sensors of a device and its host during a trial: their summary and quality flags."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from sweep.records.quality_flags import BUSY_HOST

Span = tuple[float, float]  # from, to; seconds by time.perf_counter(), which on Linux all processes share

_MIN_READINGS = 2  # in training; fewer are no summary
_MIN_SHARE = 0.5  # of the time between two readings that must be training
_MIN_SECONDS = 1.0  # between readings, from which a mean load is one
_BUSY = 0.1  # share of the cores that others use
_THROTTLED = 0.05  # of the readings
_SLOW_CLOCK = 0.8  # of the highest
_CLOCK_DRIFT = 0.1  # of the median clock, between the first and the last third
_MIN_CLOCKS = 6
_FOREIGN_BYTES = 2 << 30  # more than the driver itself holds

SLOWED = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"})
# Named reasons for a lower clock that hold for every trial alike; an idle device lowers its clock as well.
_USUAL = frozenset({"idle", "power_cap", "application_clocks", "display_clocks", "sync_boost"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorReading:
    """All sensors at one moment; None where one cannot be read. Of counters only differences have a meaning."""

    at: float = 0.0  # by time.perf_counter()
    utilization: float | None = None  # of the GPU, as a fraction
    power_watts: float | None = None
    energy_joules: float | None = None  # a counter
    temperature_celsius: float | None = None
    clock_hertz: float | None = None
    max_clock_hertz: float | None = None
    slow_reasons: frozenset[str] | None = None  # why the clock is below its highest
    num_others: int | None = None  # processes on the device of other programs
    other_memory_bytes: int | None = None  # in use on the device, by other programs
    busy_seconds: float | None = None  # a counter: of all cores, by any process
    own_busy_seconds: float | None = None  # a counter: by this program's processes
    num_processors: int = 1


@dataclass(frozen=True)
class DeviceSummary:
    """``measurements`` by name of the metric table, and quality flags."""

    measurements: dict[str, float] = field(default_factory=dict)
    flags: tuple[str, ...] = ()


def summarize_readings(readings: Sequence[SensorReading], spans: Sequence[Span]) -> DeviceSummary:
    """Summarizes the ``readings`` of one device (in the order of time) over the ``spans`` in which the trial trained.

    Readings outside the spans do not count. Differences of counters count where most of the time between two readings
    was training. With too few readings the summary is empty.
    """
    inside = [reading for reading in readings if _seconds_inside(spans, reading.at, reading.at, closed=True)]
    steps = [
        (one, two)
        for one, two in pairwise(readings)
        if _seconds_inside(spans, one.at, two.at) >= _MIN_SHARE * (two.at - one.at) > 0
    ]
    if len(inside) < _MIN_READINGS:
        return DeviceSummary()
    counted, load = _rate(steps, "energy_joules"), _load_by_others(steps)
    measured = {
        "gpu_utilization": _of(inside, "utilization", np.mean),
        # the counter also covers the time between two readings
        "power_watts": counted[0] if counted else _of(inside, "power_watts", np.mean),
        # mean power times all seconds of training, because readings do not fall on the edges of spans
        "energy_joules": counted[0] * sum(end - begin for begin, end in spans) if counted else None,
        "temperature_celsius": _of(inside, "temperature_celsius", np.max),
        "cpu_load_by_others": load,
    }
    raised = {
        "other_process": _has_others(inside),
        "throttled": _is_throttled(inside),
        "clock_drift": _is_clock_drifting(inside),
        BUSY_HOST: load is not None and load >= _BUSY,
    }
    return DeviceSummary(
        {name: value for name, value in measured.items() if value is not None},
        tuple(name for name, is_raised in raised.items() if is_raised),
    )


def merge_summaries(parts: Sequence[DeviceSummary]) -> DeviceSummary:
    """The summary of a trial's devices: sums of power and energy, the maximum of temperature, means of others."""
    names = list(dict.fromkeys(name for part in parts for name in part.measurements))
    merged = {
        name: float(_MERGING.get(name, np.mean)([p.measurements[name] for p in parts if name in p.measurements]))
        for name in names
    }
    return DeviceSummary(merged, tuple(dict.fromkeys(flag for part in parts for flag in part.flags)))


_MERGING: dict[str, Callable[[Sequence[float]], float]] = {
    "power_watts": sum,
    "energy_joules": sum,
    "temperature_celsius": max,
}


def _seconds_inside(spans: Sequence[Span], begin: float, end: float, *, closed: bool = False) -> float:
    """Seconds of ``begin`` to ``end`` inside the spans (in order of time); with ``closed`` 1.0 for a moment inside."""
    first = max(0, bisect_right(spans, (begin, float("inf"))) - 1)
    total = 0.0
    for low, high in spans[first:]:
        if low > end:
            break
        if closed and low <= begin <= high:
            return 1.0
        total += max(0.0, min(high, end) - max(low, begin))
    return total


def _known(readings: Sequence[SensorReading], name: str) -> list[float]:
    return [value for reading in readings if (value := getattr(reading, name)) is not None]


def _of(readings: Sequence[SensorReading], name: str, combine: Callable[[list[float]], float]) -> float | None:
    values = _known(readings, name)
    return float(combine(values)) if values else None


def _rate(steps: Sequence[tuple[SensorReading, SensorReading]], *names: str) -> tuple[float, ...] | None:
    """Growth of the named counters over time, in their units a second; None where one is missing."""
    total, growths = 0.0, [0.0] * len(names)
    for one, two in steps:
        ends = [(getattr(one, name), getattr(two, name)) for name in names]
        if any(low is None or high is None or high < low for low, high in ends):  # a counter may begin anew
            continue
        total += two.at - one.at
        growths = [growth + high - low for growth, (low, high) in zip(growths, ends, strict=True)]
    return tuple(growth / total for growth in growths) if total else None


def _load_by_others(steps: Sequence[tuple[SensorReading, SensorReading]]) -> float | None:
    if sum(two.at - one.at for one, two in steps) < _MIN_SECONDS:
        return None
    rates = _rate(steps, "busy_seconds", "own_busy_seconds")
    if rates is None:
        return None
    everybody, own = rates
    return max(0.0, everybody - own) / steps[0][0].num_processors


def _has_others(inside: Sequence[SensorReading]) -> bool:
    memory = _known(inside, "other_memory_bytes")
    return any(_known(inside, "num_others")) or (bool(memory) and float(np.median(memory)) >= _FOREIGN_BYTES)


def _is_throttled(inside: Sequence[SensorReading]) -> bool:
    reasons = [reading.slow_reasons for reading in inside if reading.slow_reasons is not None]
    slowed = sum(bool(reason & SLOWED) for reason in reasons)
    return slowed > 0 and slowed >= _THROTTLED * len(reasons)


def _is_clock_drifting(inside: Sequence[SensorReading]) -> bool:
    clocked = [reading for reading in inside if reading.clock_hertz and "idle" not in (reading.slow_reasons or ())]
    if len(clocked) < _MIN_CLOCKS:
        return False
    clocks = np.array([reading.clock_hertz for reading in clocked], dtype=np.float64)
    third = len(clocks) // 3
    apart = abs(float(np.median(clocks[-third:])) - float(np.median(clocks[:third])))
    return apart >= _CLOCK_DRIFT * float(np.median(clocks)) or _is_slow(clocked)


def _is_slow(clocked: Sequence[SensorReading]) -> bool:
    # far below the highest clock, and mostly for no reason that applies to every trial
    slow = [
        reading.clock_hertz < _SLOW_CLOCK * reading.max_clock_hertz and not (reading.slow_reasons or set()) & _USUAL
        for reading in clocked
        if reading.clock_hertz and reading.max_clock_hertz
    ]
    return bool(slow) and sum(slow) > len(slow) / 2
