"""What runs in a job of Slurm, and the files by which it communicates with its supervisor.

A job is one attempt at a trial. It leaves with a checkpoint when Slurm signals that its time is over, on an order, and
without a heartbeat of its supervisor; it ends at once when another run of the study has replaced its own. Each file has
one writer, and is opened anew for each read and write, because a network file system shows others what was closed.
"""

import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal, final

from sweep.executors.base import Executor, WorkerProgram
from sweep.executors.devices import list_devices
from sweep.executors.monitored import MonitoredExecutor, make_source
from sweep.executors.process import ProcessExecutor
from sweep.measurement.monitor import Monitor
from sweep.records.messages import (
    MAX_MESSAGE_BYTES,
    Ending,
    Evaluation,
    Heartbeat,
    Message,
    Progress,
    TaggedCodec,
    Task,
)
from sweep.training.processes import receive_task

Order = Literal["", "leave", "stop"]
SUPERVISOR_FILE = "supervisor"  # in the folder of all jobs: the run of the study that they belong to, and a count
MESSAGES_FILE, ORDER_FILE, _CLAIM_FILE = "messages.jsonl", "order", "claim"  # in the folder of a job
READ_SECONDS = 0.2  # between two reads for new lines
_LOOK_SECONDS = 0.5  # between two looks for orders
# At the end of a job's time, before Slurm takes a node away, and what some clusters are set to send.
_SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR1)


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """One attempt at a trial; without a ``task`` the job describes its machine, in the ``environment`` of an ending."""

    run: str  # of the study
    folder: str  # of the job
    path: tuple[str, ...]  # of the supervisor's modules
    log_dir: str | None
    program: WorkerProgram
    stale_seconds: float  # without a heartbeat of its supervisor, after which the job leaves
    num_gpus: int
    task: str | None  # encoded


@dataclass(frozen=True)
class JobOver:
    """The last line of a job: no process of it is left."""


_JobLine = Message | JobOver
JOB_REQUESTS = TaggedCodec[JobRequest](JobRequest)
JOB_LINES = TaggedCodec[_JobLine](Progress, Heartbeat, Evaluation, Ending, JobOver, max_bytes=MAX_MESSAGE_BYTES)


def replace_text(path: Path, text: str) -> None:
    """Replaces the content of the file atomically."""
    part = path.with_name(f".{path.name}.part")
    part.write_text(text)
    part.replace(path)


def read_text(path: Path) -> str:
    """The content; empty if it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


@final
class _Orders:
    """Whether the job shall leave or stop, by its order file, by its supervisor's heartbeat and by signals."""

    def __init__(self, request: JobRequest) -> None:
        folder = Path(request.folder)
        self._order, self._supervisor = folder / ORDER_FILE, folder.parent / SUPERVISOR_FILE
        self._run, self._stale_seconds = request.run, request.stale_seconds
        self._heartbeat, self._seen_at = "", time.monotonic()
        self._is_signaled = False
        for number in _SIGNALS:
            signal.signal(number, self._handle_signal)

    def _handle_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._is_signaled = True

    def read(self) -> Order:
        """The current order."""
        heartbeat = read_text(self._supervisor)
        if heartbeat and heartbeat.split()[0] != self._run:
            return "stop"  # the supervisor has ended, or another has replaced it
        if heartbeat != self._heartbeat:
            self._heartbeat, self._seen_at = heartbeat, time.monotonic()
        silent_seconds, order = time.monotonic() - self._seen_at, read_text(self._order)
        if silent_seconds > 2 * self._stale_seconds or order == "stop":
            return "stop"
        return "leave" if silent_seconds > self._stale_seconds or order == "leave" or self._is_signaled else ""


def run_job(text: str) -> None:
    """The whole life of a job; ``text`` is a JSON :class:`JobRequest`."""
    request = JOB_REQUESTS.decode(text.encode())
    folder = Path(request.folder)
    try:
        (folder / _CLAIM_FILE).touch(exist_ok=False)
    except FileExistsError:
        return  # Slurm has started the job again, and the study has done so too
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # for the children, which a signal to the whole job reaches too
    sys.path[:] = request.path

    def write(*lines: _JobLine) -> None:
        if lines:
            with (folder / MESSAGES_FILE).open("ab") as file:
                file.write(b"".join(JOB_LINES.encode(line) + b"\n" for line in lines))

    def train(task: Task, executor: Executor, orders: _Orders) -> None:
        executor.start(task)
        look_at, is_preempted = 0.0, False
        while True:
            messages = [message for _, message in executor.poll(_LOOK_SECONDS)]
            write(*messages)
            if messages and isinstance(messages[-1], Ending):
                return
            if time.monotonic() < look_at:
                continue
            look_at = time.monotonic() + _LOOK_SECONDS
            order = orders.read()
            if order == "stop":
                executor.stop(task.number)
                return
            if order == "leave" and not is_preempted:
                executor.preempt(task.number)
                is_preempted = True

    try:
        log_dir = Path(request.log_dir) if request.log_dir else None
        inner = ProcessExecutor([choose_device(request.num_gpus)], log_dir, request.program)
        with MonitoredExecutor(inner, Monitor(make_source), {}) as executor:  # here, on the machine that trains
            orders = _Orders(request)
            write(Heartbeat(is_queued=True))  # its time begins now
            if request.task is None:
                write(Ending(outcome="complete", environment=executor.describe()))
            else:
                train(receive_task(request.task.encode()), executor, orders)
    finally:
        write(JobOver())


def choose_device(num_gpus: int) -> str:
    """The GPUs of this node that the trial uses, or ``cpu``."""
    if not num_gpus:
        return "cpu"
    gpus = [name for name in list_devices() if name != "cpu"]
    if len(gpus) < num_gpus:
        raise RuntimeError(f"the job requested {num_gpus} GPUs on a node, and {len(gpus)} are visible there")
    return ",".join(gpus[:num_gpus])
