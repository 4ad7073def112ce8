"""What Ray costs a trial: from its start to its ending on a cluster of this machine, less the same in a process."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from statistics import median
from typing import Any

from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Setting
from sweep.config.trial_config import build_config
from sweep.executors.base import Executor
from sweep.executors.table import ExecutorSettings, make_executor
from sweep.records.messages import Ending, TrialTask

_ALLOWED_SECONDS = 0.2
_TRIALS = 20  # of an arm, by each executor in turn
_VALUES = {"model.name": "resnet8", "data.name": "digits", "data.subset": 64, "batch.micro": 32, "budget.steps": 2}


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Ours is the mean difference of a pair of trials, one by each executor; the other arm is what it may be."""
    device = str(setting.device)
    task = TrialTask(number=0, config=build_config(_VALUES, "benchmark"), device=device, threads=1)
    num_trials = setting.pick(_TRIALS, 2)
    taken: dict[str, list[float]] = {"process": [], "ray": []}
    names = ("process", "ray")
    first, second = (make_executor(ExecutorSettings(name=name, device=device)) for name in names)
    with first as process, second as ray:
        executors = {"process": process, "ray": ray}
        for executor in executors.values():
            executor.describe()  # when the forkserver has imported everything

        def ours(_pair: int) -> float:
            for index in range(num_trials):
                for name in sorted(executors, reverse=bool(index % 2)):
                    taken[name].append(_seconds_of(executors[name], replace(task, number=index)))
            sums = {name: sum(seconds[-num_trials:]) for name, seconds in taken.items()}
            return (sums["ray"] - sums["process"]) / num_trials

        def check() -> dict[str, Any]:
            return {f"seconds_of_a_trial_by_{name}": median(seconds) for name, seconds in taken.items()}

        yield Arms(ours, lambda _pair: _ALLOWED_SECONDS, check, {"trials": num_trials, **_VALUES})


def _seconds_of(executor: Executor, task: TrialTask) -> float:
    began = time.perf_counter()
    executor.start(task)
    while True:
        for _, message in executor.poll(1.0):
            if not isinstance(message, Ending):
                continue
            if message.outcome != "complete":
                raise ArmsDifferError(f"the trial ended as {message.outcome}: {message.error}")
            return time.perf_counter() - began


BENCHMARK = Benchmark(
    "ray_overhead",
    f"seconds that a trial takes longer by Ray than in a process, over the {_ALLOWED_SECONDS:g} it may be",
    "seconds",
    "lower",
    1.0,
    prepare,
)
