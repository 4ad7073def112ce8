"""What stands on a device of a Ray cluster for as long as a study runs: a process executor with its own forkserver.

A trial is a child here as it is without Ray; a fresh worker of Ray's for each would take a second or more. Ray only
carries the words: tasks and messages, as JSON.
"""

import json
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from sweep.executors.base import Executor
from sweep.executors.devices import available_devices
from sweep.executors.monitored import MonitoredExecutor, source_of
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.measurement.monitor import Monitor
from sweep.records.content_key import code_digest
from sweep.records.messages import Ending, Evaluation, Message, decode_task, encode_message

_POLL_SECONDS = 0.05  # how long a call waits, at most, while a trial trains
_NEWS_SECONDS = 2.0  # how long a call for news waits: Ray ends an actor between calls when its driver is gone
_DESERTED_SECONDS = 20.0  # without such a call nobody wants this actor any more: its machine may be cut off
_LINGER_SECONDS = 0.25  # so that a thousand actors do not report every step of each


@final
@dataclass(frozen=True)
class Post:
    """What every actor of a study is told. ``world_size`` is 0 on a CPU, else the GPUs that a trial has."""

    runner: str
    describer: str
    modules: tuple[str, ...]
    log_dir: str | None
    folder: str  # of the supervisor, where relative paths begin
    path: tuple[str, ...]  # where the supervisor finds modules
    world_size: int = 0


@final
class TrialActor:
    """One slot; ``threads`` is its share of the machine's cores, None all of them. Its methods are for Ray to call."""

    def __init__(self, post: Post, threads: int | None) -> None:
        self._post = post
        self._calls: queue.SimpleQueue[tuple[Callable[[Executor], Any], Future[Any]]] = queue.SimpleQueue()
        self._said: list[tuple[int, str]] = []
        self._has_more = threading.Condition()
        self._is_urgent = False
        self._unasked_seconds = 0.0
        self._keys: dict[int, int] = {}  # of the attempts under way, by number of the trial
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray's choice: one
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(threads)
        sys.path += [entry for entry in post.path if entry not in sys.path]
        with suppress(OSError):
            os.chdir(post.folder)
        # one thread for all that the executor does: the forkserver dies with the thread that started it
        threading.Thread(target=self._serve, daemon=True).start()
        threading.Thread(target=_die_with, args=(os.getppid(),), daemon=True).start()

    def describe(self) -> dict[str, Any]:
        """``machine`` as :meth:`Executor.describe`, ``code`` as :func:`code_version`."""
        return {"machine": self._call(lambda executor: executor.describe()), "code": code_version()}

    def start(self, key: int, task: str) -> None:
        """Begins an attempt at the encoded ``task``, whose messages carry ``key``."""
        if plugin := json.loads(task)["plugin"]:
            from sweep.training.plugins import load_plugin

            load_plugin(plugin)  # first: the task's configuration validates itself, and may use its names
        given = decode_task(task.encode())

        def begin(executor: Executor) -> None:
            executor.start(given)
            self._keys[given.number] = key

        self._call(begin)

    def ask_to_leave(self, number: int) -> None:
        """As :meth:`Executor.ask_to_leave`."""
        self._call(lambda executor: executor.ask_to_leave(number))

    def stop(self, number: int) -> None:
        """Ends an attempt; when this returns, its process is gone."""

        def end(executor: Executor) -> None:
            executor.stop(number)
            self._keys.pop(number, None)

        self._call(end)

    def news(self) -> list[tuple[int, str]]:
        """Keys and encoded messages; waits a while for the first, and a moment for others unless one is urgent."""
        with self._has_more:
            if self._has_more.wait_for(lambda: bool(self._said), _NEWS_SECONDS):
                self._has_more.wait_for(lambda: self._is_urgent, _LINGER_SECONDS)
            said, self._said, self._is_urgent = self._said, [], False
        self._unasked_seconds = 0.0
        return said

    def _call(self, function: Callable[[Executor], Any]) -> Any:
        done: Future[Any] = Future()
        self._calls.put((function, done))
        return done.result()

    def _serve(self) -> None:
        try:
            inner = ProcessExecutor(
                [self._device()], self._log_dir(), self._post.runner, self._post.describer, tuple(self._post.modules)
            )
            with MonitoredExecutor(inner, Monitor(source_of), {}) as executor:
                while self._unasked_seconds < _DESERTED_SECONDS:
                    began = time.monotonic()
                    self._answer(executor)
                    for number, message in executor.poll(_POLL_SECONDS):
                        self._tell(number, message)
                    # no more than a wait: a machine that was suspended has asked as little as it was asked
                    self._unasked_seconds += min(time.monotonic() - began, _NEWS_SECONDS)
        finally:
            os._exit(1)  # an actor that cannot do its work is a lost one

    def _answer(self, executor: Executor) -> None:
        """Does what was asked; waits for that where no trial runs."""
        try:
            function, done = self._calls.get(timeout=0.0 if self._keys else _NEWS_SECONDS)
        except queue.Empty:
            return
        try:
            done.set_result(function(executor))
        except Exception as error:
            done.set_exception(error)

    def _tell(self, number: int, message: Message) -> None:
        key = self._keys[number]
        if isinstance(message, Ending):
            del self._keys[number]
            message = replace(message, training_spans=())  # by a clock that no other machine has
        with self._has_more:
            self._said.append((key, encode_message(message).decode()))
            self._is_urgent |= isinstance(message, Evaluation | Ending)
            self._has_more.notify_all()

    def _device(self) -> str:
        # Ray shows a process no GPU but those that it was given
        return ",".join(available_devices()[: self._post.world_size]) or "cpu"

    def _log_dir(self) -> Path | None:
        folder = self._post.log_dir
        try:
            if folder is not None:
                Path(folder).mkdir(parents=True, exist_ok=True)
        except OSError:  # this machine does not share the supervisor's files
            return None
        return Path(folder) if folder else None


def _die_with(raylet_pid: int) -> None:
    """Ray's own look at its machine's process misses that it is gone where there is another init than process 1."""
    gone = select.poll()
    gone.register(os.pidfd_open(raylet_pid), select.POLLIN)
    gone.poll()
    os._exit(1)


def code_version() -> str:
    """What of this program's code a trial's results depend on; must be the same on all machines."""
    return code_digest()[:12]
