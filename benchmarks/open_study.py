"""Opening a study of 100,000 trials until its first proposal."""

import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import optuna
from optuna.samplers import RandomSampler

from benchmarks.asking import InstantExecutor
from benchmarks.harness import Arms, Benchmark, Setting
from benchmarks.many_trials import fill, many_spec
from benchmarks.optuna_studies import SPEC, load, make_study
from sweep.records.store.store import open_store
from sweep.search.loop.run_plan import RunPlan
from sweep.search.loop.trial_index import KeyMaker
from sweep.search.loop.tuner import Tuner
from sweep.search.mirror.optuna_conversion import make_distributions
from sweep.search.mirror.optuna_mirror import Mirror

LIMIT_SECONDS = 5.0
_OPTUNA_SECONDS = 31.0  # what the limit was set against


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Both arms open their file, know all trials, and ask for one; ours also has it on record."""
    count = setting.pick(100_000, 300)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        own, optunas = Path(name) / "own.sqlite", Path(name) / "optuna.sqlite"
        spec = many_spec("many", count + 1_000)
        fill(own, spec, count)
        make_study(optunas, count)

        def ours(_pair: int) -> float:
            began = time.perf_counter()
            plan = RunPlan(key_of=KeyMaker())
            with closing(open_store(own)) as store, closing(Mirror(store.url, spec)) as mirror:
                events = Tuner(spec, store, InstantExecutor(), mirror, plan).run()
                next(events)  # the first trial has started
                seconds.append(time.perf_counter() - began)
                events.close()
            return seconds[-1]

        def theirs(_pair: int) -> float:
            began = time.perf_counter()
            load(optunas, RandomSampler(seed=0)).ask(make_distributions(SPEC.space))
            return time.perf_counter() - began

        yield Arms(ours, theirs, lambda: {"seconds": statistics.median(seconds[1:])}, {"trials": count})


BENCHMARK = Benchmark(
    "open",
    f"seconds to open a study of 100,000 trials and ask for one more, over Optuna's on SQLite; {LIMIT_SECONDS:g} s "
    f"where Optuna takes {_OPTUNA_SECONDS:g}",
    "seconds",
    "lower",
    round(LIMIT_SECONDS / _OPTUNA_SECONDS, 3),
    prepare,
    num_pairs=5,
)
