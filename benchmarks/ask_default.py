"""From a finished trial to the next proposal with the sampler tpe, 10,000 trials on record."""

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna
from optuna.samplers import TPESampler

from benchmarks.asking import asking
from benchmarks.harness import Arms, Benchmark, Setting
from benchmarks.optuna_studies import SPEC, ask_milliseconds, trials
from sweep.search.mirror.optuna_conversion import list_directions

LIMIT_MILLISECONDS = 100.0
_OPTUNA_MILLISECONDS = 430.0  # what the limit was set against
_NUM_THEIRS = 5


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Ours is the tuner with its records on the disk; theirs is the sampler alone, in memory."""
    count = setting.pick(10_000, 300)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=list_directions(SPEC), sampler=TPESampler(seed=0))
    study.add_trials(trials(SPEC, count))
    milliseconds: list[float] = []
    with tempfile.TemporaryDirectory() as name, asking(Path(name), count, "tpe") as ask:

        def ours(pair: int) -> float:
            milliseconds.append(ask(pair))
            return milliseconds[-1]

        def theirs(_pair: int) -> float:
            return ask_milliseconds(study, _NUM_THEIRS)

        yield Arms(ours, theirs, lambda: {"milliseconds": statistics.median(milliseconds[1:])}, {"trials": count})


BENCHMARK = Benchmark(
    "ask_default",
    f"ms from a finished trial to the next, on the disk, over Optuna's TPE in memory: 10,000 trials, sampler tpe; "
    f"{LIMIT_MILLISECONDS:g} ms where Optuna takes {_OPTUNA_MILLISECONDS:g}",
    "ms",
    "lower",
    round(LIMIT_MILLISECONDS / _OPTUNA_MILLISECONDS, 3),
    prepare,
)
