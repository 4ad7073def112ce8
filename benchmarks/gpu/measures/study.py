"""A study on a GPU as its user runs it: what it finds, what it costs, its page, and how busy it keeps the device."""

import json
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.gpu.found import Found, Job, Measure, Sample, bind_to_this_process
from benchmarks.gpu.measures.cifar import images_folder
from sweep.analysis.recommendation import as_document, recommend
from sweep.executors.devices import list_nvml_names
from sweep.executors.monitored import make_source
from sweep.records.frames.frames import load_frames

NUM_TRIALS = 60
_SWEEP = "from sweep.cli import main; main()"  # the command, wherever it is installed
_LOOK_SECONDS = 0.5
_SEARCH_SHARE = 0.6  # of the time; the rest is for fresh seeds, without which nothing is named
_REPORT_SECONDS = 40.0  # for the last steps and the report
_READ_SECONDS = 20.0  # for reading what was recorded
_ROWS = ("study_trials", "study_minutes", "study_answer", "study_page", "study_busy", "study_training")


def run_study(job: Job) -> Iterator[Sample]:
    """``sweep run cifar10_resnet`` with real images, two passes over them a trial, its answer and its page, which is
    copied to ``job.page``. A study that was cut short begins anew."""
    name = "quickstart" if job.setting.is_tiny else "cifar10_resnet"
    with tempfile.TemporaryDirectory() as root:
        command = _command(name, root, job)
        print(" ".join(command), flush=True)
        began = time.monotonic()
        with _watched(str(job.setting.device)) as looks:
            code = _run(command, job)
        seconds = time.monotonic() - began
        folder = Path(root) / name
        if not (folder / "study.sqlite").is_file():
            raise RuntimeError(f"sweep run ended with exit code {code} and no records")
        page = folder / "report.html"
        if page.is_file() and job.page:
            shutil.copy(page, job.page)
        found = {"study": name, "seconds": seconds, "exit_code": code, "looks": looks}
        yield {**found, **_read(folder), "page_bytes": page.stat().st_size if page.is_file() else 0}


def answer(samples: Sequence[Sample]) -> dict[str, Found]:
    """What the last study came to."""
    if not samples:
        return {name: Found(n=0) for name in _ROWS}
    last = samples[-1]
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in last["outcomes"].items())
    note = f"{last['study']}, exit code {last['exit_code']}; {outcomes}"
    uses = [use for use, found in last["answer"]["uses"].items() if found.get("config")]
    looks, training = last["looks"], last["training_utilization"]
    return {
        "study_trials": Found(measured=last["num_search"], note=note),
        "study_minutes": Found(measured=last["seconds"] / 60, note=f"{last['trial_seconds'] / 60:.3g} in trials"),
        "study_answer": Found(measured=len(uses), note=", ".join(uses)),
        "study_page": Found(measured=int(last["page_bytes"] > 0), note=f"{last['page_bytes'] / 1e6:.1f} MB"),
        "study_busy": Found(measured=mean(looks) if looks else None, n=len(looks)),
        "study_training": Found(measured=median(training) if training else None, n=len(training)),
    }


def _run(command: list[str], job: Job) -> int:
    """The exit code; the command is interrupted, as by Ctrl-C, when the time of the piece is over."""
    with subprocess.Popen(command) as process:
        try:
            process.wait(timeout=max(1.0, job.seconds_left - _READ_SECONDS))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
    return process.returncode


def _read(folder: Path) -> Sample:
    trials = load_frames(folder).trials
    return {
        "outcomes": {str(outcome): int(count) for outcome, count in trials["outcome"].value_counts().items()},
        "num_search": int((trials["phase"] == "search").sum()),
        "trial_seconds": float(trials["total_seconds"].sum()),
        "training_utilization": [float(value) for value in trials["gpu_utilization"].dropna()],
        "answer": _plain(as_document(recommend(folder)), folder.parent),
    }


def _command(name: str, root: str, job: Job) -> list[str]:
    timeout = max(30, int(job.seconds_left - _REPORT_SECONDS))
    values: dict[str, object] = {"budget.epochs": 2, "search_timeout": f"{int(_SEARCH_SHARE * timeout)}s"}
    if job.setting.is_tiny:
        values |= {"data.subset": 100, "confirm.share": 100, "confirm.seeds": 3}
    else:
        values |= {"data.name": "imagefolder", "data.root": images_folder(), "confirm.share": 1.0}
    command = [*bind_to_this_process(_SWEEP), "run", name, "--root", root, "--json", "--timeout", f"{timeout}s"]
    command += ["--device", str(job.setting.device), "--trials", str(job.setting.pick(NUM_TRIALS, 3))]
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


def _plain(document: dict[str, Any], root: Path) -> Any:
    # numbers that JSON does not know become null; the temporary folder is named as a user's would be
    text = json.dumps(document, default=str).replace(str(root), "runs")
    return json.loads(text, parse_constant=lambda _name: None)


MEASURES = {"study": Measure(run_study, answer)}
