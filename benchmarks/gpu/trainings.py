"""What the pieces measure by whole trials and studies: the tests of the GPU paths, packed trials, the recipe, a study;
and the table of all measures."""

import contextlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.datasets import ARCHIVE, require_archive
from benchmarks.gpu.measures import SPEED_MEASURES, Job, Measure
from benchmarks.gpu.recipe import measure_recipe
from benchmarks.gpu.sheet import Found, Rows
from sweep.analysis.recommendation import as_document, recommend
from sweep.config.trial import build_config
from sweep.executors.devices import list_nvml_names
from sweep.executors.monitored import make_source
from sweep.executors.process import ProcessExecutor
from sweep.measurement.monitor import Monitor
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, TrialTask
from sweep.training.data.cache import find_cache_folder

_REPOSITORY = Path(__file__).resolve().parents[2]
_RESULT = re.compile(r"^(?:\S+/)?(\S+\.py::.+?) (PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")


def _run_tests(job: Job) -> Iterator[Rows]:
    """The results of each file of ``tests/gpu``."""
    results: dict[str, str] = {}
    files = sorted(path.relative_to(_REPOSITORY).as_posix() for path in (_REPOSITORY / "tests/gpu").glob("test_*.py"))
    for name in sorted(files, key=lambda name: "agreement" in name):  # the longest last
        job.require()
        results |= _run_file(name)
        yield count_failed(results)


