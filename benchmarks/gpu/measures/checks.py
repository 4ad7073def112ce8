"""The checks of a GPU: the tests of ``tests/gpu``, and whether an out-of-memory leaves later trials what they are."""

import os
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.gpu.found import Found, Job, Measure, Sample, bind_to_this_process
from sweep.config.trial_config import TrialConfig, build_config
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.records.messages import Ending, TrialTask
from sweep.search.loop.single_trial import train_trial

ROOT = Path(__file__).resolve().parents[3]
_RESULT = re.compile(r"^(?P<file>\S+\.py)::(?P<name>.+?) (?P<result>PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")
_BROKEN = re.compile(r"^(?:ERROR|FAILED) (?P<file>\S+\.py)(?: - (?P<why>.*))?$")  # of a file that was not even read
_PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
_NUM_AFTER = 30
_NUM_FRESH = 3  # before, and as many after


# ---------------------------------------------------------------------- tests


def run_tests(job: Job) -> Iterator[Sample]:
    """The results of each file of ``tests/gpu``; files whose results are kept are not run again."""
    seen = {sample["file"] for sample in job.kept}
    files = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "tests/gpu").glob("test_*.py"))
    files.sort(key=lambda name: "agreement" in name)  # the longest last: a file that is cut short begins anew
    if left := [name for name in files if name not in seen]:
        yield from run_files(left)


def run_files(files: list[str]) -> Iterator[Sample]:
    """A sample for each file that pytest runs, as soon as the file is through.

    Raises:
        RuntimeError: no test was run.
    """
    command = [*bind_to_this_process(_PYTEST), *files, "-v", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    command += ["--continue-on-collection-errors", "-o", "addopts=-ra"]
    command += ["-W", "ignore:This process:DeprecationWarning"]  # Python 3.12 on workers that are forked
    results: dict[str, dict[str, str]] = defaultdict(dict)
    told: set[str] = set()
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env=_environment()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", file=sys.stderr)
            if match := _RESULT.match(line):
                for name in results.keys() - told - {match["file"]}:
                    yield {"file": name, "results": results[name]}
                told |= results.keys() - {match["file"]}
                results[match["file"]][match["name"]] = match["result"]
            elif (match := _BROKEN.match(line)) and match["file"] not in results:
                results[match["file"]]["(the whole file)"] = f"FAILED {match['why'] or ''}"
    for name in results.keys() - told:
        yield {"file": name, "results": results[name]}
    if not results:
        raise RuntimeError(f"pytest ran no test and ended with exit code {process.returncode}")


def count_failed(samples: Sequence[Sample]) -> dict[str, Found]:
    """How many tests failed, with their names; nothing is measured where every test was skipped."""
    results = [(each["file"], *pair) for each in samples for pair in each["results"].items()]
    failed = [f"{Path(file).name}::{name}" for file, name, result in results if result.startswith(("FAILED", "ERROR"))]
    counts = Counter(result.partition(" ")[0].lower() for _, _, result in results)
    note = ", ".join(f"{number} {result}" for result, number in sorted(counts.items()))
    note += f": {' '.join(failed)}" if failed else ""
    if not failed and not counts["passed"]:
        return {"tests": Found(n=0, note=note)}
    return {"tests": Found(measured=len(failed), n=len(results), note=note)}


def _environment() -> dict[str, str]:
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


# ---------------------------------------------------------------------- after an out-of-memory


def run_after_out_of_memory(job: Job) -> Iterator[Sample]:
    """Trials in a process in which one ran out of memory, between trials in processes of their own."""
    config = _config(job)
    yield from _run_fresh(config, job)
    if job.setting.device.type == "cuda":
        _run_out(job)
    num_kept = sum(sample["is_after"] for sample in job.kept)
    for _ in range(job.setting.pick(_NUM_AFTER, 2) - num_kept):
        job.require()
        yield _describe(train_trial(config, device=str(job.setting.device)), is_after=True)
    yield from _run_fresh(config, job)


def compare_with_fresh(samples: Sequence[Sample]) -> dict[str, Found]:
    """Each figure over the median of fresh processes: of bytes the one farthest from 1, because bytes do not scatter;
    of times the median. A ratio below 1 is turned round."""
    rows = {}
    for name, key in (("oom_peak", "peak_memory_bytes"), ("oom_step", "step_seconds_median")):
        fresh = [sample[key] for sample in samples if not sample["is_after"]]
        ratios = [sample[key] / median(fresh) for sample in samples if sample["is_after"]]
        if not ratios:
            rows[name] = Found(n=0)
            continue
        found = max(ratios, key=lambda ratio: abs(ratio - 1)) if name == "oom_peak" else median(ratios)
        rows[name] = Found(measured=max(found, 1 / found), n=len(ratios))
    return rows


def _config(job: Job) -> TrialConfig:
    values: dict[str, Any] = {"model.name": "resnet18", "batch.micro": 256, "data.subset": 8192, "budget.epochs": 4}
    values |= {"precision.dtype": "bf16", "precision.channels_last": True}
    if job.setting.is_tiny:
        values = {"model.name": "resnet8", "batch.micro": 16, "data.subset": 64, "budget.epochs": 1}
    return build_config({"data.name": "synthetic", "optimizer.lr": 0.02, **values}, "benchmark")


def _run_fresh(config: TrialConfig, job: Job) -> Iterator[Sample]:
    with ProcessExecutor([str(job.setting.device)]) as executor:
        for number in range(job.setting.pick(_NUM_FRESH, 1)):
            executor.start(TrialTask(number=number, config=config, device=job.setting.device.type))
            yield _describe(_await_ending(executor), is_after=False)


def _await_ending(executor: ProcessExecutor) -> Ending:
    while True:
        for _, message in executor.poll(1.0):
            if isinstance(message, Ending):
                return message


def _run_out(job: Job) -> None:
    # of the device's own memory, not of a share of it
    values = {"model.name": "vit_base", "data.name": "synthetic", "data.subset": 65_536, "batch.micro": 65_536}
    ending = train_trial(build_config(values | {"budget.steps": 1}, "benchmark"), device=str(job.setting.device))
    if ending.outcome != "out_of_memory":
        raise RuntimeError(f"a trial that cannot fit ended as {ending.outcome}: {ending.error}")
    torch.cuda.synchronize()
    time.sleep(0.1)


def _describe(ending: Ending, *, is_after: bool) -> Sample:
    if ending.outcome != "complete":
        raise RuntimeError(f"the trial ended as {ending.outcome}: {ending.error}")
    keys = ("peak_memory_bytes", "step_seconds_median")
    return {"is_after": is_after, **{key: ending.measurements[key] for key in keys}}


MEASURES = {
    "tests": Measure(run_tests, count_failed),
    "out_of_memory": Measure(run_after_out_of_memory, compare_with_fresh),
}
