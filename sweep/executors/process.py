"""Trains each trial in a process of its own, forked from a server that has imported torch already.

Whatever happens to that process, the supervisor continues and the trial gets an ending; when the supervisor dies, by
``kill -9`` as well, the kernel ends the server, the trials and their workers with it.
"""

import json
import os
import select
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from sweep.executors.base import PROGRAM, PollingExecutor, WorkerProgram
from sweep.executors.devices import divide_cores, list_devices, make_pinned_environment
from sweep.executors.forkserver import Child, ChildRequest, ForkServer, OutputFile
from sweep.records.messages import Ending, Message, Task, decode_message, encode_task

# From a trial's ending to the end of its process: longer than a driver needs to free the memory.
_EXIT_SECONDS = 10.0
_DESCRIBE_SECONDS = 300.0
_WAIT_SECONDS = 1.0


@final
@dataclass(kw_only=True)
class _Running:
    """An attempt under way."""

    slot: int
    child: Child
    ending: Ending | None = None
    kill_at: float = float("inf")  # on the monotonic clock


@final
class ProcessExecutor(PollingExecutor[_Running]):
    """One child at a time for each of ``devices`` (``cuda:0``, ``cpu`` ...; all GPUs if None, else the CPU).

    A child sees its own GPU only, as ``cuda``; the device of a trial of several ranks is ``cuda:0,cuda:1``, and a CPU
    is shared by them. Of several slots, each has an equal share of the cores and as many threads, unless its task sets
    a number. Output goes to ``log_dir/trial-00012.log``; without ``log_dir`` only the last lines are kept, for error
    texts.
    """

    def __init__(
        self, devices: Sequence[str] | None = None, log_dir: Path | None = None, program: WorkerProgram = PROGRAM
    ) -> None:
        super().__init__()
        self._devices = list(list_devices() if devices is None else devices)
        self.divide(1)
        self._log_dir, self._program = log_dir, program
        self._server = self._launch()  # at once: it imports while the supervisor has other things to do

    def divide(self, per_device: int) -> None:
        """From now on ``per_device`` trials run at once on each device. Raises ``RuntimeError``: a trial is running."""
        if self._running:
            raise RuntimeError(f"the devices cannot be divided: trials {sorted(self._running)} are running")
        self._slots = self._devices * per_device
        self._cores = divide_cores(len(self._slots), frozenset(os.sched_getaffinity(0)))

    @property
    def slots(self) -> int:
        return len(self._slots)

    @property
    def forkserver_pid(self) -> int:
        """The process that all trials' processes are children of."""
        return self._server.pid

    def describe(self) -> dict[str, Any]:
        device = self._slots[0]
        request = self._make_request(0, self._program.describer)
        device = "cuda" if device.startswith("cuda") else device
        child = self._fork(replace(request, device=device, threads=self._num_threads()), OutputFile())
        try:
            deadline = time.monotonic() + _DESCRIBE_SECONDS
            while not child.has_ended and time.monotonic() < deadline:
                self._server.read_answers(_WAIT_SECONDS)
            lines = child.read_lines()
            if not lines:
                raise RuntimeError(f"the machine could not be described: {child.describe_end()}")
        finally:
            self._server.kill([child])
            child.close()
        description: dict[str, Any] = json.loads(lines[0])
        return description

    def start(self, task: Task) -> None:
        self._check_start(task.number)
        slot = min(set(range(self.slots)) - {run.slot for run in self._running.values()})
        name = f"{task.kind}-{abs(task.number):05d}.log"
        request = self._make_request(slot, self._program.runner_of(task))
        request = replace(request, task=encode_task(self._place_task(task, slot)).decode())
        child = self._fork(request, OutputFile(self._log_dir / name if self._log_dir else None))
        self._running[task.number] = _Running(slot=slot, child=child)

    def devices_of(self, number: int) -> tuple[str, ...]:
        return tuple(self._slots[self._running[number].slot].split(","))

    def preempt(self, number: int) -> None:
        if number in self._running:
            # the process alone: its data workers do not handle the signal
            self._server.signal(self._running[number].child, signal.SIGUSR1, is_alone=True)

    def stop(self, number: int) -> None:
        if number in self._running:
            self._server.kill([self._running[number].child])
            self._release(number)
        self._drop_messages(number)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        try:
            with suppress(RuntimeError):  # a process that survives SIGKILL cannot be waited for
                self._server.kill([run.child for run in self._running.values()])
        finally:
            self._server.close()
            for number in list(self._running):
                self._release(number)
            self._messages = []

    def _launch(self) -> ForkServer:
        output = OutputFile(self._log_dir / "forkserver.log" if self._log_dir else None)
        return ForkServer(self._program.modules, output)

    def _fork(self, request: ChildRequest, output: OutputFile) -> Child:
        if self._is_closed:
            raise RuntimeError("the executor is closed")
        self._server.read_answers()
        if self._server.is_alive():
            child = self._server.fork(request, output)
            if self._server.is_alive() or child.pid is not None:
                return child
            child.close_pipe()
        self._collect_arrived()  # the trials that were lost with the dead forkserver get their endings
        self._server.close()
        self._server = self._launch()
        return self._server.fork(request, output)

    def _make_request(self, slot: int, function: str) -> ChildRequest:
        environment = make_pinned_environment(self._slots[slot])
        return ChildRequest(function=function, environment=environment, cores=self._cores[slot] if self._cores else ())

    def _place_task(self, task: Task, slot: int) -> Task:
        device = self._slots[slot]
        is_on_gpu = device.startswith("cuda")
        if is_on_gpu and (task.device == "auto" or task.device.startswith("cuda")):
            task = replace(task, device="cuda")  # the only one that it sees
        elif task.device == "auto":
            task = replace(task, device=device)
        return task if task.threads is not None else replace(task, threads=self._num_threads())

    def _num_threads(self) -> int | None:
        """A slot's share of the cores; None for a single slot: torch itself distinguishes hyperthreads."""
        if self.slots == 1:
            return None
        limit = os.environ.get("OMP_NUM_THREADS", "")
        if limit.isdigit():
            return max(1, int(limit) // self.slots)
        return min(map(len, self._cores), default=1)

    def _collect(self, timeout_seconds: float) -> None:
        if timeout_seconds > 0.0:
            readable = select.poll()
            readable.register(self._server, select.POLLIN)
            for run in self._running.values():
                if run.child.is_open:
                    readable.register(run.child, select.POLLIN)
            readable.poll(min(timeout_seconds, _WAIT_SECONDS) * 1000)
        self._collect_arrived()

    def _collect_arrived(self) -> None:
        self._server.read_answers()
        for number, run in list(self._running.items()):
            has_ended = run.child.has_ended
            for line in run.child.read_lines():
                if run.ending is None:
                    self._receive(number, run, line)
            if has_ended:
                self._messages.append((number, run.ending or run.child.make_ending()))
                self._release(number)
            elif time.monotonic() > run.kill_at:
                run.kill_at = float("inf")
                self._server.signal(run.child, signal.SIGKILL)

    def _receive(self, number: int, run: _Running, line: bytes) -> None:
        message: Message
        try:
            message = decode_message(line)
        except ValueError as error:
            message = Ending(outcome="crashed", error=f"the trial sent {line[:200]!r}: {error}")
        if isinstance(message, Ending):
            # returned when its process is gone, so that the next trial has the device to itself
            run.ending, run.kill_at = message, time.monotonic() + _EXIT_SECONDS
        else:
            self._messages.append((number, message))

    def _release(self, number: int) -> None:
        self._running.pop(number).child.close()
