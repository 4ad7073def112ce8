"""Trains on a Ray cluster: on every device of it stands an actor, which has the trials as children of its own.

The supervisor stays the one that decides and records: Ray restarts nothing and tries nothing again. Nor is Ray imported
here, for it ends the process that uses it when a cluster is lost; see :mod:`sweep.executors.ray.guard`.
"""

import json
import logging
import os
import re
import sys
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, final

from sweep.config.errors import InputError, shown
from sweep.executors.base import DESCRIBER, RUNNER, Executor
from sweep.executors.child_output import OutputFile
from sweep.executors.devices import available_devices, pinned_environment
from sweep.executors.process.preload import MODULES
from sweep.executors.ray.actor import Post
from sweep.executors.ray.driver_link import RayLink
from sweep.records.attempt_causes import CLUSTER_LOST
from sweep.records.messages import Ending, Message, Task, TrialTask, decode_message, encode_task

_log = logging.getLogger(__name__)
_READY_SECONDS = 600.0  # to the first actor that can train; machines may import torch from a cold network disk
_STOP_SECONDS = 40.0  # an actor kills what does not heed SIGTERM
_WAIT_SECONDS = 1.0
MOST_GPUS = 64  # of one machine
_ADDRESS = re.compile(r"auto|(ray://)?[\w.-]+:\d+")
_LEAST_VERSION = (2, 52)  # before, a web page could run code on a cluster (CVE-2025-62593)


def check_ray(address: str | None) -> None:
    """Raises ``InputError`` where Ray is not there or too old, or ``address`` is none."""
    if find_spec("ray") is None:
        raise InputError("--executor ray: Ray is not installed; pip install 'batch-sweep[ray]'.")
    if tuple(int(part) for part in version("ray").split(".")[:2]) < _LEAST_VERSION:
        raise InputError(f"--executor ray: Ray {version('ray')} is not safe; pip install 'ray>=2.52'.")
    if address is not None and not _ADDRESS.fullmatch(address):
        raise InputError(
            f"--address {shown(address)}: give host:port, ray://host:port or auto; a token belongs into the file that "
            "RAY_AUTH_TOKEN_PATH names."
        )


