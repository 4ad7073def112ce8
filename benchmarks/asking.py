"""How long the supervisor takes from a finished trial to the next, with both on the disk, at any number of records."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, final

from benchmarks.many_trials import fill, many_spec, measured
from sweep.config.trial_config import flatten_config
from sweep.executors.base import Executor
from sweep.records.messages import Ending, Message, Task
from sweep.records.store.store import open_store
from sweep.search.loop.run_plan import RunPlan
from sweep.search.loop.trial_index import KeyMaker
from sweep.search.loop.tuner import Tuner
from sweep.search.mirror.optuna_mirror import Mirror

NUM_ASKED = 40  # trials of one figure
_ROOM = 10_000  # trials that a filled study may still have


@final
class InstantExecutor(Executor):
    """Trials that end as soon as they are asked for; notes the seconds between the end of one and the next start."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._task: Task | None = None
        self._ended: float | None = None

    @property
    def slots(self) -> int:
        return 1

    def describe(self) -> dict[str, Any]:
        return {"device": "cpu"}

    def start(self, task: Task) -> None:
        if self._ended is not None:
            self.seconds.append(time.perf_counter() - self._ended)
        self._task = task

    def devices_of(self, number: int) -> tuple[str, ...]:
        del number
        return ("cpu",)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        del timeout_seconds
        task, self._task = self._task, None
        if task is None:
            return []
        ending = Ending(
            outcome="complete",
            measurements=measured(flatten_config(task.config), task.number),
            device="cpu",
            environment={"device": "cpu"},
        )
        self._ended = time.perf_counter()
        return [(task.number, ending)]

    def preempt(self, number: int) -> None:
        self.stop(number)

    def stop(self, number: int) -> None:
        del number
        self._task = None

    def close(self) -> None:
        self._task = None


@contextmanager
def asking(folder: Path, num_trials: int, sampler: str) -> Iterator[Callable[[int], float]]:
    """A study with ``num_trials`` on record; each call of what it yields trains some more and returns the median
    milliseconds between two of them."""
    spec = many_spec(f"{sampler}{num_trials}", num_trials + _ROOM, sampler)
    path = folder / f"{spec.name}.sqlite"
    fill(path, spec, num_trials)
    executor = InstantExecutor()
    with closing(open_store(path)) as store, closing(Mirror(store.url, spec)) as mirror:
        plan = RunPlan(key_of=KeyMaker())
        with closing(Tuner(spec, store, executor, mirror, plan).run()) as events:

            def ask(_pair: int) -> float:
                executor.seconds.clear()
                while len(executor.seconds) < NUM_ASKED:
                    next(events)
                return 1e3 * statistics.median(executor.seconds)

            yield ask
