"""What the pieces measure by whole trials and studies: the tests of the GPU paths, packed trials, the recipe, a study;
and the table of all measures."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.datasets import ARCHIVE, require_archive
from benchmarks.gpu.measures import SPEED_MEASURES, Job, Measure, bind_to_this_process
from benchmarks.gpu.recipe import answer_recipe, collect_trainings
from benchmarks.gpu.sheet import Found, Sample
from sweep.analysis.recommendation import as_document, recommend
from sweep.config.trial import build_config
from sweep.executors.devices import list_nvml_names
from sweep.executors.monitored import make_source
from sweep.executors.process import ProcessExecutor
from sweep.records.loading import load_frames
from sweep.records.messages import Ending, TrialTask
from sweep.training.data.folders import find_cache_folder

_REPOSITORY = Path(__file__).resolve().parents[2]
_RESULT = re.compile(r"^(?P<file>\S+\.py)::(?P<name>.+?) (?P<result>PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")
_PYTEST = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"


def _run_tests(job: Job) -> Iterator[Sample]:
    """The results of each file of ``tests/gpu``; files whose results are kept are not run again."""
    seen = {sample["file"] for sample in job.kept}
    files = sorted(path.relative_to(_REPOSITORY).as_posix() for path in (_REPOSITORY / "tests/gpu").glob("test_*.py"))
    for name in sorted(files, key=lambda name: "agreement" in name):  # the longest last
        if name not in seen:
            job.require()
            yield run_file(name)


def run_file(name: str) -> Sample:
    command = [*bind_to_this_process(_PYTEST), name, "-v", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    command += ["-o", "addopts=-ra", "-W", "ignore:This process:DeprecationWarning"]  # Python 3.12 on forked workers
    paths = [str(_REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(command, cwd=_REPOSITORY, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    print(done.stdout, file=sys.stderr)
    results = {match["name"]: match["result"] for match in map(_RESULT.match, done.stdout.splitlines()) if match}
    if not results and done.returncode == 2:  # the file could not even be read
        results = {"(the whole file)": "ERROR"}
    if not results:
        raise RuntimeError(f"{name}: pytest ran no test and ended with exit code {done.returncode}")
    return {"file": name, "results": results}


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


_TRIAL_SECONDS = 3.0  # of a trial that is alone
_AT_ONCE = (2, 4, 8, 16)


_PACKED = {"resnet8": 128, "vit_tiny": 128, "resnet18": 512}  # micro batch by model


def _collect_rates(job: Job) -> Iterator[Sample]:
    """Trials an hour of each kind: alone, then more and more at once, until more at once are slower. A kind that was
    cut short begins anew."""
    device = str(job.setting.device)
    ended = {sample["model"] for sample in job.kept if sample.get("is_end")}
    with ProcessExecutor([device]) as executor:
        for model in [name for name in _PACKED if name not in ended]:
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
                yield {"model": model, "at_once": count, "rate": rates[count]}
                if rates[count] < max(rates.values()):
                    break
            yield {"model": model, "is_end": True}


def _answer_rates(samples: Sequence[Sample]) -> dict[str, Found]:
    rows = {}
    for model in _PACKED:
        found = [sample for sample in samples if sample["model"] == model and "rate" in sample]
        rates = {sample["at_once"]: sample["rate"] for sample in found}
        if len(rates) < 2:
            rows[f"packed_{model}"] = Found(n=0)
            continue
        best = max(rates, key=lambda count: rates[count])
        rows[f"packed_{model}"] = Found(measured=rates[best] / rates[1], note=f"{best} at once", facts={"rates": rates})
    return rows


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
_LOOK_SECONDS = 0.5
_SEARCH_SHARE = 0.6  # of the time; the rest is for fresh seeds, without which nothing is named
_REPORT_SECONDS = 40.0  # for the last steps and the report
_READ_SECONDS = 20.0  # for reading what was recorded
_ROWS = ("study_trials", "study_minutes", "study_answer", "study_page", "study_busy", "study_training")


def _run_study(job: Job) -> Iterator[Sample]:
    """``sweep run cifar10_resnet`` with real images, two passes over them a trial, its answer and its page, which is
    copied to ``job.page``. A study that was cut short begins anew."""
    name = "quickstart" if job.setting.is_tiny else "cifar10_resnet"
    with tempfile.TemporaryDirectory() as root:
        command = _make_command(name, root, job)
        print(" ".join(command), flush=True)
        began = time.monotonic()
        with _watched(str(job.setting.device)) as looks, subprocess.Popen(command) as process:
            try:
                process.wait(timeout=max(1.0, job.seconds_left - _READ_SECONDS))
            except subprocess.TimeoutExpired:  # as by Ctrl-C
                process.send_signal(signal.SIGINT)
                process.wait()
        code = process.returncode
        seconds = time.monotonic() - began
        folder = Path(root) / name
        if not (folder / "study.sqlite").is_file():
            raise RuntimeError(f"sweep run ended with exit code {code} and no records")
        page = folder / "report.html"
        if page.is_file() and job.page:
            shutil.copy(page, job.page)
        found = {"study": name, "seconds": seconds, "exit_code": code, "looks": looks}
        yield {**found, **_read_study(folder), "page_bytes": page.stat().st_size if page.is_file() else 0}


def _answer_study(samples: Sequence[Sample]) -> dict[str, Found]:
    if not samples:
        return {name: Found(n=0) for name in _ROWS}
    last = samples[-1]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in last["outcomes"].items())
    note = f"{last['study']}, exit code {last['exit_code']}; {outcomes}"
    looks, training = last["looks"], last["training_utilization"]
    return {
        "study_trials": Found(measured=last["num_search"], note=note),
        "study_minutes": Found(measured=last["seconds"] / 60, note=f"{last['trial_seconds'] / 60:.3g} in trials"),
        "study_answer": Found(measured=len(last["uses"]), note=", ".join(last["uses"])),
        "study_page": Found(measured=int(last["page_bytes"] > 0), note=f"{last['page_bytes'] / 1e6:.1f} MB"),
        "study_busy": Found(measured=mean(looks) if looks else None, n=len(looks)),
        "study_training": Found(measured=median(training) if training else None, n=len(training)),
    }


def _read_study(folder: Path) -> Sample:
    trials = load_frames(folder).trials
    uses = [use for use, found in as_document(recommend(folder))["uses"].items() if found.get("config")]
    return {
        "outcomes": {str(outcome): int(count) for outcome, count in trials["outcome"].value_counts().items()},
        "num_search": int((trials["phase"] == "search").sum()), "trial_seconds": float(trials["total_seconds"].sum()),
        "training_utilization": [float(value) for value in trials["gpu_utilization"].dropna()], "uses": uses,
    }  # fmt: skip


def _make_command(name: str, root: str, job: Job) -> list[str]:
    timeout = max(30, int(job.seconds_left - _REPORT_SECONDS))
    values: dict[str, object] = {"budget.epochs": 2, "search_timeout": f"{int(_SEARCH_SHARE * timeout)}s"}
    if job.setting.is_tiny:
        values |= {"data.subset": 100, "confirm.share": 100, "confirm.seeds": 3}
    else:
        values |= {"data.name": "imagefolder", "data.root": images_folder(), "confirm.share": 1.0}
    command = [*bind_to_this_process(_SWEEP), "run", name, "--root", root, "--json", "--timeout", f"{timeout}s"]
    command += ["--on", str(job.setting.device), "--trials", str(job.setting.pick(_NUM_TRIALS, 3))]
    return [*command, *(part for key, value in values.items() for part in ("--set", f"{key}={value}"))]


@contextmanager
def _watched(device: str) -> Iterator[list[float]]:
    """Shares of the time in which the device did anything; none where it does not say."""
    looks: list[float] = []
    ended = threading.Event()

    def look_on(read: Callable[[], Any]) -> None:
        while not ended.wait(_LOOK_SECONDS):
            value = read().utilization
            if value is not None:
                looks.append(value)

    source = make_source(list_nvml_names(device)[0])
    watcher = threading.Thread(target=look_on, args=(source.read,), daemon=True)
    watcher.start()
    try:
        yield looks
    finally:
        ended.set()
        watcher.join(timeout=5.0)
        source.close()


MEASURES = SPEED_MEASURES | {
    "tests": Measure(_run_tests, count_failed), "recipe": Measure(collect_trainings, answer_recipe),
    "packed": Measure(_collect_rates, _answer_rates), "study": Measure(_run_study, _answer_study),
}  # fmt: skip
