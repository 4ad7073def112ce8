"""What the observer costs a script: its step, the whole script as a trial, and a training by this project's loop and as
a script."""

import atexit
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

from benchmarks.harness import CPU, Arms, ArmsDifferError, Setting, benchmark, median_interval
from benchmarks.speed import DIGITS, LR, train
from sweep.config.study_file import load_study
from sweep.config.trial import build_config
from sweep.measurement.device import make_synchronizer
from sweep.records.messages import Ending, Evaluation, ScriptCommand, TrialTask
from sweep.script.channel import Channel, describe_script_trial
from sweep.script.observer import Observer
from sweep.script.runner import run_script
from sweep.script.watch import observe_torch

# ---------------------------------------------------------------------- a step


@benchmark(
    "script_overhead", "seconds of a step of an observed script over one that is not (plain PyTorch, 1 to 2 ms)",
    "seconds", "lower", 1.01, num_pairs=41,
)  # fmt: skip
def script_overhead(setting: Setting) -> Iterator[Arms]:
    """Both arms are the loop of a script in this process; in one of them torch is as it was before it was observed.
    The facts have the difference of steps that do nearly nothing, which tells the microseconds of a step."""
    # on a CPU its time for this process, which what others do changes less
    num_steps, clock = setting.pick(150, 10), time.process_time if setting.device.type == "cpu" else time.perf_counter
    usual, bare = _make_loop(setting, 512, 64), _make_loop(setting, 2, 4)
    with _observed() as switch:

        def seconds(loop: Callable[[int], None], is_observed: bool) -> float:
            switch(is_observed)
            loop(5)
            began = clock()
            loop(num_steps)
            return (clock() - began) / num_steps

        def check() -> dict[str, Any]:
            pairs = [(seconds(bare, True), seconds(bare, False)) for _ in range(setting.pick(41, 2))]
            return {"microseconds_a_step": 1e6 * median(one - other for one, other in pairs)}

        about = {"steps": num_steps, "samples_a_step": 64}
        yield Arms(lambda _: seconds(usual, True), lambda _: seconds(usual, False), check, about)


