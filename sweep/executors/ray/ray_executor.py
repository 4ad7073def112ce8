"""Trains on a Ray cluster: each of its devices has an actor, which runs the trials as children of its own.

Only the supervisor decides and records: Ray restarts and retries nothing. Ray is not imported here either, because it
ends the process that uses it when a cluster is lost; see :mod:`sweep.executors.ray.guard`.
"""

import logging
import os
import re
import socket
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from sweep.config.errors import InputError, hide_credentials
from sweep.executors.base import PROGRAM, PollingExecutor, WorkerProgram
from sweep.executors.devices import list_devices, make_pinned_environment, select_gpus
from sweep.executors.helper_process import LineBuffer, OutputFile, end_process, receive_data, start_helper
from sweep.executors.ray import ray_protocol as protocol
from sweep.records.attempt_causes import CLUSTER_LOST
from sweep.records.messages import Ending, Task, TrialTask, decode_message, encode_task

_log = logging.getLogger(__name__)
_READY_SECONDS = 600.0  # to the first actor that can train; machines may import torch from a cold network disk
_STOP_SECONDS = 40.0  # an actor needs that for what ignores SIGTERM
_WAIT_SECONDS = 1.0
_CLOSE_SECONDS = 10.0
_READ_BYTES = 1 << 20
_MAX_LINE_BYTES = 1 << 30
_MAX_FOLDER_CHARACTERS = 40  # the name of a socket has 107 bytes at most, of which Ray requires more than half
MAX_GPUS = 64  # of one machine
_ADDRESS = re.compile(r"auto|(ray://)?[\w.-]+:\d+")
_MIN_VERSION = (2, 52)  # before, a web page could run code on a cluster (CVE-2025-62593)


def check_ray(address: str | None) -> None:
    """Raises ``InputError`` if Ray is missing or too old, or ``address`` is malformed."""
    if find_spec("ray") is None:
        raise InputError("--executor ray: Ray is not installed; pip install 'batch-sweep[ray]'.")
    if tuple(int(part) for part in version("ray").split(".")[:2]) < _MIN_VERSION:
        raise InputError(f"--executor ray: Ray {version('ray')} is not safe; pip install 'ray>=2.52'.")
    if address is not None and not _ADDRESS.fullmatch(address):
        raise InputError(
            f"--address {hide_credentials(address)}: give host:port, ray://host:port or auto; put a token into the "
            "file that RAY_AUTH_TOKEN_PATH names."
        )


