"""Real trials on an idle machine and beside busy processes: which times are in doubt, and what is recommended."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from sweep.analysis.comparable import select_comparable
from sweep.analysis.statistics import read_numbers
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import build_config
from sweep.executors.table import ExecutorSettings
from sweep.records.frames import Frames
from sweep.records.loading import load_frames
from sweep.records.messages import Progress
from sweep.records.quality import TIME_DOUBTS
from sweep.search.session import Options, open_session
from sweep.search.single import train_trial
from sweep.search.tuner import TrialAdvanced

NUM = 20  # trials of each kind
TRIAL_SECONDS = 5.0
MAX_LOAD = 10.0  # percent of the cores that others use on an idle machine
BASE: dict[str, Any] = {"data.name": "digits", "model.name": "resnet8", "batch.micro": 64, "budget.epochs": None}


@contextlib.contextmanager
def busy_processes() -> Iterator[None]:
    """Two busy processes for each core that this process may use. They are no children of it, as another user's
    are none, so that they count as others; each has a session of its own, because Linux shares the processors among
    sessions first, so that processes of one session together slow down others no more than a single one."""
    script = f"setsid {sys.executable} -c 'while True: pass' & echo $!"
    numbers = []
    for _ in range(2 * len(os.sched_getaffinity(0))):
        shell = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True)
        assert shell.stdout is not None
        numbers.append(int(shell.stdout.readline()))
        shell.stdout.close()
        shell.wait()
    try:
        yield
    finally:
        for number in numbers:
            os.kill(number, signal.SIGKILL)


def make_study(num_trials: int) -> StudySpec:
    """Trials of equal cost, of ``TRIAL_SECONDS``, which differ in the learning rate."""
    ending = train_trial(build_config({**BASE, "budget.seconds": 1.5}, "test"), device="cpu")
    base = {**BASE, "budget.steps": round(TRIAL_SECONDS / 1.5 * ending.measurements["num_steps"])}
    table = {"name": "busy", "trials": num_trials, "sampler": "random", "pruner": "none", "base": base}
    space = {"optimizer.lr": {"log": [1e-3, 1e-1]}}
    return build_study(table | {"space": space, "confirm": {"max_configurations": 0}}, "test")


def run_beside_others(spec: StudySpec, root: Path) -> Frames:
    """Runs the study; beside each trial of an odd number there are busy processes for half of its steps."""
    executor = ExecutorSettings(device="cpu")
    with open_session(spec, Options(root=root, executor=executor)) as session, contextlib.ExitStack() as others:
        disturbed = -1
        for event in session.run():
            if not isinstance(event, TrialAdvanced) or not isinstance(event.message, Progress):
                continue
            share = event.message.step / max(event.message.num_steps, 1)
            if event.number % 2 == 1 and share >= 0.25 and disturbed != event.number:
                disturbed = event.number
                others.enter_context(busy_processes())
            elif event.number == disturbed and share >= 0.75:
                others.close()
        return load_frames(session.folder)


def choose_trials(frames: Frames, numbers: Iterable[int]) -> Frames:
    """The records of the trials of these numbers alone."""
    return replace(frames, trials=frames.trials[frames.trials["number"].isin(list(numbers))])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_times_beside_busy_processes_are_in_doubt_and_change_no_recommended_time(tmp_path: Path) -> None:
    load = psutil.cpu_percent(interval=5.0)
    if load > MAX_LOAD:
        pytest.skip(f"an idle machine is required: other processes use {load:.0f} % of the cores")
    frames = run_beside_others(make_study(2 * NUM), tmp_path)
    columns = ["number", "train_seconds", "slowdown_by_others", "step_time_error", "quality_flags"]
    print(frames.trials[columns].to_string())
    is_doubtful = frames.trials["quality_flags"].map(lambda flags: not TIME_DOUBTS.isdisjoint(flags.split(",")))
    is_odd = frames.trials["number"] % 2 == 1
    assert (is_doubtful & ~is_odd).sum() <= NUM // 20
    assert (is_doubtful & is_odd).sum() >= NUM - NUM // 20
    idle = choose_trials(frames, range(0, 2 * NUM, 2))
    truth = float(np.exp(np.mean(np.log(read_numbers(idle.trials, "train_seconds")))))  # all trials are of equal cost
    half = choose_trials(frames, range(NUM))  # every second one was disturbed
    posterior = select_comparable(half).posterior("train_seconds")
    assert posterior.estimates == pytest.approx(truth, rel=0.05)
    stated = posterior.pooled_interval(0)  # what the answer states of a configuration that it names
    assert stated is not None
    assert stated.median == pytest.approx(truth, rel=0.05)
