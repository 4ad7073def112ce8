"""Trials in an hour of a core: ResNets that processes train several at a time, against one in each process.

The ratio is of processor time, which other programs on the machine change little; that of the clock is a fact.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import psutil

from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Setting
from sweep.config.trial_config import build_config
from sweep.executors.base import Executor
from sweep.executors.packed.stacked_executor import StackedExecutor
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.records.messages import Ending, TrialTask

_NUM_TRIALS = 8
_BATCHES = (16, 32, 128)  # the first is that of the ratio; the others are facts
_RATES = (0.003, 0.01, 0.03, 0.1)
_MOST_DIFFERENCE = 0.02  # of the mean accuracy of the two arms, over all pairs


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Theirs has one process on each core, one trial in each: the fastest way without stacks."""
    num_trials, per_device = setting.pick(_NUM_TRIALS, 2), max(1, min(2, len(os.sched_getaffinity(0))))
    batches = _BATCHES[: setting.pick(len(_BATCHES), 1)]
    rates: dict[str, list[float]] = {}
    accuracies: dict[str, list[float]] = {"stacked": [], "processes": []}
    with ProcessExecutor(["cpu"]) as process, StackedExecutor(process) as stacks:

        def run(arm: str, executor: Executor, micro: int) -> float:
            tasks = [_task(number, micro, setting) for number in range(num_trials)]
            began, began_working = time.monotonic(), _read_processor_seconds(process)
            endings = _train(executor, tasks)
            rate = 3600.0 * num_trials / (_read_processor_seconds(process) - began_working)
            rates.setdefault(f"{arm}_at_{micro}", []).append(rate)
            rates.setdefault(f"{arm}_at_{micro}_by_clock", []).append(3600.0 * num_trials / (time.monotonic() - began))
            if arm in accuracies and micro == batches[0]:
                accuracies[arm] += [float(ending.measurements["val_accuracy"]) for ending in endings]
            return rate

        def run_all(arm: str, executor: Executor) -> float:
            return {micro: run(arm, executor, micro) for micro in batches}[batches[0]]

        def ours(_pair: int) -> float:
            process.divide(per_device)
            stacks.depth = -(-num_trials // per_device)
            return run_all("stacked", stacks)

        def theirs(_pair: int) -> float:
            stacks.depth = 1
            process.divide(1)
            run("default", process, batches[0])
            process.divide(per_device)
            return run_all("processes", process)

        about = {"trials": num_trials, "processes": per_device, "model": "resnet8", "micro_batches": list(batches)}
        yield Arms(ours, theirs, lambda: _compare(rates, accuracies, batches), about)


def _read_processor_seconds(process: ProcessExecutor) -> float:
    """Of the forkserver and of all its children that have ended."""
    times = psutil.Process(process.forkserver_pid).cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _task(number: int, micro: int, setting: Setting) -> TrialTask:
    values: dict[str, Any] = {
        "model.name": "resnet8",
        "data.name": "digits",
        "batch.micro": micro,
        "budget.epochs": setting.pick(4, 1),
        "optimizer.lr": _RATES[number % len(_RATES)],
        "optimizer.weight_decay": 0.003 * (number % 2),
        "seed": number,
    }
    return TrialTask(number=number, config=build_config(values, "benchmark"), device="cpu")


def _train(executor: Executor, tasks: list[TrialTask]) -> list[Ending]:
    left, found = list(tasks), dict[int, Ending]()
    num_running = 0
    while len(found) < len(tasks):
        while left and num_running < executor.slots:
            executor.start(left.pop(0))
            num_running += 1
        for number, message in executor.poll(1.0):
            if isinstance(message, Ending):
                found[number] = message
                num_running -= 1
    failed = [ending for ending in found.values() if ending.outcome != "complete"]
    if failed:
        raise ArmsDifferError(f"{len(failed)} of {len(tasks)} trials ended as {failed[0].outcome}: {failed[0].error}")
    return [found[task.number] for task in tasks]


def _compare(
    rates: dict[str, list[float]], accuracies: dict[str, list[float]], batches: tuple[int, ...]
) -> dict[str, Any]:
    """The ratios at every micro batch and to the default, by pairs; the accuracies must agree."""
    pairs = list(zip(accuracies["stacked"], accuracies["processes"], strict=True))
    difference = sum(ours - theirs for ours, theirs in pairs) / len(pairs)
    if abs(difference) > _MOST_DIFFERENCE:
        raise ArmsDifferError(f"the mean accuracies differ by {difference:.3f}, more than {_MOST_DIFFERENCE}")
    first = batches[0]
    facts = {f"ratio_at_{micro}": _ratio(rates, f"stacked_at_{micro}", f"processes_at_{micro}") for micro in batches}
    for arm in ("processes", "default"):
        names = (f"stacked_at_{first}_by_clock", f"{arm}_at_{first}_by_clock")
        facts[f"ratio_to_{arm}_at_{first}_by_clock"] = _ratio(rates, *names)
    largest = max(abs(ours - theirs) for ours, theirs in pairs)
    return facts | {"accuracy_difference_mean": difference, "accuracy_difference_largest": largest}


def _ratio(rates: dict[str, list[float]], ours: str, theirs: str) -> float:
    # without the first pair, which warms up
    return median(one / other for one, other in list(zip(rates[ours], rates[theirs], strict=True))[1:])


BENCHMARK = Benchmark(
    "stacked",
    f"trials in an hour of a core, {_NUM_TRIALS} trainings of ResNet-8 on digits, micro batch {_BATCHES[0]}: two "
    "processes of four trials over two of one trial",
    "trials per hour of a core",
    "higher",
    2.0,
    prepare,
    num_pairs=5,
)
