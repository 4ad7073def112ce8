"""From a finished trial to the next proposal, both on the disk, quasi-random points, 10,000 trials on record."""

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.samplers import QMCSampler

from benchmarks.asking import NUM_ASKED, asking
from benchmarks.harness import Arms, Benchmark, Setting
from benchmarks.optuna_studies import ask_milliseconds, load, make_study

LIMIT_MILLISECONDS = 5.0
_OPTUNA_MILLISECONDS = 27.0  # what the limit was set against


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Ours is the tuner with a trial that ends at once; theirs asks and tells on SQLite."""
    count = setting.pick(10_000, 300)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    milliseconds: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_study(folder / "optuna.sqlite", count)
        study = load(folder / "optuna.sqlite", QMCSampler(seed=0, warn_independent_sampling=False))
        with asking(folder, count, "qmc") as ask:

            def ours(pair: int) -> float:
                milliseconds.append(ask(pair))
                return milliseconds[-1]

            def theirs(_pair: int) -> float:
                return ask_milliseconds(study, NUM_ASKED)

            yield Arms(ours, theirs, lambda: {"milliseconds": statistics.median(milliseconds[1:])}, {"trials": count})


BENCHMARK = Benchmark(
    "ask",
    f"ms from a finished trial to the next, on the disk, over Optuna's on SQLite: 10,000 trials, quasi-random; "
    f"{LIMIT_MILLISECONDS:g} ms where Optuna takes {_OPTUNA_MILLISECONDS:g}",
    "ms",
    "lower",
    round(LIMIT_MILLISECONDS / _OPTUNA_MILLISECONDS, 3),
    prepare,
)
