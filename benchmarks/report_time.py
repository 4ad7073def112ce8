"""How long the report of 1,000 trials takes: page, answer, findings and pictures, from the start of a process."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection

from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Setting
from benchmarks.many_trials import fill, many_spec
from sweep.records.store.schema import EVALUATIONS, TRIALS
from sweep.records.store.store import Store, open_store

_ALLOWED_SECONDS = 3.0
_EVALUATIONS = 10  # of each trial
_AT_ONCE = 2_000
_CONFIRMED, _SEEDS = 4, 3
_PROGRAM = """
import json, resource, sys
from reports import write_report
page = write_report(sys.argv[1], out=sys.argv[2])
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps([page.stat().st_size, *(item.ru_utime + item.ru_stime for item in used)]))
"""


def report_arms(
    count: int, allowed_seconds: float, max_bytes: float
) -> Callable[[Setting], AbstractContextManager[Arms]]:
    """Seconds of a report of ``count`` trials over the seconds that it may take; the page has ``max_bytes`` at most."""

    @contextmanager
    def prepare(setting: Setting) -> Iterator[Arms]:
        trials = setting.pick(count, 64)
        told: list[list[float]] = []
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "many"
            fill_whole(folder / "study.sqlite", trials)

            def ours(_pair: int) -> float:
                began = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, "-c", _PROGRAM, str(folder), name], capture_output=True, text=True, check=True
                )
                seconds = time.perf_counter() - began
                told.append(json.loads(done.stdout))
                return seconds

            yield Arms(ours, lambda _pair: allowed_seconds, lambda: _facts(told, max_bytes), {"trials": trials})

    return prepare


def _facts(told: list[list[float]], max_bytes: float) -> dict[str, Any]:
    size = told[-1][0]
    if size > max_bytes:
        raise ArmsDifferError(f"the page has {size:,.0f} bytes, more than the {max_bytes:,.0f} that it may have")
    return {
        "page_bytes": size,
        "processor_seconds_page": [item[1] for item in told],
        "processor_seconds_pictures": [item[2] for item in told],
    }


def fill_whole(path: Path, count: int) -> None:
    """A study of ``count`` search trials with learning curves, of which every eighth ran out of memory, and four
    configurations confirmed with three seeds each."""
    path.parent.mkdir(parents=True)
    spec = many_spec("many", count)
    fill(path, spec, count)
    with closing(open_store(path)) as store:
        _spoil(store)
        _confirm(store, count)
        for start in range(0, count, _AT_ONCE):
            rows = [_evaluation(n, e) for n in range(start, min(start + _AT_ONCE, count)) for e in range(_EVALUATIONS)]
            store.database.write(partial(_insert, rows))


def _insert(rows: list[dict[str, Any]], connection: Connection) -> None:
    connection.execute(EVALUATIONS.insert(), rows)


def _spoil(store: Store) -> None:
    spoilt = TRIALS.update().where(TRIALS.c.number % 8 == 7)
    values = {"outcome": "out_of_memory", "val_accuracy": None, "train_seconds": None, "error": "out of memory"}
    store.database.write(lambda connection: connection.execute(spoilt.values(values)))


def _confirm(store: Store, count: int) -> None:
    chosen = TRIALS.select().where(TRIALS.c.outcome == "complete").order_by(TRIALS.c.val_accuracy.desc())
    found = store.database.read(lambda connection: connection.execute(chosen.limit(_CONFIRMED)).mappings().all())
    again = [
        {**row, "number": count + _SEEDS * place + seed, "phase": "confirm", "config.seed": seed + 1, "trial_key": ""}
        | {"val_accuracy": row["val_accuracy"] + 0.001 * (seed - 1)}
        for place, row in enumerate(found)
        for seed in range(_SEEDS)
    ]
    store.database.write(lambda connection: connection.execute(TRIALS.insert(), again))


def _evaluation(number: int, index: int) -> dict[str, Any]:
    share = (index + 1) / _EVALUATIONS
    row = {"study": "many", "number": number, "attempt": 1, "step": round(500 * share), "epoch": 10 * share}
    row |= {"samples": round(50_000 * share), "train_seconds": 8 * share, "train_loss": 2.3 * (1 - 0.8 * share)}
    row |= {"val_loss": 2.3 * (1 - 0.7 * share), "val_accuracy": 0.9 * share**0.5, "learning_rate": 0.1}
    return row | {"global_batch_size": 64}


BENCHMARK = Benchmark(
    "report",
    f"seconds of a report of 1,000 trials over the {_ALLOWED_SECONDS:g} it may take, from the start of a process",
    "seconds",
    "lower",
    1.0,
    report_arms(1_000, _ALLOWED_SECONDS, 3e6),
    num_pairs=5,
)
