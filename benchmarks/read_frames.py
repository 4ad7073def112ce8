"""Trials a second from a study's file to a frame, at 100,000 trials."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import optuna

from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Setting
from benchmarks.many_trials import fill, many_spec
from benchmarks.optuna_studies import load, make_study
from sweep.records.frames.frames import load_frames


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Both arms open their file and make a frame of all trials; ours has all keys and metrics as columns."""
    count = setting.pick(100_000, 300)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rows: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as name:
        own, optunas = Path(name) / "own.sqlite", Path(name) / "optuna.sqlite"
        fill(own, many_spec("many", count), count)
        make_study(optunas, count)

        def ours(_pair: int) -> float:
            began = time.perf_counter()
            rows["ours"] = len(load_frames(own).trials)
            return count / (time.perf_counter() - began)

        def theirs(_pair: int) -> float:
            began = time.perf_counter()
            rows["theirs"] = len(load(optunas).trials_dataframe())
            return count / (time.perf_counter() - began)

        def check() -> dict[str, int]:
            if rows["ours"] != rows["theirs"]:
                raise ArmsDifferError(f"{rows['ours']} rows and {rows['theirs']}")
            return {"rows": rows["ours"]}

        yield Arms(ours, theirs, check, {"trials": count})


BENCHMARK = Benchmark(
    "frames",
    "trials a second from a file of 100,000 to a frame, over Optuna's trials_dataframe() on SQLite",
    "trials/second",
    "higher",
    40.0,
    prepare,
    num_pairs=5,
)
