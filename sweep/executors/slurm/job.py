"""What runs in a job: one attempt at a trial, in a child as on one machine; its messages are appended to a file.

The job leaves with a checkpoint when Slurm signals that its time is over, when it is ordered to, and when there is no
heartbeat of its supervisor; it ends at once when another run of the study has replaced its own.
"""

import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import final

from sweep.executors.base import Executor
from sweep.executors.devices import list_devices
from sweep.executors.monitored import MonitoredExecutor, make_source
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.executors.slurm import job_files
from sweep.measurement.monitor import Monitor
from sweep.records.messages import Ending, NodePlacement, Task, TrialTask
from sweep.training.plugins import receive_task

_LOOK_SECONDS = 0.5
_GRACE_SECONDS = 5.0  # for the failure of another node to become visible
_OVER = "over"
# Slurm's at the end of a job's time, its signal before it takes a node away, and one that some clusters are set to send
_SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR1)


def run_job(text: str) -> None:
    """The whole life of a job on one of its nodes; ``text`` is a JSON :class:`JobRequest`."""
    request = job_files.JOB_REQUESTS.decode(text.encode())
    node = int(os.environ.get("SLURM_NODEID", "0"))
    if node >= request.num_nodes or not _claim(request, node):
        return  # an unused node; or Slurm has started the job again, and the study has done so too
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # for the children, which a signal to the whole job reaches too
    sys.path[:] = request.path
    job = _Job(request, node)
    try:
        job.run()
    finally:
        job.write(job_files.JobOver())


@final
class JobControl:
    """Whether the job shall leave or stop: by a file of its own, by its supervisor's heartbeat, by signals."""

    def __init__(self, folder: Path, run: str, stale_seconds: float) -> None:
        self._order, self._supervisor = folder / job_files.ORDER_FILE, folder.parent / job_files.SUPERVISOR_FILE
        self._run, self._stale_seconds = run, stale_seconds
        self._heartbeat, self._seen_at, self._read_at = "", time.monotonic(), 0.0
        self._is_signaled = False
        self._last: job_files.Order = ""

    def handle_signal(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of the signals that request to leave."""
        self._is_signaled = True

    def read_order(self) -> job_files.Order:
        """The current order; reads the files twice per second at most."""
        now = time.monotonic()
        if now - self._read_at >= _LOOK_SECONDS:
            self._read_at = now
            self._last = self._read_files(now)
        return "leave" if self._is_signaled and self._last == "" else self._last

    def _read_files(self, now: float) -> job_files.Order:
        heartbeat = job_files.read_text(self._supervisor)
        if heartbeat and heartbeat.split()[0] != self._run:
            return "stop"  # the supervisor has ended, or another has replaced it
        if heartbeat != self._heartbeat:
            self._heartbeat, self._seen_at = heartbeat, now
        silent_seconds = now - self._seen_at
        if silent_seconds > 2 * self._stale_seconds or job_files.read_text(self._order) == "stop":
            return "stop"
        return "leave" if silent_seconds > self._stale_seconds or job_files.read_text(self._order) == "leave" else ""


@final
class Rendezvous:
    """How the nodes of a job find one another, by files, as ``node`` sees it: the first opens it and reads the endings
    of the others, which stay until it is closed."""

    def __init__(self, folder: Path, num_nodes: int, node: int) -> None:
        self._path, self._node = folder / job_files.RENDEZVOUS_FILE, node
        others = range(1, num_nodes) if node == 0 else ()
        self._others = {other: job_files.LineReader(job_files.locate_messages(folder, other)) for other in others}

    def find_address(self) -> str:
        """Where the ranks meet, ``host:port`` on the first node; empty as long as that is not known."""
        if self._node == 0:
            job_files.replace_text(self._path, f"{_own_name()}:{_find_free_port()}")
        return job_files.read_text(self._path)

    def is_over(self) -> bool:
        """Whether the first node has closed it."""
        return self._node > 0 and job_files.read_text(self._path) == _OVER

    def close(self) -> None:
        """Closes it for all, on the first node."""
        if self._node == 0:
            job_files.replace_text(self._path, _OVER)

    def find_origin(self, ending: Ending) -> Ending:
        """``ending``, or the failure of another node that a crash here may be the consequence of."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._others and ending.outcome == "crashed" and time.monotonic() < deadline:
            if failure := self.find_failure():
                return failure
            time.sleep(job_files.READ_SECONDS)
        return ending

    def find_failure(self) -> Ending | None:
        """The ending on another node that has failed."""
        for node, reader in self._others.items():
            for line in reader.read_lines():
                ending = job_files.JOB_LINES.decode(line)
                if isinstance(ending, Ending) and ending.outcome != "complete":
                    return replace(ending, error=f"node {node}: {ending.error}")
        return None


@final
class _Job:
    def __init__(self, request: job_files.JobRequest, node: int) -> None:
        self._request, self._node, self._folder = request, node, Path(request.folder)
        self._rendezvous: Rendezvous | None = None

    def write(self, *lines: job_files.JobLine) -> None:
        job_files.append_lines(job_files.locate_messages(self._folder, self._node), list(lines))

    def run(self) -> None:
        with self._make_executor() as executor:
            control = JobControl(self._folder, self._request.run, self._request.stale_seconds)
            for number in _SIGNALS:
                signal.signal(number, control.handle_signal)
            self.write(job_files.JobBegan(os.uname().nodename))
            if self._request.task is None:
                self.write(job_files.MachineDescribed(executor.describe()))
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
            messages: list[job_files.JobLine] = [message for _, message in executor.poll(_LOOK_SECONDS)]
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
        return MonitoredExecutor(inner, Monitor(make_source), {})  # here, on the machine that trains


def _choose_device(num_gpus: int) -> str:
    """The GPUs of this node that the trial uses, or ``cpu``."""
    if not num_gpus:
        return "cpu"
    gpus = [name for name in list_devices() if name != "cpu"]
    if len(gpus) < num_gpus:
        raise RuntimeError(f"the job requested {num_gpus} GPUs on a node, and {len(gpus)} are visible there")
    return ",".join(gpus[:num_gpus])


def _claim(request: job_files.JobRequest, node: int) -> bool:
    """Whether this is the first process that runs this job on this node."""
    try:
        (Path(request.folder) / f"claim-{node}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _own_name() -> str:
    """As the other nodes of the job call this one."""
    from submitit import JobEnvironment

    return str(JobEnvironment().hostnames[0])


def _find_free_port() -> int:
    with socket.create_server(("", 0)) as listener:
        return int(listener.getsockname()[1])
