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
from typing import Any, NoReturn, cast

from sweep.executors.base import Describer, Runner, load_function
from sweep.executors.process.cpu_cores import pin
from sweep.measurement.host_memory import limit_own_data
from sweep.training.parent_death import bind_forks_to_parent, die_with_parent
from sweep.training.supervisor_link import LIFELINE

# When memory runs out the kernel shall take the trial, not the supervisor that records it.
_OUT_OF_MEMORY_SCORE = "500"


def run_child(request: dict[str, Any], message_fd: int, output_fd: int, server_pid: int) -> NoReturn:
    """Does what ``request`` says and exits: code 0, or 1 with a traceback in the output. Never returns."""
    exit_code = 1
    try:
        die_with_parent(server_pid)
        _settle(request["environment"], message_fd, output_fd)
        if request["cores"]:
            pin(request["cores"])  # before anything starts threads, which stay where they began
        for line in _lines(request):
            _write(message_fd, line + b"\n")
        exit_code = 0
    except SystemExit as stop:
        exit_code = stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's handler would raise again
        traceback.print_exc()
        if "task" in request:
            _tell_escaped(message_fd, error)
    finally:
        _flush()
        os._exit(exit_code)  # no clean-up of what the forkserver shares with this process


def _settle(environment: dict[str, str], message_fd: int, output_fd: int) -> None:
    os.setpgid(0, 0)  # so that it can be killed with all that it starts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    LIFELINE.connect(lambda: _beat(message_fd))
    signal.signal(signal.SIGUSR1, lambda _number, _frame: LIFELINE.ask_to_leave())
    bind_forks_to_parent()
    os.dup2(output_fd, 1)
    os.dup2(output_fd, 2)
    os.set_inheritable(message_fd, False)
    os.close(output_fd)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # what a killed child printed shall be in the file
    faulthandler.enable()
    os.environ.update(environment)
    random.seed()
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_OUT_OF_MEMORY_SCORE)


def _lines(request: dict[str, Any]) -> Iterator[bytes]:
    """The answer, one JSON document at a time; JSON holds no bare line end."""
    from sweep.records.messages import decode_task, encode_message

    function = load_function(request["call"])
    if "device" in request:
        yield json.dumps(cast(Describer, function)(request["device"], request["threads"])).encode()
        return
    if plugin := json.loads(request["task"])["plugin"]:
        from sweep.training.plugins import load_plugin

        load_plugin(plugin)  # first: the task's configuration validates itself, and may use its names
    task = decode_task(request["task"])
    if task.memory_limit_bytes is not None and task.device == "cpu":  # a GPU's allocator is limited by its user
        limit_own_data(task.memory_limit_bytes)
    for message in cast(Runner, function)(task):
        yield encode_message(message)


def _tell_escaped(fd: int, error: BaseException) -> None:
    from sweep.executors.uncaught import ending_of_escaped
    from sweep.records.messages import encode_message

    with suppress(OSError):
        _write(fd, encode_message(ending_of_escaped(error)) + b"\n")


def _beat(fd: int) -> None:
    from sweep.records.messages import Heartbeat, encode_message

    writable = select.poll()
    writable.register(fd, select.POLLOUT)
    if writable.poll(0):  # a supervisor that does not read must not hold up a step
        _write(fd, encode_message(Heartbeat()) + b"\n")


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
