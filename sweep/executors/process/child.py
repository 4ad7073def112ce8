"""The inside of a trial's process, from the fork to its end."""

import faulthandler
import json
import os
import random
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from pkgutil import resolve_name
from typing import NoReturn, cast

from sweep.executors.base import Describer, Runner, make_uncaught_ending
from sweep.executors.process.cpu_cores import pin_process
from sweep.executors.process.forkserver_protocol import ChildRequest
from sweep.measurement.host_memory import limit_own_data
from sweep.records.messages import Heartbeat, encode_message
from sweep.training.plugins import receive_task
from sweep.training.subprocesses import bind_forks_to_parent, die_with_parent, exit_at_once
from sweep.training.supervisor_link import SUPERVISOR_LINK

# When memory runs out the kernel shall kill the trial, not the supervisor that records it.
_OUT_OF_MEMORY_SCORE = "500"


def run_child(request: ChildRequest, message_fd: int, output_fd: int, server_pid: int) -> NoReturn:
    """Carries out ``request`` and exits: code 0, or 1 with a traceback in the output. Never returns."""
    exit_code = 1
    try:
        die_with_parent(server_pid)
        _set_up_process(request.environment, message_fd, output_fd)
        if request.cores:
            pin_process(request.cores)  # before anything starts threads, which stay on the cores of their start
        for line in _generate_lines(request):
            _write(message_fd, line + b"\n")
        exit_code = 0
    except SystemExit as stop:
        exit_code = stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise again
        traceback.print_exc()
        if request.task is not None:
            with suppress(OSError):
                _write(message_fd, encode_message(make_uncaught_ending(error)) + b"\n")
    finally:
        exit_at_once(exit_code)


def _set_up_process(environment: dict[str, str], message_fd: int, output_fd: int) -> None:
    os.setpgid(0, 0)  # so that it can be killed with all that it starts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    SUPERVISOR_LINK.connect(lambda: _send_heartbeat(message_fd))
    signal.signal(signal.SIGUSR1, lambda _number, _frame: SUPERVISOR_LINK.preempt())
    bind_forks_to_parent()
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.set_inheritable(message_fd, False)
    os.close(output_fd)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # the output of a killed child must be in the file
    faulthandler.enable()
    os.environ.update(environment)
    random.seed()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY_SCORE)


def _generate_lines(request: ChildRequest) -> Iterator[bytes]:
    """The answer, one JSON document at a time; JSON contains no bare line end."""
    function = resolve_name(request.function)
    if request.task is None:
        yield json.dumps(cast(Describer, function)(request.device, request.threads)).encode()
        return
    task = receive_task(request.task.encode())
    if task.memory_limit_bytes is not None and task.device == "cpu":  # a GPU's allocator is limited by the runner
        limit_own_data(task.memory_limit_bytes)
    for message in cast(Runner, function)(task):
        yield encode_message(message)


def _send_heartbeat(fd: int) -> None:
    writable = select.poll()
    writable.register(fd, select.POLLOUT)
    if writable.poll(0):  # a supervisor that does not read must not block a step
        _write(fd, encode_message(Heartbeat()) + b"\n")


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
