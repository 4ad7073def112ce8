"""Readings of a GPU and of a host as a monitor takes them twice a second, clean or contaminated, for tests."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from sweep.measurement.monitor import SensorReading, Span

SPANS: tuple[Span, ...] = ((3.0, 11.0), (12.5, 20.5), (22.0, 30.0))  # setup before, evaluations between
MAX_CLOCK = 1.98e9
Trace = list[SensorReading]


def gpu_trace(seed: int, *, style: int | None = None) -> Trace:
    """32 s of a GPU: boosting freely, capped by power, or often idle for want of work; warming up all the while."""
    draws = np.random.default_rng(seed)
    style = seed % 3 if style is None else style
    base_clock, power, use = ((1.93e9, 350.0, 0.9), (1.5e9, 690.0, 0.99), (1.9e9, 140.0, 0.3))[style]
    readings, energy = [], float(draws.uniform(1e6, 1e9))
    for index in range(64):
        at = 0.5 * index + float(draws.uniform(0.0, 0.02))
        is_training = any(begin <= at <= end for begin, end in SPANS)
        is_idle = not is_training or (style == 2 and draws.random() < 0.3)
        watts = (110.0 if is_idle else power) * float(draws.normal(1.0, 0.03))
        energy += 0.5 * watts
        reasons = {"idle"} if is_idle else {"power_cap"} if style == 1 else set[str]()
        clock = float(draws.uniform(0.2e9, 1.2e9)) if is_idle else min(MAX_CLOCK, base_clock * draws.normal(1.0, 0.015))
        readings.append(
            SensorReading(
                at=at, utilization=float(np.clip(draws.normal(use, 0.05), 0.0, 1.0)) if is_training else 0.0,
                power_watts=watts, energy_joules=energy,
                temperature_celsius=40.0 + 25.0 * (1 - np.exp(-at / 10)) + float(draws.integers(0, 2)),
                clock_hertz=round(clock / 15e6) * 15e6, slow_reasons=frozenset(reasons),
                num_others=0, other_memory_bytes=600 * 2**20,
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
        clock = 2.6e9 * float(draws.normal(1.0, 0.02))
        readings.append(SensorReading(at=0.5 * index, clock_hertz=clock, busy_seconds=busy, own_busy_seconds=own,
                                num_processors=2))  # fmt: skip
    return readings


def between(trace: Trace, begin: float, end: float, change: Callable[[SensorReading], SensorReading]) -> Trace:
    """The trace with the readings from ``begin`` to ``end`` changed."""
    return [change(reading) if begin <= reading.at <= end else reading for reading in trace]


def with_process(trace: Trace, begin: float = 0.0, end: float = 40.0) -> Trace:
    return between(trace, begin, end, lambda reading: replace(reading, num_others=1))


def with_memory(trace: Trace) -> Trace:
    return between(trace, 0.0, 40.0, lambda reading: replace(reading, other_memory_bytes=5 * 2**30))


def slowed(trace: Trace, reason: str, begin: float = 0.0, end: float = 40.0) -> Trace:
    def change(reading: SensorReading) -> SensorReading:
        reasons = (reading.slow_reasons or frozenset()) - {"idle"} | {reason}
        return replace(reading, slow_reasons=reasons, clock_hertz=0.7 * (reading.clock_hertz or 0.0))

    return between(trace, begin, end, change)


def with_clock(trace: Trace, factor: Callable[[float], float]) -> Trace:
    """The clock that the device says to be without reason, times ``factor`` at each moment."""
    return [replace(reading, slow_reasons=frozenset(), clock_hertz=1.95e9 * factor(reading.at)) for reading in trace]
