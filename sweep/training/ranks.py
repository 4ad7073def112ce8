"""A trial on several ranks: torch's elastic agent in a process of its own, and under it a process for each rank.

The process that carries out the trial trains nothing: it starts the agent, passes on the messages of the first rank,
and yields the ending when every rank is gone. Messages go over one socket as JSON datagrams: the first rank sends those
of the trial, the others only how they failed, and the agent which rank ended without reporting. torch is imported
only after the agent is bound to its parent.
"""

import gc
import logging
import os
import signal
import socket
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import NoReturn, final

from sweep.config.errors import InputError
from sweep.records.messages import (
    Ending,
    Heartbeat,
    Message,
    TaggedCodec,
    TrialTask,
    decode_message,
    encode_message,
    encode_task,
)
from sweep.training.processes import (
    SUPERVISOR_LINK,
    bind_forks_to_parent,
    describe_exit,
    die_with_parent,
    exit_at_once,
    find_signal_name,
    make_python_command,
    receive_task,
)

_PREEMPT = b"preempt"  # sent to the first rank, which shares the socket with the others and alone reads from it
_POLL_SECONDS = 0.05  # how soon the agent notices that a rank died
_COLLECTIVE_SECONDS = 1800.0  # longer than one rank may prepare data while the others wait
_MAX_REPORT_BYTES = 2**20
# From the first failure to the next report: the neighbor of a killed rank may notice before the agent does.
_GRACE_SECONDS = 2.0
_EXIT_SECONDS = 30.0  # from the first rank's ending to the end of all


@dataclass(frozen=True)
class RankReport:
    """An encoded message of a rank, or that it ended without reporting; ``exit_code`` is negative if a signal killed
    it."""

    rank: int
    message: str = ""
    exit_code: int | None = None


_REPORTS = TaggedCodec[RankReport](RankReport)


@final
@dataclass(kw_only=True)
class _Reports:
    """What the ranks and their agent have reported so far."""

    num_ranks: int
    endings: dict[int, Ending] = field(default_factory=dict)  # by rank, in the order of their arrival
    death: RankReport | None = None
    deadline: float = float("inf")  # on the monotonic clock

    def add(self, report: RankReport) -> Message | None:
        """Returns the message for the supervisor, if there is one yet."""
        if not report.message:
            self.death = report
            return None
        message = decode_message(report.message.encode())
        if not isinstance(message, Ending):
            return message
        self.endings[report.rank] = message
        wait_seconds = _EXIT_SECONDS if message.outcome == "complete" else _GRACE_SECONDS
        self.deadline = min(self.deadline, time.monotonic() + wait_seconds)
        return None

    @property
    def failures(self) -> list[tuple[int, Ending]]:
        return [(rank, ending) for rank, ending in self.endings.items() if ending.outcome != "complete"]

    @property
    def is_settled(self) -> bool:
        """Nothing will change the ending any more: only a crash may be the consequence of another rank's death."""
        has_cause = any(ending.outcome != "crashed" for _, ending in self.failures)
        return self.death is not None or len(self.failures) == self.num_ranks or has_cause

    def make_ending(self) -> Ending:
        """The trial's: complete if the first rank is; else a killed rank is the cause, else the first failure."""
        failures = self.failures
        if 0 in self.endings and self.endings[0].outcome == "complete":
            return self.endings[0]  # all had finished; only their shutdown can have failed
        if self.death is not None:
            ending = self.endings.get(0) or (failures[0][1] if failures else Ending(outcome="crashed"))
            error = f"rank {self.death.rank}: {describe_exit(self.death.exit_code)}"
            return replace(ending, outcome="crashed", error=error, cause=find_signal_name(self.death.exit_code))
        if failures:
            rank, ending = failures[0]
            return replace(ending, error=f"rank {rank}: {ending.error}") if rank else ending
        return Ending(outcome="crashed", error="the ranks ended without a result")


