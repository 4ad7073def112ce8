"""Two arms, measured in turn in one process: the median of their paired ratios with its interval; results as files."""

import datetime as dt
import hashlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.stats import beta

from sweep.analysis.statistics import CONFIDENCE, Interval
from sweep.config.errors import InputError
from sweep.measurement.device import describe_environment
from sweep.records.inputs import environment_digest

Json = dict[str, Any]
RESULTS = Path(__file__).parent / "results"
TABLES = Path(__file__).parent / "tables"
CPU = torch.device("cpu")
NUM_PAIRS = 7
NUM_RESAMPLES = 2000
MIN_PAIRS = 5  # of a result that is kept
_BUSY_LOAD = 0.5  # running processes beside ours from which a timing is not to be trusted
_REPOSITORY = Path(__file__).resolve().parent.parent


def median_interval(values: Sequence[float], num_resamples: int = NUM_RESAMPLES) -> Interval:
    """Median of the ``values`` and its percentile bootstrap interval (Efron, 1979), for many repeats of one
    measurement: of 3 values it covers the truth in about 75 % of the cases, not 95 %."""
    known, n = np.asarray(values, dtype=np.float64), len(values)
    if n < 2:
        return Interval(float(known[0]) if n else np.nan, np.nan, np.nan, n)
    draws = np.random.default_rng(0).integers(0, n, size=(num_resamples, n))
    medians = np.median(known[draws], axis=1)
    low, high = np.quantile(medians, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(float(np.median(known)), float(low), float(high), n)


class ArmsDifferError(RuntimeError):
    """The two arms did not compute the same, so their times cannot be compared."""


@dataclass(frozen=True)
class Setting:
    """Where and how much to measure; a tiny setting shows that everything runs and says nothing about speed."""

    device: torch.device
    is_tiny: bool = False

    def pick(self, full: int, tiny: int) -> int:
        return tiny if self.is_tiny else full


@dataclass(frozen=True)
class Arms:
    """Each arm takes the number of the pair and returns its figure; ``check`` looks at both when all is measured.

    ``check`` returns facts to keep with the result, or raises :class:`ArmsDifferError`.
    """

    ours: Callable[[int], float]
    theirs: Callable[[int], float]
    check: Callable[[], Json] = dict
    facts: Json = field(default_factory=dict)


class Benchmark(NamedTuple):
    """A question with a target. ``prepare`` makes the arms and tidies up after them."""

    name: str
    question: str
    unit: str  # of an arm's figure
    better: Literal["higher", "lower"]
    target: float
    prepare: Callable[[Setting], AbstractContextManager[Arms]]
    num_pairs: int = NUM_PAIRS


BENCHMARKS: dict[str, Benchmark] = {}  # of the modules that are imported


def benchmark(
    name: str, question: str, unit: str, better: Literal["higher", "lower"], target: float, num_pairs: int = NUM_PAIRS
) -> Callable[[Callable[[Setting], Iterator[Arms]]], Benchmark]:
    """Registers what it decorates, a generator that yields the arms and then tidies up."""

    def register(prepare: Callable[[Setting], Iterator[Arms]]) -> Benchmark:
        BENCHMARKS[name] = Benchmark(name, question, unit, better, target, contextmanager(prepare), num_pairs)
        return BENCHMARKS[name]

    return register


@dataclass(frozen=True)
class Result:
    """What was measured, raw samples included; the ratio of a pair is ours over theirs."""

    name: str
    unit: str
    better: Literal["higher", "lower"]
    target: float
    ours: tuple[float, ...]
    theirs: tuple[float, ...]
    facts: Json
    load_before: float
    load_after: float

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(ours / theirs for ours, theirs in zip(self.ours, self.theirs, strict=True))

    @property
    def interval(self) -> Interval:
        return median_interval(self.ratios)

    @property
    def is_met(self) -> bool:
        """Whether the median is on the right side of the target."""
        median = self.interval.median
        return bool(median >= self.target if self.better == "higher" else median <= self.target)

    @property
    def line(self) -> str:
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
    load = os.getloadavg()[0]
    with benchmark.prepare(setting) as arms:
        ours, theirs = zip(*run_pairs(benchmark, arms, num_pairs or benchmark.num_pairs), strict=True)
        facts = {**arms.facts, **arms.check()}
    about = (benchmark.name, benchmark.unit, benchmark.better, benchmark.target)
    return Result(*about, ours, theirs, facts, load, os.getloadavg()[0])


def run_pairs(benchmark: Benchmark, arms: Arms, num_pairs: int) -> Iterator[tuple[float, float]]:
    """The figures of ours and theirs, pair by pair, after one pair that warms up."""
    for pair in range(-1, num_pairs):
        figures = [0.0, 0.0]
        # each goes first in turn, because a machine's pace drifts
        for index, arm in tuple(enumerate((arms.ours, arms.theirs)))[:: -1 if pair % 2 else 1]:
            figures[index] = arm(pair)
        ours, theirs = figures
        which = f"pair {pair + 1}" if pair >= 0 else "warm-up"
        told = f"ours {ours:.5g}, theirs {theirs:.5g} {benchmark.unit}, ratio {ours / theirs:.4g}"
        print(f"{benchmark.name} {which}: {told}", file=sys.stderr, flush=True)
        if pair >= 0:
            yield ours, theirs


def warn_if_busy() -> None:
    if (load := os.getloadavg()[0]) > _BUSY_LOAD:
        print(f"load average {load:.1f} before the start: others run on this machine, expect noise", file=sys.stderr)


def save_ratio(result: Result, device: torch.device, folder: Path = RESULTS) -> Path:
    if len(result.ours) < MIN_PAIRS:
        raise InputError(f"a result is kept from {MIN_PAIRS} pairs on, not {len(result.ours)}; raise --pairs.")
    about = {"ratios": result.ratios, "interval": result.interval._asdict()}
    document = {"line": result.line, "is_met": result.is_met, **asdict(result), **about}
    return save(result.name, document, device, folder)


def save(name: str, document: Json, device: torch.device = CPU, folder: Path = RESULTS) -> Path:
    environment = describe_environment(device)
    date = dt.datetime.now(dt.UTC).date().isoformat()
    whole = {"date": date, **document, "environment": environment}
    path = folder / f"{name}-{slug(environment['device'])}-{date}.json"
    write_whole(path, json.dumps(whole | {"environment_digest": environment_digest(environment)}, indent=1) + "\n")
    print(f"saved {path}", file=sys.stderr)
    return path


def slug(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")


def write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def keep(path: Path, make: Callable[[], Any]) -> Any:
    """The JSON in ``path``, which an earlier run wrote, otherwise what ``make`` returns, which is written there."""
    if not path.is_file():
        write_whole(path, json.dumps(make()))
    return json.loads(path.read_text(encoding="utf-8"))


def digest_files(*places: str | Path) -> str:
    """Of files, and of the modules of folders, by their names in the repository."""
    paths: list[Path] = []
    for place in (_REPOSITORY / each for each in places):
        paths += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def share_of(values: Sequence[bool]) -> dict[str, float | int | None]:
    """The share of those that are true, with its exact 95 % interval (Clopper and Pearson 1934)."""
    n, hits = len(values), sum(values)
    if not n:
        return {"share": None, "low": None, "high": None, "n": 0}
    low = float(beta.ppf(0.025, hits, n - hits + 1)) if hits else 0.0
    high = float(beta.ppf(0.975, hits + 1, n - hits)) if hits < n else 1.0
    return {"share": hits / n, "low": low, "high": high, "n": n}
