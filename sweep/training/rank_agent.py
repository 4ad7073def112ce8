"""The processes of a trial that is trained by several ranks: torch's elastic agent, and under it one for each rank.

Their messages go over one socket as JSON datagrams. The first rank sends those of the trial, the others only how they
failed, and the agent which rank ended without reporting.
"""

import gc
import logging
import os
import signal
import socket
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from importlib import import_module
from typing import NoReturn

from sweep.config.errors import InputError
from sweep.records.messages import Ending, Heartbeat, Message, TaggedCodec, TrialTask, encode_message
from sweep.training.processes import SUPERVISOR_LINK, bind_forks_to_parent, die_with_parent, exit_at_once, receive_task

PREEMPT = b"preempt"  # sent to the first rank, which shares the socket with the others and alone reads from it
_POLL_SECONDS = 0.05  # how soon the agent notices that a rank died
_COLLECTIVE_SECONDS = 1800.0  # longer than one rank may prepare data while the others wait


@dataclass(frozen=True)
class RankMessage:
    """An encoded message of a rank."""

    rank: int
    message: str


@dataclass(frozen=True)
class RankDied:
    """A rank ended without reporting; ``exit_code`` is negative if a signal killed it."""

    rank: int
    exit_code: int


REPORTS = TaggedCodec[RankMessage | RankDied](RankMessage, RankDied)


def run_agent(text: str, fd: int, parent_pid: int) -> NoReturn:
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
        _send_report(fd, RankDied(rank, failure.exitcode))


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
        return bool(channel.recv(len(PREEMPT), socket.MSG_DONTWAIT))
    return False


def _send_message(fd: int, rank: int, message: Message) -> None:
    _send_report(fd, RankMessage(rank, encode_message(message).decode()))


def _send_report(fd: int, report: RankMessage | RankDied) -> None:
    with suppress(BrokenPipeError), socket.socket(fileno=os.dup(fd)) as channel:
        channel.send(REPORTS.encode(report))
