"""The checks of a GPU: the tests of ``tests/gpu``, and whether an out-of-memory leaves later trials what they are."""

import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu_part import Job, Measure
from benchmarks.gpu_sheet import Row
from sweep.config.trial_config import TrialConfig, build_config
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.records.messages import Ending, TrialTask
from sweep.search.loop.single_trial import train_trial

ROOT = Path(__file__).resolve().parents[1]
PEAK_TARGET, TIME_TARGET = 1.01, 1.03
_RESULT = re.compile(r"^(?P<file>\S+\.py)::(?P<name>.+?) (?P<result>PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")
_BROKEN = re.compile(r"^(?:ERROR|FAILED) (?P<file>\S+\.py)(?: - (?P<why>.*))?$")  # of a file that was not even read
_NUM_AFTER = 30
_NUM_FRESH = 3  # before, and as many after
_ENOUGH_SECONDS = 60.0


def run_tests(_job: Job) -> Iterator[Row]:
    """A row for each file of ``tests/gpu``."""
    return rows_of_tests(["tests/gpu", "-m", "gpu"])


def rows_of_tests(chosen: list[str]) -> Iterator[Row]:
    """A row for each file that pytest runs: its failed tests, of which there are to be none; told when it is through.

    Raises:
        RuntimeError: no test was run.
    """
    command = [sys.executable, "-m", "pytest", *chosen, "-v", "--tb=short", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "-o", "addopts=-ra"]
    command += ["-W", "ignore:This process:DeprecationWarning"]  # Python 3.12 on workers that are forked
    results: dict[str, dict[str, str]] = defaultdict(dict)
    told: set[str] = set()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=_environment()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", file=sys.stderr)
            if match := _RESULT.match(line):
                yield from (_row(each, results[each]) for each in results.keys() - told - {match["file"]})
                told |= results.keys() - {match["file"]}
                results[match["file"]][match["name"]] = match["result"]
            elif (match := _BROKEN.match(line)) and match["file"] not in results:
                results[match["file"]]["(the whole file)"] = f"FAILED {match['why'] or ''}"
    yield from (_row(each, results[each]) for each in results.keys() - told)
    if not results:
        raise RuntimeError(f"pytest ran no test and ended with exit code {process.returncode}")


def _environment() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _row(file: str, results: dict[str, str]) -> Row:
    failed = [name for name, result in results.items() if result.startswith(("FAILED", "ERROR"))]
    counts = Counter(result.partition(" ")[0].lower() for result in results.values())
    note = ", ".join(f"{number} {result}" for result, number in sorted(counts.items()))
    if counts["passed"] == 0 and not failed:
        return Row(f"failed tests of {file}", note=note, facts={"results": results})
    note += f": {' '.join(failed)}" if failed else ""
    return Row(
        f"failed tests of {file}", len(failed), 0, "lower", n=len(results), note=note, facts={"results": results}
    )


def after_out_of_memory(job: Job) -> Iterator[Row]:
    """Trials in a process in which one ran out of memory, against trials in processes of their own."""
    config = _config(job)
    fresh = _fresh(config, job)
    if job.setting.device.type == "cuda":
        _run_out(job)
    after: list[Ending] = []
    while len(after) < job.setting.pick(_NUM_AFTER, 2) and job.seconds_left > _ENOUGH_SECONDS:
        after.append(_complete(train_trial(config, device=str(job.setting.device))))
    fresh += _fresh(config, job)
    for name, what, target in (
        ("peak_memory_bytes", "peak memory", PEAK_TARGET),
        ("step_seconds_median", "seconds of a step", TIME_TARGET),
    ):
        usual = median(ending.measurements[name] for ending in fresh)
        ratios = [ending.measurements[name] / usual for ending in after]
        # each peak, because bytes do not scatter; of times the middle one
        found = max(ratios, key=lambda ratio: abs(ratio - 1)) if target == PEAK_TARGET else median(ratios)
        yield Row(
            f"{what} after an out-of-memory over that of fresh processes",
            max(found, 1 / found),
            target,
            n=len(after),
            least_n=_NUM_AFTER,
            facts={"ratios": ratios, "fresh": [ending.measurements[name] for ending in fresh]},
        )


def _config(job: Job) -> TrialConfig:
    values: dict[str, Any] = {"model.name": "resnet18", "batch.micro": 256, "data.subset": 8192, "budget.epochs": 4}
    values |= {"precision.dtype": "bf16", "precision.channels_last": True}
    if job.setting.is_tiny:
        values = {"model.name": "resnet8", "batch.micro": 16, "data.subset": 64, "budget.epochs": 1}
    return build_config({"data.name": "synthetic", "optimizer.lr": 0.02, **values}, "benchmark")


def _fresh(config: TrialConfig, job: Job) -> list[Ending]:
    endings: list[Ending] = []
    with ProcessExecutor([str(job.setting.device)]) as executor:
        for number in range(job.setting.pick(_NUM_FRESH, 1)):
            executor.start(TrialTask(number=number, config=config, device=job.setting.device.type))
            endings.append(_ending(executor))
    return endings


def _ending(executor: ProcessExecutor) -> Ending:
    while True:
        for _, message in executor.poll(1.0):
            if isinstance(message, Ending):
                return _complete(message)


def _run_out(job: Job) -> None:
    # of the device's own memory, not of a share of it
    values = {"model.name": "vit_base", "data.name": "synthetic", "data.subset": 65_536, "batch.micro": 65_536}
    ending = train_trial(build_config(values | {"budget.steps": 1}, "benchmark"), device=str(job.setting.device))
    if ending.outcome != "out_of_memory":
        raise RuntimeError(f"a trial that cannot fit ended as {ending.outcome}: {ending.error}")
    torch.cuda.synchronize()
    time.sleep(0.1)


def _complete(ending: Ending) -> Ending:
    if ending.outcome != "complete":
        raise RuntimeError(f"the trial ended as {ending.outcome}: {ending.error}")
    return ending


MEASURES: dict[str, Measure] = {"tests": run_tests, "after_out_of_memory": after_out_of_memory}
