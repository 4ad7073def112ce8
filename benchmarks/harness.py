"""Two arms, measured in turn in one process; the median of their paired ratios with its interval."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch

from sweep.analysis.statistics import Interval, median_interval

NUM_PAIRS = 7
MIN_PAIRS = 5  # of a result that is kept
_BUSY_LOAD = 0.5  # running processes beside ours from which a timing is not to be trusted


class ArmsDifferError(RuntimeError):
    """The two arms did not compute the same, so their times cannot be compared."""


@dataclass(frozen=True)
class Setting:
    """Where and how much to measure; a tiny setting shows that everything runs and says nothing about speed."""

    device: torch.device
    is_tiny: bool = False

    def pick(self, full: int, tiny: int) -> int:
        """``full``, or ``tiny`` in a tiny setting."""
        return tiny if self.is_tiny else full


@dataclass(frozen=True)
class Arms:
    """Each arm takes the number of the pair and returns its figure; ``check`` looks at both when all is measured.

    ``check`` returns facts to keep with the result, or raises :class:`ArmsDifferError`.
    """

    ours: Callable[[int], float]
    theirs: Callable[[int], float]
    check: Callable[[], dict[str, Any]] = dict
    facts: dict[str, Any] = field(default_factory=dict)


class Benchmark(NamedTuple):
    """A question with a target. ``prepare`` makes the arms and tidies up after them."""

    name: str
    question: str
    unit: str  # of an arm's figure
    better: Literal["higher", "lower"]
    target: float
    prepare: Callable[[Setting], AbstractContextManager[Arms]]
    num_pairs: int = NUM_PAIRS


@dataclass(frozen=True)
class Result:
    """What was measured, raw samples included; the ratio of a pair is ours over theirs."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    target: float
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    facts: dict[str, Any]
    load_before: float
    load_after: float

    @property
    def ratios(self) -> tuple[float, ...]:
        """One a pair."""
        return tuple(ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True))

    @property
    def interval(self) -> Interval:
        """Median of the ratios and its 95 % bootstrap interval."""
        return median_interval(self.ratios)

    @property
    def is_met(self) -> bool:
        """Whether the median is on the right side of the target."""
        median = self.interval.median
        return bool(median >= self.target if self.better == "higher" else median <= self.target)

    @property
    def line(self) -> str:
        """The last line of a benchmark's output."""
        ratio = self.interval
        return (
            f"{self.name} ratio={ratio.median:.4g} low={ratio.low:.4g} high={ratio.high:.4g} "
            f"target={self.target:g} n={ratio.n}"
        )


def measure(benchmark: Benchmark, setting: Setting, num_pairs: int | None = None) -> Result:
    """Both arms once to warm up, then ``num_pairs`` times (the benchmark's own) in turn: ours, theirs, theirs, ours ...

    Raises:
        ArmsDifferError: when they did not compute the same.
    """
    load_before = os.getloadavg()[0]
    with benchmark.prepare(setting) as arms:
        pairs = list(run_pairs(benchmark, arms, num_pairs or benchmark.num_pairs))
        facts = {**arms.facts, **arms.check()}
    ours, theirs = zip(*pairs, strict=True)
    return Result(
        benchmark.name,
        benchmark.unit,
        benchmark.better,
        benchmark.target,
        ours,
        theirs,
        facts,
        load_before,
        os.getloadavg()[0],
    )


def run_pairs(benchmark: Benchmark, arms: Arms, num_pairs: int) -> Iterator[tuple[float, float]]:
    """The figures of ours and theirs, pair by pair, after one pair that warms up."""
    for pair in range(-1, num_pairs):
        figures = [0.0, 0.0]
        # each goes first in turn, because a machine's pace drifts
        for index, arm in tuple(enumerate((arms.ours, arms.theirs)))[:: -1 if pair % 2 else 1]:
            figures[index] = arm(pair)
        ours, theirs = figures
        _tell(benchmark, pair, ours, theirs)
        if pair >= 0:
            yield ours, theirs


def warn_if_busy(load: float) -> None:
    """A word on standard error when others want the same cores."""
    if load > _BUSY_LOAD:
        print(f"load average {load:.1f} before the start: others run on this machine, expect noise", file=sys.stderr)


def _tell(benchmark: Benchmark, pair: int, ours: float, theirs: float) -> None:
    which = f"pair {pair + 1}" if pair >= 0 else "warm-up"
    print(
        f"{benchmark.name} {which}: ours {ours:.5g}, theirs {theirs:.5g} {benchmark.unit}, ratio {ours / theirs:.4g}",
        file=sys.stderr,
        flush=True,
    )
