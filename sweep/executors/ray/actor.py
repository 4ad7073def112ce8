"""The actor on each slot of a Ray cluster for the time of a study: a process executor with its own forkserver.

A trial is a child process as it is without Ray, because a new Ray worker for each trial would take a second or more.
Ray only transports tasks and messages, as JSON.
"""

import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from sweep.executors.base import Executor
from sweep.executors.devices import list_devices
from sweep.executors.monitored import MonitoredExecutor, make_source
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.executors.ray.ray_protocol import ActorConfig
from sweep.measurement.monitor import Monitor
from sweep.records.messages import Ending, Evaluation, Message, encode_message
from sweep.records.source_digest import digest_code
from sweep.training.plugins import receive_task

_POLL_SECONDS = 0.05  # how long a call waits, at most, while a trial trains
_WAIT_SECONDS = 2.0  # how long a call for messages waits: Ray ends an actor between calls when its driver is gone
_DESERTED_SECONDS = 20.0  # without such a call the driver is gone, or this machine is cut off from it
_LINGER_SECONDS = 0.25  # collects messages, so that a thousand actors do not send every step of each


@final
class TrialActor:
    """One slot; ``threads`` is its share of the machine's cores, None all of them. Its methods are for Ray to call."""

    def __init__(self, config: ActorConfig, threads: int | None) -> None:
        self._config = config
        self._calls: queue.SimpleQueue[tuple[Callable[[Executor], Any], Future[Any]]] = queue.SimpleQueue()
        self._messages: list[tuple[int, str]] = []
        self._has_messages = threading.Condition()
        self._is_urgent = False
        self._deserted_seconds = 0.0
        self._keys: dict[int, int] = {}  # of the attempts under way, by number of the trial
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to one
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(threads)
        sys.path += [entry for entry in config.path if entry not in sys.path]
        with suppress(OSError):
            os.chdir(config.folder)
        # one thread for all that the executor does: the forkserver dies with the thread that started it
        threading.Thread(target=self._serve, daemon=True).start()
        threading.Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()

    def describe(self) -> dict[str, Any]:
        """``machine`` as :meth:`Executor.describe`, ``code`` as :func:`compute_code_version`."""
        return {"machine": self._call(lambda executor: executor.describe()), "code": compute_code_version()}

    def start(self, key: int, task: str) -> None:
        """Begins an attempt at the encoded ``task``, whose messages carry ``key``."""
        decoded = receive_task(task.encode())

        def start_task(executor: Executor) -> None:
            executor.start(decoded)
            self._keys[decoded.number] = key

        self._call(start_task)

    def preempt(self, number: int) -> None:
        """As :meth:`Executor.preempt`."""
        self._call(lambda executor: executor.preempt(number))

    def stop(self, number: int) -> None:
        """Ends an attempt; when this returns, its process is gone."""

        def stop_task(executor: Executor) -> None:
            executor.stop(number)
            self._keys.pop(number, None)

        self._call(stop_task)

    def take_messages(self) -> list[tuple[int, str]]:
        """Keys and encoded messages; waits a while for the first, and shortly for more unless one is urgent."""
        with self._has_messages:
            if self._has_messages.wait_for(lambda: bool(self._messages), _WAIT_SECONDS):
                self._has_messages.wait_for(lambda: self._is_urgent, _LINGER_SECONDS)
            messages, self._messages, self._is_urgent = self._messages, [], False
        self._deserted_seconds = 0.0
        return messages

    def _call(self, function: Callable[[Executor], Any]) -> Any:
        done: Future[Any] = Future()
        self._calls.put((function, done))
        return done.result()

    def _serve(self) -> None:
        try:
            inner = ProcessExecutor([self._device()], self._log_dir(), self._config.program)
            with MonitoredExecutor(inner, Monitor(make_source), {}) as executor:
                while self._deserted_seconds < _DESERTED_SECONDS:
                    self._serve_once(executor)
        finally:
            os._exit(1)  # an actor that cannot do its work counts as lost

    def _serve_once(self, executor: Executor) -> None:
        began = time.monotonic()
        self._execute_call(executor)
        for number, message in executor.poll(_POLL_SECONDS):
            self._append(number, message)
        # at most one wait: a machine that was suspended could not receive calls meanwhile
        self._deserted_seconds += min(time.monotonic() - began, _WAIT_SECONDS)

    def _execute_call(self, executor: Executor) -> None:
        try:
            # waits only if no trial runs
            function, done = self._calls.get(timeout=0.0 if self._keys else _WAIT_SECONDS)
        except queue.Empty:
            return
        try:
            done.set_result(function(executor))
        except Exception as error:
            done.set_exception(error)

    def _append(self, number: int, message: Message) -> None:
        key = self._keys[number]
        if isinstance(message, Ending):
            del self._keys[number]
            message = replace(message, training_spans=())  # of this machine's clock
        with self._has_messages:
            self._messages.append((key, encode_message(message).decode()))
            self._is_urgent |= isinstance(message, Evaluation | Ending)
            self._has_messages.notify_all()

    def _device(self) -> str:
        # Ray hides all other GPUs from a process
        return ",".join(list_devices()[: self._config.world_size]) or "cpu"

    def _log_dir(self) -> Path | None:
        folder = Path(self._config.log_dir) if self._config.log_dir else None
        try:
            if folder is not None:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # this machine does not share the supervisor's files
            return None
        return folder


def _exit_with(raylet_pid: int) -> None:
    """Ends this process with Ray's on this machine; Ray itself misses that if init is not process 1."""
    gone = select.poll()
    gone.register(os.pidfd_open(raylet_pid), select.POLLIN)
    gone.poll()
    os._exit(1)


def compute_code_version() -> str:
    """A digest of the code that a trial's results depend on; must be the same on all machines."""
    return digest_code()[:12]
