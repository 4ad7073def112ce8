"""How long the probe of one shape takes: in a process of its own, with loading, first steps, memory and timing."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Setting
from sweep.config.trial_config import build_config
from sweep.executors.queryable import QueryableExecutor
from sweep.executors.table import ExecutorSettings, make_executor
from sweep.records.messages import ProbeTask

_ALLOWED_SECONDS = 3.0
_TIMED_SECONDS = 1.0  # as `sweep probe` has it
_TINY_SECONDS = 0.05


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Ours is the probe; the other arm is what it may take."""
    config = build_config({"model.name": "resnet8", "data.name": "digits", "batch.micro": 64}, "benchmark")
    timed = _TINY_SECONDS if setting.is_tiny else _TIMED_SECONDS
    task = ProbeTask(number=0, config=config, device=str(setting.device), timed_seconds=timed)
    steps: list[float] = []
    with QueryableExecutor(make_executor(ExecutorSettings(device=str(setting.device)))) as executor:
        executor.describe()  # when the forkserver has imported everything

        def ours(_pair: int) -> float:
            began = time.perf_counter()
            ending = executor.run_query(task)
            seconds = time.perf_counter() - began
            if ending.outcome != "complete":
                raise ArmsDifferError(f"the probe ended as {ending.outcome}: {ending.error}")
            steps.append(float(ending.measurements["step_seconds_median"]))
            return seconds

        def check() -> dict[str, Any]:
            return {"step_seconds": steps, "widest_apart": (max(steps) - min(steps)) / median(steps)}

        yield Arms(ours, lambda _pair: _ALLOWED_SECONDS, check, {"batch": 64, "timed_seconds": timed})


BENCHMARK = Benchmark(
    "probe",
    f"seconds of a probe of one shape over the {_ALLOWED_SECONDS:g} it may take (digits, ResNet-8, micro batch 64)",
    "seconds",
    "lower",
    1.0,
    prepare,
)