@final
class DriverLink:
    """The process that uses Ray and its guard, both with ``environment``: started, and requests and answers."""

    def __init__(self, terms: protocol.ClusterTerms, environment: dict[str, str], output: OutputFile) -> None:
        self.output = output
        self._lines = LineBuffer(_MAX_LINE_BYTES)
        folder = _make_cluster_folder()
        function = "sweep.executors.ray.guard:run_guard"
        self._process, self._control = start_helper(function, folder, socket.SOCK_STREAM, output, environment)
        self.send(terms)

    @property
    def guard_pid(self) -> int:
        return self._process.pid

    def send(self, request: protocol.Request) -> None:
        with suppress(BrokenPipeError, ConnectionResetError):  # it is gone, which the next read finds out
            self._control.sendall(protocol.REQUESTS.encode(request) + b"\n")

    def read_answers(self, timeout_seconds: float) -> list[protocol.Answer] | None:
        """The answers that have arrived; waits for the first at most this long. None when no more will come."""
        data = receive_data(self._control, _READ_BYTES, timeout_seconds)
        if data is None:
            return []
        return [protocol.ANSWERS.decode(line) for line in self._lines.take_lines(data)] if data else None

    def close(self) -> None:
        """Ends all processes of Ray that were started from here, and waits for their end."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        end_process(self._process, _CLOSE_SECONDS)
        self.output.close()


@final
class RayExecutor(PollingExecutor[int]):
    """One trial at a time on each slot of the cluster at ``address``: ``world_size`` GPUs of one machine, or one CPU
    core if it has no GPU or ``device`` is ``cpu``. Without an address a cluster of this machine's ``device`` (as
    ``--device`` names it) and ``num_cpus`` cores is started, on loopback, and ended with this object.

    All slots are of one device class, the most frequent one; others are excluded with a warning. Files have the same
    names on every machine: a trial resumes from its checkpoint on another one only if they share them.
    """

    def __init__(
        self,
        device: str = "auto",
        log_dir: Path | None = None,
        world_size: int = 1,
        address: str | None = None,
        num_cpus: int | None = None,
        program: WorkerProgram = PROGRAM,
    ) -> None:
        super().__init__()  # of an attempt its key is kept
        gpus = select_gpus(device, world_size, list_devices()) if address is None else []
        self._log_dir = log_dir.absolute() if log_dir else None
        self._terms = protocol.ClusterTerms(
            address=address,
            num_cpus=num_cpus or len(os.sched_getaffinity(0)),
            num_gpus=len(gpus),
            uses_gpus=bool(gpus) if address is None else {"cpu": False, "cuda": True}.get(device),
            device_class=None,
            actor=protocol.ActorConfig(
                program=program,
                log_dir=str(self._log_dir) if self._log_dir else None,
                folder=str(Path.cwd()),
                path=tuple(str(Path(entry).absolute()) for entry in sys.path),
                world_size=world_size,
            ),
        )
        self._environment = make_pinned_environment(",".join(gpus))
        self._num_slots = self._num_attempts = 0
        self._machine: dict[str, Any] = {}
        self._refused_error = self._lost_error = ""
        self._link: DriverLink | None = self._launch()  # at once: the supervisor has other things to do

    @property
    def slots(self) -> int:
        self._await_slots()
        return self._num_slots

    @property
    def guard_pid(self) -> int | None:
        """The process that all processes of Ray on this machine descend from; None while there is none."""
        return self._link.guard_pid if self._link else None

    def describe(self) -> dict[str, Any]:
        self._await_slots()
        return self._machine

    def start(self, task: Task) -> None:
        self._collect(0.0)
        self._check_start(task.number)
        if self._link is None:
            self._link = self._launch()
        self._num_attempts += 1
        self._running[task.number] = self._num_attempts
        encoded = encode_task(_with_absolute_paths(task)).decode()
        self._link.send(protocol.StartAttempt(self._num_attempts, task.number, encoded))

    def preempt(self, number: int) -> None:
        if number in self._running and self._link is not None:
            self._link.send(protocol.PreemptAttempt(self._running[number]))

    def stop(self, number: int) -> None:
        if number in self._running and self._link is not None:
            self._link.send(protocol.StopAttempt(self._running[number]))
            deadline = time.monotonic() + _STOP_SECONDS
            while number in self._running and time.monotonic() < deadline:
                self._collect(_WAIT_SECONDS)
        self._running.pop(number, None)
        self._drop_messages(number)

    def close(self) -> None:
        self._is_closed = True
        if self._link is not None:
            self._link.close()
            self._link = None
        self._running.clear()
        self._messages.clear()

    def _launch(self) -> DriverLink:
        output = OutputFile(self._log_dir / "ray.log" if self._log_dir else None)
        terms = replace(self._terms, device_class=self._machine.get("device"))
        return DriverLink(terms, self._environment, output)

    def _await_slots(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not self._num_slots:
            if self._refused_error:
                raise InputError(self._refused_error)
            if self._link is None or time.monotonic() > deadline:
                raise RuntimeError(f"no actor of the Ray cluster is ready: {self._lost_error}")
            self._collect(_WAIT_SECONDS)

    def _collect(self, timeout_seconds: float) -> None:
        if self._link is None:
            return
        answers = self._link.read_answers(min(timeout_seconds, _WAIT_SECONDS))
        for answer in answers or ():
            self._receive(answer)
        if answers is None:
            self._lose_cluster(self._link)

    def _receive(self, answer: protocol.Answer) -> None:
        if isinstance(answer, protocol.SlotsChanged):
            self._num_slots, self._machine = answer.num_slots, answer.machine
        elif isinstance(answer, protocol.Notice):
            _log.warning("%s", answer.text)
        elif isinstance(answer, protocol.ClusterRefused):
            self._refused_error = answer.error
        else:
            # there is no number if the attempt was given up meanwhile
            for number in [number for number, key in self._running.items() if key == answer.key]:
                self._receive_of_attempt(number, answer)

    def _receive_of_attempt(self, number: int, answer: protocol.AttemptMessages | protocol.AttemptStopped) -> None:
        texts = answer.messages if isinstance(answer, protocol.AttemptMessages) else ()
        messages = [decode_message(text.encode()) for text in texts]
        self._messages += [(number, message) for message in messages]
        if not messages or isinstance(messages[-1], Ending):
            del self._running[number]

    def _lose_cluster(self, link: DriverLink) -> None:
        """The driver has ended, with all that it held on this machine; the next start makes a new one."""
        self._lost_error = f"the Ray cluster was lost: {self._refused_error}\n{link.output.tail()}".strip()
        link.close()
        self._link = None
        ending = Ending(outcome="crashed", error=self._lost_error, cause=CLUSTER_LOST)
        self._messages += [(number, ending) for number in self._running]
        self._running.clear()


def _with_absolute_paths(task: Task) -> Task:
    def absolute(path: str | None) -> str | None:
        return None if path is None else str(Path(path).absolute())

    task = replace(task, plugin=absolute(task.plugin))
    if not isinstance(task, TrialTask):
        return task
    return replace(task, checkpoint_dir=absolute(task.checkpoint_dir), weights_path=absolute(task.weights_path))


def _make_cluster_folder() -> str:
    """A new folder for the files of a cluster, closed to other users."""
    usual = tempfile.gettempdir()
    is_short = len(usual) + len("/sweep-ray-12345678") <= _MAX_FOLDER_CHARACTERS
    return tempfile.mkdtemp(prefix="sweep-ray-", dir=usual if is_short else "/tmp")  # nosec B108 # a new folder