def _make_loop(setting: Setting, width: int, batch: int) -> Callable[[int], None]:
    model: nn.Module = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10)).to(setting.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    data = [(torch.randn(width), 0)] * (batch * 1000)
    loader: DataLoader[Any] = DataLoader(data, batch)  # type: ignore[arg-type]
    wait = make_synchronizer(setting.device)

    def loop(num_steps: int) -> None:
        for _, (inputs, labels) in zip(range(num_steps), loader, strict=False):
            optimizer.zero_grad()
            torch.autograd.backward(cross_entropy(model(inputs.to(setting.device)), labels.to(setting.device)))
            optimizer.step()
        wait()

    return loop


@contextmanager
def _observed() -> Iterator[Callable[[bool], None]]:
    # turns the observation of this process on and off, by what observing replaces in torch
    hooks: Any = importlib.import_module("torch.optim.optimizer")
    tables = hooks._global_optimizer_pre_hooks, hooks._global_optimizer_post_hooks
    told = describe_script_trial("/nobody/listens", {}, "val_loss", "")
    observer, before = Observer(Channel(json.loads(told))), [dict(table) for table in tables]
    replaced = observe_torch(torch, observer)
    observing = [dict(table) for table in tables]

    def switch(is_observed: bool) -> None:
        observer.pause()
        for owner, name, original, stand_in in replaced:
            setattr(owner, name, stand_in if is_observed else original)
        for table, kept in zip(tables, observing if is_observed else before, strict=True):
            table.clear()
            table.update(kept)

    try:
        yield switch
    finally:
        switch(False)
        atexit.unregister(observer.end)


# ---------------------------------------------------------------------- a script, alone and as a trial

# The script with other values than its defaults.
_ALONE = """
import runpy, sweep
of_defaults = sweep.trial
sweep.trial = lambda **defaults: of_defaults(**defaults | {values})
runpy.run_path("gpt_micro.py", run_name="__main__")
"""


class _ScriptRun(NamedTuple):
    """What a run of the whole program took: seconds of the wall clock, of those the ones between its first and its last
    evaluation, and seconds of processors; and its losses."""

    seconds: float
    loop_seconds: float
    processor_seconds: float
    losses: list[float]


@benchmark(
    "script_trial", "seconds of a script as a trial over the same script alone (gpt_micro.py, one thread)",
    "seconds", "lower", 1.02, num_pairs=11,
)  # fmt: skip
def script_trial(setting: Setting) -> Iterator[Arms]:
    """Both arms are the whole program, with the start of Python. The facts have the ratios of the seconds between its
    first and its last evaluation, and of the processors' seconds, which what others do changes less."""
    spec = load_study("gpt_micro", {"script.tokens": setting.pick(600_000, 20_000)})
    config = spec.config({"batch.micro": 32, "optimizer.lr": 3e-3})
    command = ScriptCommand(**spec.command(config, ""))
    task = TrialTask(number=0, config=config, device="cpu", script=command, threads=1)
    runs: dict[str, list[_ScriptRun]] = {"ours": [], "theirs": []}

    def as_trial() -> Iterator[float]:
        for message in run_script(task):
            if isinstance(message, Evaluation):
                yield message.val_loss
            elif isinstance(message, Ending) and message.outcome != "complete":
                raise ArmsDifferError(f"the trial ended as {message.outcome}: {message.error}")

    def alone() -> Iterator[float]:
        code = _ALONE.format(values={"tokens": spec.base["script.tokens"]})
        usual = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(
            [sys.executable, "-c", code], cwd=command.folder, env=usual, stdout=subprocess.PIPE, text=True
        ) as process:
            for line in process.stdout or ():
                yield float(line.split()[4])

    def seconds(name: str, run: Callable[[], Iterator[float]]) -> float:
        runs[name].append(_time_script(run()))
        return runs[name][-1].seconds

    def check() -> dict[str, Any]:
        pairs = list(zip(runs["ours"], runs["theirs"], strict=True))
        if not all(np.allclose(ours.losses, theirs.losses, atol=1e-4) for ours, theirs in pairs):
            raise ArmsDifferError(f"the losses differ: {pairs[0]}")
        usual = pairs[1:]  # without the warm-up
        loop = [ours.loop_seconds / theirs.loop_seconds for ours, theirs in usual]
        processor = [ours.processor_seconds / theirs.processor_seconds for ours, theirs in usual]
        ratios = {"loop": median_interval(loop), "processor": median_interval(processor)}
        return {f"ratio_of_{name}_seconds": ratio._asdict() for name, ratio in ratios.items()}

    about = {"tokens": spec.base["script.tokens"], "batch": 32, "threads": 1}
    yield Arms(lambda _: seconds("ours", as_trial), lambda _: seconds("theirs", alone), check, about)


def _time_script(losses: Iterator[float]) -> _ScriptRun:
    began, busy = time.perf_counter(), sum(os.times()[:4])
    seen = [(loss, time.perf_counter()) for loss in losses]
    ended = time.perf_counter()
    return _ScriptRun(ended - began, seen[-1][1] - seen[0][1], sum(os.times()[:4]) - busy, [loss for loss, _ in seen])


# ---------------------------------------------------------------------- a training by our loop and as a script

_SCRIPT = """
import torch

import sweep
from benchmarks.speed import hand_loop, material

trial = sweep.trial()
shared = material({values!r}, torch.device("cpu"))
hand_loop(shared, {epochs}, lambda accuracy: trial.report(val_accuracy=accuracy, n=len(shared.validation[1])))
"""


@benchmark(
    "script_loop", "recorded training seconds of a script over the same training by our loop (digits, ResNet-8)",
    "seconds", "lower", 1.02, num_pairs=21,
)  # fmt: skip
def script_loop(setting: Setting) -> Iterator[Arms]:
    """The same model, images, order and step. The facts have the accuracies and peaks of memory of both."""
    epochs = setting.pick(20, 2)
    values = DIGITS | {"optimizer.lr": LR, "budget.epochs": epochs} | ({"data.subset": 200} if setting.is_tiny else {})
    measured: dict[str, list[dict[str, float | int]]] = {"ours": [], "theirs": []}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "loop.py").write_text(_SCRIPT.format(values=values, epochs=epochs))
        command = ScriptCommand(
            arguments=(sys.executable, "loop.py"), folder=folder, metric="val_accuracy",
            environment={"PYTHONPATH": str(Path(__file__).parent.parent)},
        )  # fmt: skip
        task = TrialTask(number=0, config=build_config(values, "benchmark"), device="cpu", script=command)

        def as_script(_pair: int) -> float:
            *_, ending = run_script(task)
            assert isinstance(ending, Ending)
            if ending.outcome != "complete":
                raise ArmsDifferError(f"the script ended as {ending.outcome}: {ending.error}")
            measured["ours"].append(ending.measurements)
            return float(ending.measurements["train_seconds"])

        def by_loop(_pair: int) -> float:
            measured["theirs"].append(train(values, CPU).measured)
            return float(measured["theirs"][-1]["train_seconds"])

        def check() -> dict[str, Any]:
            names = ("val_accuracy", "peak_memory_bytes")
            found = {name: [median(float(each[name]) for each in arm) for arm in measured.values()] for name in names}
            if np.ptp(found["val_accuracy"]) > 0.005:
                raise ArmsDifferError(f"accuracies differ: {found['val_accuracy']}")
            return found

        yield Arms(as_script, by_loop, check, {"epochs": epochs})
