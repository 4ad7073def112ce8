"""How busy 1,000 workers with trials of ten minutes keep their supervisor: a simulated clock, records on a disk."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.harness import Arms, Benchmark, Setting
from benchmarks.many_trials import fill
from benchmarks.replay import read_table
from benchmarks.search_arms import TABLES
from benchmarks.worker_load import Load, measure_load

_ALLOWED_SHARE = 0.2  # of one core
_TRIAL_SECONDS = 600.0
_WINDOW_SECONDS = 120.0
_ROUNDS = 5  # trials for each worker, more than a window needs


def load(folder: Path, num_workers: int, num_before: int, sampler: str = "qmc") -> Load:
    """A window of a study that has ``num_before`` trials on record."""
    return measure_load(
        read_table(TABLES / "digits"),
        num_workers,
        _TRIAL_SECONDS,
        folder,
        window_seconds=_WINDOW_SECONDS,
        prepare=lambda file, spec: fill(file, spec, num_before),
        trials=num_before + _ROUNDS * num_workers,
        sampler=sampler,
        confirm={"max_configurations": 0},
    )


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Theirs is what it may take."""
    num_workers, num_before = setting.pick(1_000, 10), setting.pick(10_000, 20)
    loads: list[Load] = []

    def ours(_pair: int) -> float:
        with tempfile.TemporaryDirectory() as folder:
            loads.append(load(Path(folder), num_workers, num_before))
        return loads[-1].busy_share

    def facts() -> dict[str, Any]:
        measured = loads[1:] or loads
        return {
            "share_with_waits": median(each.wall_share for each in measured),
            "events_per_second": median(each.num_events / each.simulated_seconds for each in measured),
            "bytes_per_trial": median(each.bytes_per_trial for each in measured),
            "ask_milliseconds": median(each.ask_milliseconds[0] for each in measured),
        }

    about = {"workers": num_workers, "trials": num_before, "trial_seconds": _TRIAL_SECONDS}
    yield Arms(ours, lambda _pair: _ALLOWED_SHARE, facts, about)


BENCHMARK = Benchmark(
    "workers",
    f"share of one core that the supervisor of 1,000 simulated workers takes, trials of ten minutes, over the "
    f"{_ALLOWED_SHARE:.0%} that it may take: 10,000 trials on record, quasi-random",
    "of a core",
    "lower",
    1.0,
    prepare,
    num_pairs=5,
)
