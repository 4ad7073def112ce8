"""Trains each trial in a process of its own, forked from a server that has torch imported already.

Whatever happens to that process, the supervisor lives on and the trial gets an ending; when the supervisor dies, by
``kill -9`` as well, the kernel ends the server, the trials and their workers with it.
"""

import json
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from sweep.executors.base import DESCRIBER, RUNNER, Executor, runner_of
from sweep.executors.child_output import OutputFile
from sweep.executors.devices import available_devices, pinned_environment
from sweep.executors.process.cpu_cores import divide_cores
from sweep.executors.process.exit_status import death, ending_of_dead
from sweep.executors.process.forkserver import Child, ForkServer
from sweep.executors.process.preload import MODULES
from sweep.records.messages import Ending, Message, Task, decode_message, encode_task

# From a trial's last word to the end of its process: longer than a driver needs to give the memory back.
_LEAVE_SECONDS = 10.0
_DESCRIBE_SECONDS = 300.0
_WAIT_SECONDS = 1.0


@dataclass
class _Running:
    """An attempt under way."""

    number: int
    slot: int
    child: Child
    ending: Ending | None = None
    leave_by: float = float("inf")  # on the monotonic clock


@final
class ProcessExecutor(Executor):
    """One child at a time for each of ``devices`` (``cuda:0``, ``cpu`` ...; all GPUs when None, else the CPU).

    A child sees its own GPU only, as ``cuda``; the device of a trial of several ranks is ``cuda:0,cuda:1``, and a CPU
    is shared by them. Of several slots, each is kept on an equal share of the cores and has as many threads, unless its
    task names a number. Output goes to ``log_dir/trial-00012.log``; without ``log_dir`` only the last lines are kept,
    for error texts. ``runner`` and ``describer`` are ``module:function`` names, imported in the child; ``modules`` are
    imported once, before the fork.
    """

    def __init__(
        self,
        devices: Sequence[str] | None = None,
        log_dir: Path | None = None,
        runner: str = RUNNER,
        describer: str = DESCRIBER,
        modules: tuple[str, ...] = MODULES,
    ) -> None:
        self._devices = list(available_devices() if devices is None else devices)
        self._running: dict[int, _Running] = {}
        self.divide(1)
        self._log_dir = log_dir
        self._runner = runner
        self._describer = describer
        self._modules = modules
        self._news: list[tuple[int, Message]] = []
        self._closed = False
        self._server = self._launch()  # at once: it imports while the supervisor has other things to do

    def divide(self, per_device: int, environment: Mapping[str, str] | None = None) -> None:
        """From now on so many at once on each device, each with ``environment`` beside its own.

        Raises:
            RuntimeError: something is running.
        """
        if self._running:
            raise RuntimeError(f"the devices cannot be divided: trials {sorted(self._running)} are running")
        self._slots = self._devices * per_device
        self._cores = divide_cores(self._slots, frozenset(os.sched_getaffinity(0)))
        self._extra = dict(environment or {})

    @property
    def slots(self) -> int:
        return len(self._slots)

    @property
    def forkserver_pid(self) -> int:
        """The process that all trials' processes are children of."""
        return self._server.pid

    def describe(self) -> dict[str, Any]:
        device = self._slots[0]
        inner = "cuda" if device.startswith("cuda") else device
        child = self._fork({"call": self._describer, "device": inner, "threads": self._threads()}, 0, OutputFile())
        try:
            lines = self._await_lines(child)
            if not lines:
                raise RuntimeError(f"the machine could not be described: {death(child)}")
        finally:
            self._server.kill([child])
            child.close()
        description: dict[str, Any] = json.loads(lines[0])
        return description

    def start(self, task: Task) -> None:
        busy = {run.slot for run in self._running.values()}
        free = [slot for slot in range(self.slots) if slot not in busy]
        if task.number in self._running or not free:
            raise RuntimeError(f"trial {task.number} cannot start: trials {sorted(self._running)} are running")
        slot = free[0]
        name = f"{task.kind}-{abs(task.number):05d}.log"
        output = OutputFile(self._log_dir / name if self._log_dir else None)
        request = {"call": runner_of(task, self._runner), "task": encode_task(self._placed(task, slot)).decode()}
        child = self._fork(request, slot, output)
        self._running[task.number] = _Running(task.number, slot, child)

    def devices_of(self, number: int) -> tuple[str, ...]:
        return tuple(self._slots[self._running[number].slot].split(","))

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        deadline = time.monotonic() + timeout_seconds
        self._gather()
        while not self._news and self._running and (left := deadline - time.monotonic()) > 0:
            self._wait(min(left, _WAIT_SECONDS))
            self._gather()
        news, self._news = self._news, []
        return news

    def ask_to_leave(self, number: int) -> None:
        if number in self._running:
            # the process alone: its workers know nothing of it
            self._server.signal(self._running[number].child, signal.SIGUSR1, alone=True)

    def stop(self, number: int) -> None:
        run = self._running.get(number)
        if run is not None:
            self._server.kill([run.child])
            self._release(run)
        self._news = [(sender, message) for sender, message in self._news if sender != number]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            with suppress(RuntimeError):  # one that outlives SIGKILL cannot be waited for
                self._server.kill([run.child for run in self._running.values()])
        finally:
            self._server.close()
            for run in list(self._running.values()):
                self._release(run)
            self._news = []

    def _launch(self) -> ForkServer:
        return ForkServer(self._modules, OutputFile(self._log_dir / "forkserver.log" if self._log_dir else None))

    def _fork(self, request: dict[str, Any], slot: int, output: OutputFile) -> Child:
        if self._closed:
            raise RuntimeError("the executor is closed")
        environment = {**pinned_environment(self._slots[slot]), **self._extra}
        request = {**request, "environment": environment, "cores": self._cores[slot] if self._cores else ()}
        self._server.listen()
        if self._server.is_alive():
            child = self._server.fork(request, output)
            if self._server.is_alive() or child.pid is not None:
                return child
            child.close_pipe()
        self._gather()  # the trials that were lost with the dead forkserver get their endings
        self._server.close()
        self._server = self._launch()
        return self._server.fork(request, output)

    def _placed(self, task: Task, slot: int) -> Task:
        device = self._slots[slot]
        on_gpu = device.startswith("cuda")
        if on_gpu and (task.device == "auto" or task.device.startswith("cuda")):
            task = replace(task, device="cuda")  # the one that it is pinned to
        elif task.device == "auto":
            task = replace(task, device=device)
        if task.threads is None:
            task = replace(task, threads=self._threads())
        return task

    def _threads(self) -> int | None:
        """A slot's share of the cores; None leaves a single slot to torch, which knows cores from hyperthreads."""
        if self.slots == 1:
            return None
        wanted = os.environ.get("OMP_NUM_THREADS", "")
        if wanted.isdigit():
            return max(1, int(wanted) // self.slots)
        return min(map(len, self._cores), default=1)

    def _wait(self, timeout_seconds: float) -> None:
        readable = select.poll()
        readable.register(self._server, select.POLLIN)
        for run in self._running.values():
            if run.child.open:
                readable.register(run.child, select.POLLIN)
        readable.poll(timeout_seconds * 1000)

    def _gather(self) -> None:
        self._server.listen()
        for run in list(self._running.values()):
            ended = run.child.ended
            for line in run.child.read_lines():
                self._hear(run, line)
            if ended:
                self._news.append((run.number, run.ending or ending_of_dead(run.child)))
                self._release(run)
            elif time.monotonic() > run.leave_by:
                run.leave_by = float("inf")
                self._server.signal(run.child, signal.SIGKILL)

    def _hear(self, run: _Running, line: bytes) -> None:
        if run.ending is not None:
            return
        try:
            message = decode_message(line)
        except (ValueError, TypeError, AttributeError) as error:
            message = Ending(outcome="crashed", error=f"the trial sent {line[:200]!r}: {error}")
        if isinstance(message, Ending):
            # told when its process is gone, so that the next trial has the device to itself
            run.ending, run.leave_by = message, time.monotonic() + _LEAVE_SECONDS
        else:
            self._news.append((run.number, message))

    def _await_lines(self, child: Child) -> list[bytes]:
        deadline = time.monotonic() + _DESCRIBE_SECONDS
        while not child.ended and time.monotonic() < deadline:
            self._server.listen(_WAIT_SECONDS)
        return child.read_lines()

    def _release(self, run: _Running) -> None:
        del self._running[run.number]
        run.child.close()