def launch_trial(task: TrialTask) -> Iterator[Message]:
    """Trains ``task`` in this process, or on as many ranks as its configuration requires; see
    :func:`sweep.training.trial.run_trial` for the messages."""
    if task.config.distributed.world_size > 1:
        return run_ranks(task)
    from sweep.training.trial import run_trial  # imports torch

    return run_trial(task)


def run_ranks(task: TrialTask) -> Iterator[Message]:
    """Trains ``task`` on its ``distributed.world_size`` ranks: the messages of the first of them, and one ending.

    Closing the iterator ends every rank.
    """
    reports = _Reports(num_ranks=task.config.distributed.world_size)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        with theirs:
            agent_pid = _start_agent(encode_task(task).decode(), theirs)
        try:
            SUPERVISOR_LINK.forward_preemption(lambda: _send_preemption(ours))
            yield from _receive(ours, reports)
        finally:
            SUPERVISOR_LINK.forward_preemption(None)
            with suppress(ProcessLookupError):
                os.kill(agent_pid, signal.SIGKILL)  # and the kernel ends the ranks with it
            os.waitpid(agent_pid, 0)
            _await_closed(ours)
    yield reports.make_ending()


def _send_preemption(ours: socket.socket) -> None:
    with suppress(BrokenPipeError, ConnectionResetError):  # all are gone already
        ours.send(_PREEMPT)


def _receive(ours: socket.socket, reports: _Reports) -> Iterator[Message]:
    while not reports.is_settled:
        is_open_ended = reports.deadline == float("inf")
        ours.settimeout(None if is_open_ended else max(0.001, reports.deadline - time.monotonic()))
        try:
            data = ours.recv(_MAX_REPORT_BYTES)
        except TimeoutError:
            return
        if not data:
            return
        if message := reports.add(_REPORTS.decode(data)):
            yield message


def _await_closed(ours: socket.socket) -> None:
    deadline = time.monotonic() + _EXIT_SECONDS
    with suppress(TimeoutError, ConnectionResetError):
        while (left := deadline - time.monotonic()) > 0:
            ours.settimeout(left)
            if not ours.recv(_MAX_REPORT_BYTES):
                return


def _start_agent(text: str, theirs: socket.socket) -> int:
    """Forked if this process has no other thread, which the fork would lose; else in a new interpreter."""
    parent_pid, fd = os.getpid(), theirs.fileno()
    if len(list(Path("/proc/self/task").iterdir())) == 1:
        sys.stdout.flush()
        sys.stderr.flush()
        return os.fork() or _run_agent(text, fd, parent_pid)
    call = f"_run_agent(sys.argv[1], {fd}, {parent_pid})"
    command = [*make_python_command(f"from sweep.training.ranks import _run_agent; {call}"), text]
    theirs.set_inheritable(True)
    # in a process group of its own, because the terminal's Ctrl-C is for the caller
    return os.posix_spawn(sys.executable, command, dict(os.environ), setpgroup=0)


def _run_agent(text: str, fd: int, parent_pid: int) -> NoReturn:
    """The life of the agent's process: ``text`` is the encoded task, ``fd`` the socket. Never returns."""
    try:
        die_with_parent(parent_pid)
        bind_forks_to_parent()
        for number in (signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)  # the first rank receives such requests from the socket
        task = receive_task(text.encode())
        assert isinstance(task, TrialTask)
        _launch_ranks(task, fd)
    except BaseException as error:
        from sweep.training.outcomes import explain_error  # imports torch

        text = explain_error(error) if isinstance(error, Exception) else repr(error)
        _send_message(fd, 0, Ending(outcome="crashed", error=text))
    finally:
        exit_at_once(0)