def _run_file(name: str) -> dict[str, str]:
    command = [sys.executable, "-m", "pytest", name, "-v", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-o", "addopts=-ra", "-W", "ignore:This process:DeprecationWarning"]  # Python 3.12 on forked workers
    done = subprocess.run(command, cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout, file=sys.stderr)
    results = {match[1]: match[2] for match in map(_RESULT.match, done.stdout.splitlines()) if match}
    return results or {f"{name}, exit code {done.returncode} without a result": "ERROR"}


def count_failed(results: Mapping[str, str]) -> dict[str, Found]:
    """How many tests failed, with their names; nothing is measured where every test was skipped."""
    failed = [name for name, result in results.items() if result in ("FAILED", "ERROR")]
    counts = Counter(results.values())
    note = ", ".join(f"{number} {result.lower()}" for result, number in sorted(counts.items()))
    note += f": {' '.join(failed)}" if failed else ""
    is_measured = failed or counts["PASSED"]
    return {"tests": Found(measured=len(failed) if is_measured else None, n=len(results), note=note)}


_TRIAL_SECONDS = 3.0  # of a trial that is alone
_AT_ONCE = (2, 4, 8, 16)
_PACKED = {"resnet8": 128, "vit_tiny": 128, "resnet18": 512}  # micro batch by model


def _measure_packed(job: Job) -> Iterator[Rows]:
    """Trials an hour of each kind: alone, then more and more at once, until more at once are slower."""
    device, rows = str(job.setting.device), {f"packed_{model}": Found(n=0) for model in _PACKED}
    with ProcessExecutor([device]) as executor:
        for model in _PACKED:
            task = _calibrated(executor, model, job)
            rates: dict[int, float] = {}
            for count in (1, *_AT_ONCE[: job.setting.pick(len(_AT_ONCE), 1)]):
                job.require()
                if count > 1:
                    executor.divide(count)
                num_trials = max(count, job.setting.pick(3, 1))  # one alone is measured by several in turn
                began = time.monotonic()
                _endings(executor, [replace(task, number=number) for number in range(num_trials)])
                rates[count] = 3600.0 * num_trials / (time.monotonic() - began)
                executor.divide(1)
                rows[f"packed_{model}"] = compare_rates(rates)
                yield rows
                if rates[count] < max(rates.values()):
                    break


def compare_rates(rates: Mapping[int, float]) -> Found:
    """The best of the ``rates`` by how many ran at once, over that of one at a time."""
    if len(rates) < 2:
        return Found(n=0)
    best = max(rates, key=lambda count: rates[count])
    return Found(measured=rates[best] / rates[1], note=f"{best} at once", facts={"rates": dict(rates)})


def _endings(executor: ProcessExecutor, tasks: list[TrialTask]) -> list[Ending]:
    left, running, found = list(tasks), set[int](), dict[int, Ending]()
    while left or running:
        while left and len(running) < executor.slots:
            running.add(left[0].number)
            executor.start(left.pop(0))
        for number, said in executor.poll(1.0):
            if isinstance(said, Ending):
                running.discard(number)
                found[number] = said
    failed = [ending for ending in found.values() if ending.outcome != "complete"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(tasks)} trials ended as {failed[0].outcome}: {failed[0].error}")
    return [found[task.number] for task in tasks]


def _calibrated(executor: ProcessExecutor, model: str, job: Job) -> TrialTask:
    """As many steps as one trial alone takes in ``_TRIAL_SECONDS``."""
    values: dict[str, Any] = {
        "model.name": model, "data.name": "synthetic", "data.subset": job.setting.pick(8192, 100),
        "batch.micro": job.setting.pick(_PACKED[model], 8), "precision.dtype": "bf16",
        "precision.channels_last": model.startswith("resnet"), "budget.steps": job.setting.pick(200, 2),
    }  # fmt: skip
    task = TrialTask(number=0, config=build_config(values, "benchmark"))
    if job.setting.is_tiny:
        return task
    (ending,) = _endings(executor, [task])
    steps = max(1, round(200 * _TRIAL_SECONDS / ending.measurements["train_seconds"]))
    return replace(task, config=build_config({**values, "budget.steps": steps}, "benchmark"))


def images_folder(archive: Path = ARCHIVE) -> Path:
    """The images of the archive as a folder for ``data.name = "imagefolder"``; unpacked once."""
    place = find_cache_folder() / f"{require_archive(archive).name.partition('.')[0]}-{archive.stat().st_size}"
    if not place.is_dir():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as beside, tarfile.open(archive, "r|*") as files:
            files.extractall(beside, filter="data")
            (only,) = Path(beside).iterdir()
            only.rename(place)
    return place


_NUM_TRIALS = 60
_SWEEP = "from sweep.cli import main; main()"  # the command, wherever it is installed
_SEARCH_SHARE = 0.6  # of the time; the rest is for fresh seeds, without which nothing is named
_REPORT_SECONDS = 40.0  # for the last steps and the report
_READ_SECONDS = 20.0  # for reading what was recorded


def _run_study(job: Job) -> Iterator[Rows]:
    """``sweep run cifar10_resnet`` with real images, two passes over them a trial, its answer and its page, which is
    copied to ``job.page``."""
    name = "quickstart" if job.setting.is_tiny else "cifar10_resnet"
    with tempfile.TemporaryDirectory() as root:
        command = _make_command(name, root, job)
        print(" ".join(command), flush=True)
        monitor, began = Monitor(make_source), time.perf_counter()
        monitor.begin(0, list_nvml_names(str(job.setting.device))[:1])
        with contextlib.closing(monitor), subprocess.Popen(command) as process:
            try:
                process.wait(timeout=max(1.0, job.seconds_left - _READ_SECONDS))
            except subprocess.TimeoutExpired:  # as by Ctrl-C
                process.send_signal(signal.SIGINT)
                process.wait()
            ended = time.perf_counter()
            busy = monitor.end(0, [(began, ended)]).measurements.get("gpu_utilization")
        folder = Path(root) / name
        if not (folder / "study.sqlite").is_file():
            raise RuntimeError(f"sweep run ended with exit code {process.returncode} and no records")
        page = folder / "report.html"
        if page.is_file() and job.page:
            shutil.copy(page, job.page)
        page_bytes = page.stat().st_size if page.is_file() else 0
        trials = load_frames(folder).trials
        uses = [use for use, found in as_document(recommend(folder))["uses"].items() if found.get("config")]
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in trials["outcome"].value_counts().items())
        training = trials["gpu_utilization"].dropna().astype(float).tolist()
        seconds_in_trials = float(trials["total_seconds"].sum())
        yield {
            "study_trials": Found(
                measured=int((trials["phase"] == "search").sum()),
                note=f"{name}, exit code {process.returncode}; {outcomes}",
            ),
            "study_minutes": Found(measured=(ended - began) / 60, note=f"{seconds_in_trials / 60:.3g} in trials"),
            "study_answer": Found(measured=len(uses), note=", ".join(uses)),
            "study_page": Found(measured=int(page_bytes > 0), note=f"{page_bytes / 1e6:.1f} MB"),
            "study_busy": Found(measured=busy),
            "study_training": Found(measured=median(training) if training else None, n=len(training)),
        }


def _make_command(name: str, root: str, job: Job) -> list[str]:
    timeout = max(30, int(job.seconds_left - _REPORT_SECONDS))
    values: dict[str, object] = {"budget.epochs": 2, "search_timeout": f"{int(_SEARCH_SHARE * timeout)}s"}
    if job.setting.is_tiny:
        values |= {"data.subset": 100, "confirm.share": 100, "confirm.seeds": 3}
    else:
        values |= {"data.name": "imagefolder", "data.root": images_folder(), "confirm.share": 1.0}
    command = [sys.executable, "-c", _SWEEP, "run", name, "--root", root, "--json", "--timeout", f"{timeout}s"]
    command += ["--on", str(job.setting.device), "--trials", str(job.setting.pick(_NUM_TRIALS, 3))]
    return [*command, *(part for key, value in values.items() for part in ("--set", f"{key}={value}"))]


MEASURES: dict[str, Measure] = SPEED_MEASURES | {
    "tests": _run_tests, "recipe": measure_recipe, "packed": _measure_packed, "study": _run_study,
}  # fmt: skip
