"""What the pieces hand to each other: samples that are kept, and the rows that are computed from them."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from benchmarks.harness import Setting
from sweep.analysis.statistics import median_interval, t_quantile

Sample = dict[str, Any]  # ready for JSON


class TimeIsOverError(Exception):
    """The time of a piece ends before its work; what it kept is enough to continue."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """An answer. What could not be measured has no ``measured``, and a ``note`` with the reason."""

    measured: float | None = None
    interval: tuple[float, float] | None = None  # of 95 %
    n: int = 1
    note: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Job:
    """Where to measure, until when (``time.monotonic``), and the samples that an earlier run of the piece kept."""

    setting: Setting
    until: float
    kept: Sequence[Sample] = ()
    page: Path | None = None  # the file for a page that the piece makes

    @property
    def seconds_left(self) -> float:
        """Below 0 when the time is over."""
        return self.until - time.monotonic()

    def require(self, seconds: float = 0.0) -> None:
        """Raises :class:`TimeIsOverError` where less than ``seconds`` are left."""
        if self.seconds_left <= seconds:
            raise TimeIsOverError(f"{max(0.0, self.seconds_left):.0f} s were left and {seconds:.0f} s are required")


class Measure(NamedTuple):
    """``collect`` yields each sample as soon as it is there, those of ``Job.kept`` not again; ``answer`` computes the
    rows by the names of their questions from any number of samples."""

    collect: Callable[[Job], Iterator[Sample]]
    answer: Callable[[Sequence[Sample]], dict[str, Found]]


def bind_to_this_process(code: str) -> list[str]:
    """A command that runs ``code`` in a new Python, which the kernel ends with this process."""
    begin = f"from sweep.training.subprocesses import die_with_parent; die_with_parent({os.getpid()})"
    return [sys.executable, "-c", f"{begin}; {code}"]


def find_median(values: Sequence[float], **more: Any) -> Found:
    """The median with its bootstrap interval."""
    if not values:
        return Found(n=0, **more)
    middle = median_interval(values)
    interval = (middle.low, middle.high) if len(values) > 1 else None
    return Found(measured=middle.median, interval=interval, n=len(values), **more)


def find_mean(values: Sequence[float], **more: Any) -> Found:
    """The mean with its interval by Student's t distribution."""
    if not values:
        return Found(n=0, **more)
    middle = mean(values)
    if len(values) < 2:
        return Found(measured=middle, **more)
    half = t_quantile(0.95, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return Found(measured=middle, interval=(middle - half, middle + half), n=len(values), **more)
