"""The processes of a trial that is trained by several ranks: torch's elastic agent, and under it one for each rank.

What they say goes over one socket as JSON datagrams: ``{"rank": 0, "message": {...}}`` from a rank, and from the agent
``{"died": rank, "exit_code": ...}`` when a rank ended that should not have. The first rank says everything, the others
only how they failed.
"""

import gc
import json
import logging
import os
import signal
import socket
import sys
import warnings
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from typing import Any, NoReturn

from sweep.records.messages import Ending, Heartbeat, Message, NodePlacement, TrialTask, decode_task, encode_message
from sweep.training.subprocesses import bind_forks_to_parent, die_with_parent
from sweep.training.supervisor_link import SUPERVISOR_LINK

LEAVE = b"leave"  # to the first rank, which shares the socket with the others and alone reads from it
_POLL_SECONDS = 0.05  # how soon the agent sees that a rank died
_MEETING_SECONDS = 900  # for the last machine to arrive
_COLLECTIVE_SECONDS = 1800.0  # longer than one rank may prepare data while the others wait


def run_agent(text: str, fd: int, parent_pid: int) -> NoReturn:
    """The life of the agent's process: ``text`` is the encoded task, ``fd`` the socket. Never returns."""
    try:
        die_with_parent(parent_pid)
        bind_forks_to_parent()
        for number in (signal.SIGINT, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)  # what they ask for comes to the first rank by the socket
        if plugin := json.loads(text)["plugin"]:
            from sweep.training.plugins import load_plugin

            load_plugin(plugin)
        _launch(text, fd, _decode_trial(text))
    except BaseException as error:
        from sweep.training.outcomes import explain_error

        said = explain_error(error) if isinstance(error, Exception) else repr(error)
        _say(fd, 0, Ending(outcome="crashed", error=said))
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(0)


def _launch(text: str, fd: int, task: TrialTask) -> None:
    placement = task.placement or NodePlacement(1, 0, str(os.getpid()))
    if task.placement is None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # one machine; its own name need not be known to anyone
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # to count GPUs in a way that leaves forks intact
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    import_module("sweep.training.loop.trial")  # once, before the ranks are forked
    _quieten()
    meeting: dict[str, Any] = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "local_addr": "localhost"}
    if task.placement is not None:  # c10d numbers machines by their names, and the first rank must be on the first
        configs = {"rank": placement.node, "timeout": _MEETING_SECONDS}
        meeting = {"rdzv_backend": "static", "rdzv_endpoint": placement.rendezvous, "rdzv_configs": configs}
    config = LaunchConfig(
        min_nodes=placement.num_nodes,
        max_nodes=placement.num_nodes,
        nproc_per_node=task.config.distributed.world_size // placement.num_nodes,
        run_id=placement.rendezvous,
        **meeting,
        max_restarts=0,
        monitor_interval=_POLL_SECONDS,
        start_method="fork",
        signals_to_handle="SIGTERM",
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # output goes where the agent's goes
    )
    try:
        elastic_launch(config, run_rank)(text, fd, os.getpid())
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        _send(fd, {"died": rank, "exit_code": failure.exitcode})


def _quieten() -> None:
    # what the launcher says of a failure is in the trial's ending
    for name in (*logging.root.manager.loggerDict,):
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    logging.getLogger("torch.multiprocessing.spawn").setLevel(logging.CRITICAL)
    # the agent's other threads hold nothing that a rank needs
    warnings.filterwarnings("ignore", message=".*multi-threaded.*fork", category=DeprecationWarning)


def run_rank(text: str, fd: int, agent_pid: int) -> None:
    """The life of one rank. After a failure it waits to be ended, so that the agent hears only of ranks that died."""
    die_with_parent(agent_pid)  # the launcher asked for a signal that is ignored here
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the agent's handler would wait for the end of a collective
    rank = int(os.environ["RANK"])
    if rank == 0:
        SUPERVISOR_LINK.connect(lambda: _say(fd, 0, Heartbeat()), lambda: _is_told_to_leave(fd))
    else:
        SUPERVISOR_LINK.reset()
    try:
        ending = _train(text, fd, rank)
    except Exception as error:
        from sweep.training.outcomes import classify_error, explain_error, find_cause

        ending = Ending(outcome=classify_error(error), error=explain_error(error), cause=find_cause(error))
        _say(fd, rank, ending)
    if ending.outcome != "complete":
        while True:
            signal.pause()
    _leave()


def _train(text: str, fd: int, rank: int) -> Ending:
    import torch
    import torch.distributed as dist

    from sweep.training.loop.trial import run_trial
    from sweep.training.world import World

    task = _decode_trial(text)
    size = task.config.distributed.world_size
    local_size = size // (task.placement.num_nodes if task.placement else 1)
    task = replace(task, threads=max(1, (task.threads or torch.get_num_threads()) // local_size))
    on_gpu = task.device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        task = replace(task, device=_own_gpu(task.device, rank % local_size, local_size))
        torch.cuda.set_device(task.device)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=_COLLECTIVE_SECONDS))
    ending = Ending(outcome="crashed", error="no ending")
    for message in run_trial(task, World(rank, size)):
        if isinstance(message, Ending):
            ending = message
        # where all leave the first one says so, when it has written the checkpoint
        if rank == 0 or (isinstance(message, Ending) and message.outcome not in ("complete", "cancelled")):
            _say(fd, rank, message)
    return ending


def _decode_trial(text: str) -> TrialTask:
    task = decode_task(text.encode())
    assert isinstance(task, TrialTask)
    return task


def _own_gpu(device: str, rank: int, size: int) -> str:
    import torch

    from sweep.config.errors import InputError

    first, count = int(device.partition(":")[2] or 0), torch.cuda.device_count()
    if first + size > count:
        raise InputError(
            f"distributed.world_size = {size} needs {size} GPUs"
            + (f" from {device} on" if first else "")
            + f", and {count} can be seen here; lower it, or train on the CPU with --device cpu."
        )
    return f"cuda:{first + rank}"


def _leave() -> None:
    # in this order: what holds the process group goes before it, and nobody goes before all have arrived
    import torch.distributed as dist

    dist.barrier()
    gc.collect()
    dist.destroy_process_group()


def _is_told_to_leave(fd: int) -> bool:
    with suppress(BlockingIOError), socket.socket(fileno=os.dup(fd)) as channel:
        return bool(channel.recv(len(LEAVE), socket.MSG_DONTWAIT))
    return False


def _say(fd: int, rank: int, message: Message) -> None:
    _send(fd, {"rank": rank, "message": json.loads(encode_message(message))})


def _send(fd: int, news: dict[str, Any]) -> None:
    with suppress(BrokenPipeError), socket.socket(fileno=os.dup(fd)) as channel:
        channel.send(json.dumps(news).encode())
