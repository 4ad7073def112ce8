"""Readings of a GPU and of a host as a monitor takes them twice a second, clean or contaminated, for tests."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sweep.measurement.monitor import SensorReading, Span

SPANS: tuple[Span, ...] = ((3.0, 11.0), (12.5, 20.5), (22.0, 30.0))  # setup before, evaluations between
Trace = list[SensorReading]


def gpu_trace(seed: int, *, style: int | None = None) -> Trace:
    """32 s of a GPU: boosting freely, capped by power, or often idle for want of work; warming up all the while."""
    draws = np.random.default_rng(seed)
    style = seed % 3 if style is None else style
    power, use = ((350.0, 0.9), (690.0, 0.99), (140.0, 0.3))[style]
    readings, energy = [], float(draws.uniform(1e6, 1e9))
    for index in range(64):
        at = 0.5 * index + float(draws.uniform(0.0, 0.02))
        is_training = any(begin <= at <= end for begin, end in SPANS)
        is_idle = not is_training or (style == 2 and draws.random() < 0.3)
        watts = (110.0 if is_idle else power) * float(draws.normal(1.0, 0.03))
        energy += 0.5 * watts
        readings.append(
            SensorReading(
                at=at, utilization=float(np.clip(draws.normal(use, 0.05), 0.0, 1.0)) if is_training else 0.0,
                power_watts=watts, energy_joules=energy,
                temperature_celsius=40.0 + 25.0 * (1 - np.exp(-at / 10)) + float(draws.integers(0, 2)),
                is_throttled=False, num_others=0, other_memory_bytes=600 * 2**20,
            )
        )  # fmt: skip
    return readings


def host_trace(seed: int, load: float | None = None) -> Trace:
    """32 s of two processors that a trial keeps busy, beside a machine's usual small jobs, or ``load`` by others."""
    draws = np.random.default_rng(seed)
    readings, busy, own = [], 1000.0, 50.0
    for index in range(64):
        mine = 0.5 * 2 * float(draws.uniform(0.85, 0.95))
        small = float(draws.exponential(0.01)) + (0.3 if draws.random() < 0.03 else 0.0)  # of a processor, and a job
        others = 0.5 * 2 * load * float(draws.normal(1.0, 0.1)) if load is not None else 0.5 * small
        own, busy = own + mine, busy + mine + others
        readings.append(SensorReading(at=0.5 * index, busy_seconds=busy, own_busy_seconds=own, num_processors=2))
    return readings


def between(trace: Trace, begin: float, end: float, change: Callable[[SensorReading], SensorReading]) -> Trace:
    """The trace with the readings from ``begin`` to ``end`` changed."""
    return [change(reading) if begin <= reading.at <= end else reading for reading in trace]


def with_process(trace: Trace, begin: float = 0.0, end: float = 40.0) -> Trace:
    return between(trace, begin, end, lambda reading: replace(reading, num_others=1))


def with_memory(trace: Trace) -> Trace:
    return between(trace, 0.0, 40.0, lambda reading: replace(reading, other_memory_bytes=5 * 2**30))


def slowed(trace: Trace, begin: float = 0.0, end: float = 40.0) -> Trace:
    return between(trace, begin, end, lambda reading: replace(reading, is_throttled=True))