@final
class RayExecutor(Executor):
    """One trial at a time for each place of the cluster at ``address``: ``world_size`` GPUs of one machine, or one CPU
    core where it has no GPU or ``device`` is ``cpu``. Without an address a cluster of this machine's ``device`` (as
    ``--device`` names it) and ``num_cpus`` cores is started, on loopback, and ended with this object.

    All places are of one device class, that of most; others are left out with a warning. Files are named as by the
    supervisor on every machine: a trial goes on from its checkpoint on another one only where they share them.
    The other arguments are those of :class:`~sweep.executors.process.process_executor.ProcessExecutor`.
    """

    def __init__(
        self,
        device: str = "auto",
        log_dir: Path | None = None,
        world_size: int = 1,
        address: str | None = None,
        num_cpus: int | None = None,
        runner: str = RUNNER,
        describer: str = DESCRIBER,
        modules: tuple[str, ...] = MODULES,
    ) -> None:
        gpus = _gpus_here(device, world_size) if address is None else []
        self._log_dir = log_dir.absolute() if log_dir else None
        folder = str(self._log_dir) if self._log_dir else None
        path = tuple(str(Path(entry).absolute()) for entry in sys.path)
        self._terms: dict[str, Any] = {
            "address": address,
            "num_cpus": num_cpus or len(os.sched_getaffinity(0)),
            "num_gpus": len(gpus),
            "wants_gpus": bool(gpus) if address is None else {"cpu": False, "cuda": True}.get(device),
            "device_class": None,
            "post": asdict(Post(runner, describer, modules, folder, str(Path.cwd()), path, world_size)),
        }
        self._environment = pinned_environment(",".join(gpus))
        self._slots = 0
        self._machine: dict[str, Any] = {}
        self._num_attempts = 0
        self._running: dict[int, int] = {}  # numbers of the trials, by keys of the attempts
        self._news: list[tuple[int, Message]] = []
        self._refused = self._lost_words = ""
        self._link: RayLink | None = self._launch()  # at once: the supervisor has other things to do

    @property
    def slots(self) -> int:
        self._await_places()
        return self._slots

    @property
    def guard_pid(self) -> int | None:
        """The process that everything of Ray's on this machine descends from; None while there is none."""
        return self._link.process.pid if self._link else None

    def describe(self) -> dict[str, Any]:
        self._await_places()
        return self._machine

    def start(self, task: Task) -> None:
        self._listen(0.0)
        if task.number in self._running.values() or len(self._running) >= self.slots:
            running = sorted(self._running.values())
            raise RuntimeError(f"trial {task.number} cannot start: trials {running} are running")
        if self._link is None:
            self._link = self._launch()
        self._num_attempts += 1
        self._running[self._num_attempts] = task.number
        encoded = encode_task(_with_absolute_paths(task)).decode()
        self._link.send({"start": self._num_attempts, "number": task.number, "task": encoded})

    def devices_of(self, number: int) -> tuple[str, ...]:
        del number  # none of this machine's: the actor watches what it trains on
        return ()

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        deadline = time.monotonic() + timeout_seconds
        self._listen(0.0)
        while not self._news and self._running and (left := deadline - time.monotonic()) > 0:
            self._listen(min(left, _WAIT_SECONDS))
        news, self._news = self._news, []
        return news

    def ask_to_leave(self, number: int) -> None:
        for key in self._keys_of(number):
            self._send({"leave": key})

    def stop(self, number: int) -> None:
        for key in self._keys_of(number):
            self._send({"stop": key})
            deadline = time.monotonic() + _STOP_SECONDS
            while key in self._running and time.monotonic() < deadline:
                self._listen(_WAIT_SECONDS)
            self._running.pop(key, None)
        self._news = [(sender, message) for sender, message in self._news if sender != number]

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None
        self._running.clear()
        self._news.clear()

    def _launch(self) -> RayLink:
        output = OutputFile(self._log_dir / "ray.log" if self._log_dir else None)
        return RayLink({**self._terms, "device_class": self._machine.get("device")}, self._environment, output)

    def _await_places(self) -> None:
        deadline = time.monotonic() + _READY_SECONDS
        while not self._slots:
            if self._refused:
                raise InputError(self._refused)
            if self._link is None or time.monotonic() > deadline:
                raise RuntimeError(f"no actor of the Ray cluster is ready: {self._lost_words}")
            self._listen(_WAIT_SECONDS)

    def _keys_of(self, number: int) -> list[int]:
        return [key for key, running in self._running.items() if running == number]

    def _send(self, request: dict[str, Any]) -> None:
        if self._link is not None:
            self._link.send(request)

    def _listen(self, timeout_seconds: float) -> None:
        if self._link is None:
            return
        lines = self._link.read_lines(timeout_seconds)
        for line in lines or ():
            self._hear(json.loads(line))
        if lines is None:
            self._lose_cluster()

    def _hear(self, said: dict[str, Any]) -> None:
        if "slots" in said:
            self._slots, self._machine = said["slots"], said["machine"]
        elif "notice" in said:
            _log.warning("%s", said["notice"])
        elif "refused" in said:
            self._refused = said["refused"]
        elif "stopped" in said:
            self._running.pop(said["stopped"], None)
        elif "lost" in said and said["lost"] in self._running:
            ending = Ending(outcome="crashed", error=said["error"], cause=said["cause"])
            self._news.append((self._running.pop(said["lost"]), ending))
        elif said.get("from") in self._running:
            self._hear_trial(said["from"], said["messages"])

    def _hear_trial(self, key: int, messages: list[str]) -> None:
        for text in messages:
            message = decode_message(text.encode())
            self._news.append((self._running[key], message))
            if isinstance(message, Ending):
                del self._running[key]

    def _lose_cluster(self) -> None:
        """The driver has ended and all that it held on this machine; the next start makes a new one."""
        assert self._link is not None
        words = f"the Ray cluster was lost: {self._refused}\n{self._link.output.tail()}".strip()
        self._link.close()
        self._link, self._lost_words = None, words
        ending = Ending(outcome="crashed", error=words, cause=CLUSTER_LOST)
        self._news += [(number, ending) for number in self._running.values()]
        self._running.clear()


def _gpus_here(device: str, world_size: int) -> list[str]:
    """The GPUs of this machine that ``device`` names; ``cuda`` is as many as one trial needs."""
    present = [name for name in available_devices() if name != "cpu"]
    named = {"auto": present, "cuda": present[:world_size], "cpu": []}
    return named.get(device, [device])


def _with_absolute_paths(task: Task) -> Task:
    def absolute(path: str | None) -> str | None:
        return None if path is None else str(Path(path).absolute())

    task = replace(task, plugin=absolute(task.plugin))
    if not isinstance(task, TrialTask):
        return task
    return replace(task, checkpoint_dir=absolute(task.checkpoint_dir), weights_path=absolute(task.weights_path))
