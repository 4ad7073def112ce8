"""A study on a GPU as its user runs it: what it finds, what it costs, and how busy it keeps the device."""

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.gpu_cifar import images_folder
from benchmarks.gpu_part import Job, Measure
from benchmarks.gpu_sheet import Row
from sweep.analysis.answer.recommend import as_document, recommend
from sweep.executors.monitored import make_source
from sweep.records.frames.frames import load_frames

NUM_TRIALS = 60
_SWEEP = "from sweep.cli import main; main()"  # the command, wherever it is installed
_LOOK_SECONDS = 0.5
_REPORT_SECONDS = 40.0  # for the last steps and the report
_READ_SECONDS = 20.0  # for reading what was recorded


def study(job: Job) -> Iterator[Row]:
    """``sweep run cifar10_resnet`` with real images, two passes over them a trial, and its answer."""
    name = "quickstart" if job.setting.is_tiny else "cifar10_resnet"
    with tempfile.TemporaryDirectory() as root:
        command = _command(name, root, job)
        print(" ".join(command), flush=True)
        began = time.monotonic()
        with _watched(str(job.setting.device)) as looks:
            code, output = _run(command, job)
        seconds = time.monotonic() - began
        if not (Path(root) / name / "study.sqlite").is_file():
            raise RuntimeError(f"sweep run ended with exit code {code} and no records")
        yield from rows(Path(root) / name, seconds, looks, code, output)


def _run(command: list[str], job: Job) -> tuple[int, str]:
    """Exit code and what stood on standard output; asked to leave, as by Ctrl-C, when the time of the part is over."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            output, _ = process.communicate(timeout=max(1.0, job.seconds_left - _READ_SECONDS))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            output, _ = process.communicate()
    return process.returncode, output


def rows(folder: Path, seconds: float, looks: list[float], code: int, output: str) -> Iterator[Row]:
    """What the records in ``folder`` and the looks at the device say."""
    name, trials = folder.name, load_frames(folder).trials
    search = trials[trials["phase"] == "search"]
    summary = json.loads(output) if code == 0 else {}
    outcomes = {str(outcome): int(count) for outcome, count in trials["outcome"].value_counts().items()}
    note = f"exit code {code}; {', '.join(f'{count} {outcome}' for outcome, count in outcomes.items())}"
    yield Row(f"{name}: search trials", len(search), NUM_TRIALS, "higher", note=note, facts={"summary": summary})
    yield Row(f"{name}: minutes from command to report", seconds / 60, facts={"trials": len(trials)})
    yield Row(f"{name}: hours of the device in trials", float(trials["total_seconds"].sum()) / 3600, n=len(trials))
    yield Row(
        f"{name}: mean utilisation of the device over the whole study",
        mean(looks) if looks else None,
        n=len(looks),
        note="" if looks else "the device does not say",
    )
    while_training = [float(value) for value in trials["gpu_utilization"].dropna()]
    yield Row(
        f"{name}: median utilisation while a trial trains",
        median(while_training) if while_training else None,
        n=len(while_training),
    )
    answer = as_document(recommend(folder))
    chosen = {use: found for use, found in answer["uses"].items() if found.get("config")}
    yield Row(f"{name}: uses with an answer", len(chosen), facts={"answer": _plain(answer)})


def _command(name: str, root: str, job: Job) -> list[str]:
    values = {"budget.epochs": 2}
    if job.setting.is_tiny:
        values |= {"data.subset": 100}
        more = ["--trials", "2", "--set", "confirm.seeds=0"]
    else:
        more = ["--trials", str(NUM_TRIALS), "--set", "data.name=imagefolder", "--set", f"data.root={images_folder()}"]
    for key, value in values.items():
        more += ["--set", f"{key}={value}"]
    timeout = max(30, int(job.seconds_left - _REPORT_SECONDS))
    command = [sys.executable, "-c", _SWEEP, "run", name, "--root", root, "--json", "--timeout", f"{timeout}s"]
    return [*command, "--device", str(job.setting.device), *more]


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

    source = make_source(device)
    watcher = threading.Thread(target=look_on, args=(source.read,), daemon=True)
    watcher.start()
    try:
        yield looks
    finally:
        ended.set()
        watcher.join(timeout=5.0)
        source.close()


def _plain(document: dict[str, Any]) -> Any:
    # numbers that JSON does not know become null
    return json.loads(json.dumps(document, default=str), parse_constant=lambda _name: None)


MEASURES: dict[str, Measure] = {"study": study}