def _launch_ranks(task: TrialTask, fd: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the machine's own name may not be resolvable
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # counts GPUs without initializing CUDA before the fork
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    import_module("sweep.training.trial")  # once, before the ranks are forked
    _silence_launcher()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=task.config.distributed.world_size,
        run_id=str(os.getpid()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=_POLL_SECONDS,
        start_method="fork",
        signals_to_handle="SIGTERM",
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # their output goes where the agent's goes
    )
    try:
        elastic_launch(config, _run_rank)(task, fd, os.getpid())
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        _send_report(fd, RankReport(rank, exit_code=failure.exitcode))


def _silence_launcher() -> None:
    # the trial's ending contains what the launcher logs about a failure
    for name in (*logging.root.manager.loggerDict,):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.CRITICAL)
    # the agent's other threads hold nothing that a rank needs
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)


def _run_rank(task: TrialTask, fd: int, agent_pid: int) -> None:
    """The life of one rank. After a failure it waits to be ended, so that the agent reports only ranks that died."""
    die_with_parent(agent_pid)  # the launcher has set a signal that is ignored here
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the agent's handler would wait for the end of a collective
    rank = int(os.environ["RANK"])
    if rank == 0:
        SUPERVISOR_LINK.connect(lambda: _send_message(fd, 0, Heartbeat()), lambda: _is_preempted(fd))
    else:
        SUPERVISOR_LINK.reset()
    try:
        ending = _train(task, fd, rank)
    except Exception as error:
        from sweep.training.outcomes import classify_error, explain_error, find_cause  # imports torch

        ending = Ending(outcome=classify_error(error), error=explain_error(error), cause=find_cause(error))
        _send_message(fd, rank, ending)
    if ending.outcome != "complete":
        while True:
            signal.pause()
    _leave_group()


def _train(task: TrialTask, fd: int, rank: int) -> Ending:
    import torch
    import torch.distributed as dist

    from sweep.measurement.device import reach_gpu
    from sweep.training.trial import run_trial
    from sweep.training.world import World

    world_size = task.config.distributed.world_size
    task = replace(task, threads=max(1, (task.threads or torch.get_num_threads()) // world_size))
    is_on_gpu = task.device != "cpu" and torch.cuda.is_available()
    if is_on_gpu:
        task = replace(task, device=_choose_gpu(task.device, rank, world_size))
        reach_gpu(torch.device(task.device))
    backend = "cpu:gloo,cuda:nccl" if is_on_gpu else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=_COLLECTIVE_SECONDS))
    ending = Ending(outcome="crashed", error="no ending")
    for message in run_trial(task, World(rank, world_size)):
        if isinstance(message, Ending):
            ending = message
        # if all are preempted, the first reports it, when it has written the checkpoint
        if rank == 0 or (isinstance(message, Ending) and message.outcome not in ("complete", "cancelled")):
            _send_message(fd, rank, message)
    return ending


def _choose_gpu(device: str, rank: int, size: int) -> str:
    import torch

    first, count = int(device.partition(":")[2] or 0), torch.cuda.device_count()
    if first + size > count:
        raise InputError(
            f"distributed.world_size = {size} requires {size} GPUs"
            + (f" from {device} on" if first else "")
            + f", and {count} are visible here; lower it, or train on the CPU with --on cpu."
        )
    return f"cuda:{first + rank}"


def _leave_group() -> None:
    # in this order: what holds the process group is deleted before it, and no rank leaves before all have arrived
    import torch.distributed as dist

    dist.barrier()
    gc.collect()
    dist.destroy_process_group()


def _is_preempted(fd: int) -> bool:
    with suppress(BlockingIOError), socket.socket(fileno=os.dup(fd)) as channel:
        return bool(channel.recv(len(_PREEMPT), socket.MSG_DONTWAIT))
    return False


def _send_message(fd: int, rank: int, message: Message) -> None:
    _send_report(fd, RankReport(rank, encode_message(message).decode()))


def _send_report(fd: int, report: RankReport) -> None:
    with suppress(BrokenPipeError), socket.socket(fileno=os.dup(fd)) as channel:
        channel.send(_REPORTS.encode(report))
