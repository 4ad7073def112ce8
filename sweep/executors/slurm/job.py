"""What runs in a job: one attempt at a trial, in a child as on one machine; its messages are appended to a file.

The job leaves with a checkpoint when Slurm signals that its time is over, when it is ordered to, and when there is no
heartbeat of its supervisor; it ends at once when another run of the study has replaced its own.
"""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import final

from sweep.executors.base import Executor, receive_task
from sweep.executors.devices import available_devices
from sweep.executors.monitored import MonitoredExecutor, source_of
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.executors.slurm.job_files import (
    ORDER_FILE,
    SUPERVISOR_FILE,
    Order,
    append_lines,
    message_file,
    read_text,
)
from sweep.executors.slurm.protocol import JOB_REQUESTS, JobBegan, JobLine, JobOver, JobRequest, MachineDescribed
from sweep.executors.slurm.rendezvous import Rendezvous
from sweep.measurement.monitor import Monitor
from sweep.records.messages import Ending, NodePlacement, Task, TrialTask

_LOOK_SECONDS = 0.5
# Slurm's at the end of a job's time, its signal before it takes a node away, and one that some clusters are set to send
_SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR1)


def run_job(text: str) -> None:
    """The whole life of a job on one of its nodes; ``text`` is a JSON :class:`JobRequest`."""
    request = JOB_REQUESTS.decode(text.encode())
    node = int(os.environ.get("SLURM_NODEID", "0"))
    if node >= request.num_nodes or not _claim(request, node):
        return  # an unused node; or Slurm has started the job again, and the study has done so too
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # for the children, which a signal to the whole job reaches too
    sys.path[:] = request.path
    job = _Job(request, node)
    try:
        job.run()
    finally:
        job.write(JobOver())


@final
class JobControl:
    """Whether the job shall leave or stop: by a file of its own, by its supervisor's heartbeat, by signals."""

    def __init__(self, folder: Path, run: str, stale_seconds: float) -> None:
        self._order, self._supervisor, self._run = folder / ORDER_FILE, folder.parent / SUPERVISOR_FILE, run
        self._stale_seconds = stale_seconds
        self._heartbeat, self._seen_at, self._read_at = "", time.monotonic(), 0.0
        self._is_signaled = False
        self._last: Order = ""

    def handle_signal(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of the signals that request to leave."""
        self._is_signaled = True

    def read_order(self) -> Order:
        """The current order; reads the files twice per second at most."""
        now = time.monotonic()
        if now - self._read_at >= _LOOK_SECONDS:
            self._read_at = now
            self._last = self._read_files(now)
        return "leave" if self._is_signaled and self._last == "" else self._last

    def _read_files(self, now: float) -> Order:
        heartbeat = read_text(self._supervisor)
        if heartbeat and heartbeat.split()[0] != self._run:
            return "stop"  # the supervisor has ended, or another has replaced it
        if heartbeat != self._heartbeat:
            self._heartbeat, self._seen_at = heartbeat, now
        silent_seconds = now - self._seen_at
        if silent_seconds > 2 * self._stale_seconds or read_text(self._order) == "stop":
            return "stop"
        return "leave" if silent_seconds > self._stale_seconds or read_text(self._order) == "leave" else ""


@final
class _Job:
    def __init__(self, request: JobRequest, node: int) -> None:
        self._request, self._node, self._folder = request, node, Path(request.folder)
        self._rendezvous: Rendezvous | None = None

    def write(self, *lines: JobLine) -> None:
        append_lines(message_file(self._folder, self._node), list(lines))

    def run(self) -> None:
        with self._make_executor() as executor:
            control = JobControl(self._folder, self._request.run, self._request.stale_seconds)
            for number in _SIGNALS:
                signal.signal(number, control.handle_signal)
            self.write(JobBegan(os.uname().nodename))
            if self._request.task is None:
                self.write(MachineDescribed(executor.describe()))
                return
            task = receive_task(self._request.task.encode())
            if self._request.num_nodes == 1:
                self._run_task(task, executor, control)
            else:
                assert isinstance(task, TrialTask)  # others use one node
                self._run_on_nodes(task, executor, control)

    def _run_on_nodes(self, task: TrialTask, executor: Executor, control: JobControl) -> None:
        num_nodes = self._request.num_nodes
        rendezvous = self._rendezvous = Rendezvous(self._folder, num_nodes, self._node)
        while not (address := rendezvous.find_address()):
            if control.read_order() == "stop":
                return
            time.sleep(_LOOK_SECONDS)
        if rendezvous.is_over():  # before this node was there
            return
        try:
            self._run_task(replace(task, placement=NodePlacement(num_nodes, self._node, address)), executor, control)
        finally:
            rendezvous.close()

    def _run_task(self, task: Task, executor: Executor, control: JobControl) -> None:
        """Writes the messages of the trial, to its ending, and carries out orders."""
        executor.start(task)
        is_preempted = False
        while True:
            messages: list[JobLine] = [message for _, message in executor.poll(_LOOK_SECONDS)]
            last = messages[-1] if messages else None
            if self._rendezvous and isinstance(last, Ending):
                messages[-1] = self._rendezvous.find_origin(last)
            self.write(*messages)
            if isinstance(last, Ending):
                return
            order = control.read_order()
            if self._rendezvous and (failure := self._rendezvous.find_failure()):
                self.write(failure)
                order = "stop"
            if order == "stop" or (self._rendezvous and self._rendezvous.is_over()):
                executor.stop(task.number)
                return
            if order == "leave" and not is_preempted:
                executor.preempt(task.number)
                is_preempted = True

    def _make_executor(self) -> Executor:
        request = self._request
        log_dir = Path(request.log_dir) if request.log_dir else None
        if log_dir and self._node:
            log_dir = log_dir / f"node-{self._node}"
        inner = ProcessExecutor([_choose_device(request.num_gpus)], log_dir, request.program)
        if request.num_nodes > 1:
            return inner  # the energy of one machine is not that of the trial
        return MonitoredExecutor(inner, Monitor(source_of), {})  # here, on the machine that trains


def _choose_device(num_gpus: int) -> str:
    """The GPUs of this node that the trial uses, or ``cpu``."""
    if not num_gpus:
        return "cpu"
    gpus = [name for name in available_devices() if name != "cpu"]
    if len(gpus) < num_gpus:
        raise RuntimeError(f"the job requested {num_gpus} GPUs on a node, and {len(gpus)} are visible there")
    return ",".join(gpus[:num_gpus])


def _claim(request: JobRequest, node: int) -> bool:
    """Whether this is the first process that runs this job on this node."""
    try:
        (Path(request.folder) / f"claim-{node}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
