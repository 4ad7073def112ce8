"""Trains on a Ray cluster: each of its devices has an actor, which runs the trials as children of its own.

Ray restarts and retries nothing, and transports tasks and messages as JSON. A trial is a child process, because a new
Ray worker for each trial would take a second or more. When the cluster is lost the run ends, to be resumed on another.
"""

import logging
import os
import re
import secrets
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, final

import psutil

from sweep.config.errors import RUN_AGAIN, InputError, StoppedError, hide_credentials
from sweep.executors.base import PROGRAM, PollingExecutor, WorkerProgram
from sweep.executors.devices import list_devices, make_pinned_environment, select_gpus
from sweep.executors.monitored import MonitoredExecutor, make_source
from sweep.executors.process import ProcessExecutor
from sweep.measurement.monitor import Monitor
from sweep.records.inputs import digest_code
from sweep.records.messages import (
    ACTOR_LOST,
    NODE_LOST,
    Ending,
    Heartbeat,
    Task,
    decode_message,
    encode_message,
    encode_task,
)
from sweep.training.processes import receive_task

MAX_GPUS = 64  # of one machine
_READY_SECONDS = 600.0  # to the first actor that can train; machines may import torch from a cold network disk
_SETTLE_SECONDS = 20.0  # from the first actor that is ready to the choice of a device class
_FILL_SECONDS = 5.0  # between two looks for nodes that have come or gone
_WAIT_SECONDS = 0.5  # for answers, between two looks whether the cluster is there
_CALL_SECONDS = 60.0  # an actor needs most of it to end a process that ignores SIGTERM
_POLL_SECONDS = 0.5  # how long an actor waits for messages, and for other calls
_ADDRESS = re.compile(r"auto|(ray://)?[\w.-]+:\d+")
_MIN_VERSION = (2, 52)  # before, a web page could run code on a cluster (CVE-2025-62593)
_STORE_BYTES = 80 << 20  # the minimum of Ray; messages are small
_MAX_FOLDER_CHARACTERS = 40  # the name of a socket has 107 bytes at most, of which Ray requires more than half
_OWN_CLUSTER = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # without it Ray replaces 127.0.0.1 by the machine's address, which is open to others
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # nobody else gets in; Ray reads a token once, and would otherwise keep one in a file that others can read
    "RAY_AUTH_MODE": "token",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
}
# Ray would end this process after a minute without the cluster's head, before the user was told.
_JOINED_CLUSTER = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_gcs_rpc_server_reconnect_timeout_s": "600"}
_VITAL = ("raylet", "gcs_server")  # processes of Ray without which a cluster is lost
_log = logging.getLogger(__name__)


class ClusterLostError(StoppedError):
    """The cluster was lost, with all attempts that ran on it."""


def check_ray(address: str | None) -> None:
    """Raises ``InputError`` if Ray is missing or too old, or ``address`` is malformed."""
    if find_spec("ray") is None:
        raise InputError("executor ray: Ray is not installed; pip install 'batch-sweep[ray]'.")
    if tuple(int(part) for part in version("ray").split(".")[:2]) < _MIN_VERSION:
        raise InputError(f"executor ray: Ray {version('ray')} is not safe; pip install 'ray>=2.52'.")
    if address is not None and not _ADDRESS.fullmatch(address):
        raise InputError(
            f"address = {hide_credentials(address)}: give host:port, ray://host:port or auto; put a token into the "
            "file that RAY_AUTH_TOKEN_PATH names."
        )


# ---------------------------------------------------------------------- the supervisor's side


class _Node(NamedTuple):
    """A machine of the cluster."""

    key: str
    num_slots: int
    num_cpus: int


@final
@dataclass(eq=False, kw_only=True)
class _Slot:
    """An actor on a device, or on as many of them as a trial requires."""

    node: str
    actor: Any
    machine: dict[str, Any] = field(default_factory=dict)  # empty until it has described itself
    trial: int | None = None  # the number of the one that it runs


@final
class RayExecutor(PollingExecutor[str]):
    """One trial at a time on each slot of the cluster at ``address``: ``world_size`` GPUs of one machine, or one CPU
    core if the cluster has no GPU or ``device`` is ``cpu``. Without an address a cluster of this machine's ``device``
    (as ``device`` names it) and ``num_cpus`` cores is started, on loopback, and ended with this object.

    All slots are of one device class, the most frequent one; others are excluded with a warning. Files have the same
    names on every machine: a trial resumes on another machine only if both share its checkpoint. Raises ``InputError``:
    there is no cluster, or no trial can run on it; ``ClusterLostError``: by any method but :meth:`stop` and
    :meth:`close`."""

    def __init__(
        self,
        device: str = "auto",
        log_dir: Path | None = None,
        world_size: int = 1,
        address: str | None = None,
        num_cpus: int | None = None,
        program: WorkerProgram = PROGRAM,
    ) -> None:
        super().__init__()
        self._folder = None if address else _make_cluster_folder()
        try:
            if self._folder:
                gpus = select_gpus(device, world_size, list_devices())
                _start_cluster(self._folder, num_cpus or len(os.sched_getaffinity(0)), gpus)
                uses_gpus = bool(gpus)
            else:
                refusal = (
                    f"address = {address}: this machine must be part of the cluster; a cluster with a token also "
                    "requires RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH here"
                )
                _connect(_JOINED_CLUSTER, refusal, address=address)  # with the token that Ray finds
                uses_gpus = bool(_list_nodes(1)) if device == "auto" else device != "cpu"
        except BaseException:
            self.close()
            raise
        self._world_size = world_size if uses_gpus else 0
        self._program, self._log_dir = program, log_dir.absolute() if log_dir else None
        self._vital = _watch_vital(is_own=address is None)
        self._slots: list[_Slot] = []
        self._device_class: str | None = None
        self._num_excluded: Counter[str] = Counter()  # slots, by node
        self._code = digest_code()  # of the code that results depend on; equal on all machines
        self._fill_at, self._settle_at = 0.0, float("inf")
        self._pending: dict[Any, _Slot] = {}  # by Ray's reference to an answer: of ``describe``, then of ``poll``

    @property
    def slots(self) -> int:
        return len(self._await_usable())

    def describe(self) -> dict[str, Any]:
        return self._await_usable()[0].machine

    def start(self, task: Task) -> None:
        self._check_start(task.number)
        self._running[task.number] = encode_task(task).decode()
        self._start_waiting()

    def preempt(self, number: int) -> None:
        for slot in self._slots:
            if slot.trial == number:
                slot.actor.preempt.remote(number)

    def stop(self, number: int) -> None:
        self._running.pop(number, None)
        for slot in [slot for slot in self._slots if slot.trial == number]:
            slot.trial = None
            self._pending = {reference: other for reference, other in self._pending.items() if other is not slot}
            if not self._vital.poll(0):
                self._call(slot, slot.actor.stop.remote(number))
        self._drop_messages(number)

    def close(self) -> None:
        if self._is_closed:
            return
        import ray

        self._is_closed = True
        self._running.clear()
        self._messages.clear()
        with suppress(Exception):
            ray.shutdown()  # with the actors
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _collect(self, timeout_seconds: float) -> None:
        if self._is_closed:
            return
        if self._vital.poll(0):
            raise ClusterLostError(
                "executor ray: the Ray cluster was lost: a process of Ray on this machine has ended; what was recorded "
                f"is kept. When there is a cluster again, {RUN_AGAIN}."
            )
        if time.monotonic() >= self._fill_at:
            self._fill_at = time.monotonic() + _FILL_SECONDS
            self._add_actors()
            self._messages += [(number, Heartbeat(is_queued=True)) for number in self._list_waiting()]
        for slot, answer in self._take_answers(min(timeout_seconds, _WAIT_SECONDS)):
            if slot not in self._slots:
                continue
            if isinstance(answer, Exception):
                self._lose(slot, answer)
            elif not slot.machine:
                self._accept(slot, answer)
            elif slot.trial is not None:
                self._receive(slot, slot.trial, answer)
        self._settle()
        self._start_waiting()

    def _take_answers(self, timeout_seconds: float) -> list[tuple[_Slot, Any]]:
        """The slots that have answered, waiting for the first at most this long, and the answers."""
        import ray

        if not self._pending:
            time.sleep(timeout_seconds)
        if not self._pending or not ray.wait(list(self._pending), timeout=timeout_seconds)[0]:
            return []
        answers: list[tuple[_Slot, Any]] = []
        for reference in ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)[0]:
            try:
                answer = ray.get(reference)
            except Exception as error:
                answer = error
            answers.append((self._pending.pop(reference), answer))
        return answers

    def _receive(self, slot: _Slot, trial: int, texts: list[str]) -> None:
        messages = [decode_message(text.encode()) for text in texts]
        self._messages += [(trial, message) for message in messages]
        if messages and isinstance(messages[-1], Ending):
            slot.trial = None
            del self._running[trial]
        else:
            self._pending[slot.actor.poll.remote()] = slot

    def _list_waiting(self) -> list[int]:
        """The trials for which no slot was free yet."""
        return [number for number in self._running if number not in {slot.trial for slot in self._slots}]

    def _list_usable(self) -> list[_Slot]:
        """The slots for trials, of one device class; empty until that is chosen."""
        return [slot for slot in self._slots if slot.machine and slot.machine["device"] == self._device_class]

    def _await_usable(self) -> list[_Slot]:
        deadline = time.monotonic() + _READY_SECONDS
        while not (usable := self._list_usable()):
            if time.monotonic() > deadline:
                raise RuntimeError("no actor of the Ray cluster is ready")
            self._collect(_WAIT_SECONDS)
        return usable

    def _start_waiting(self) -> None:
        free = [slot for slot in self._list_usable() if slot.trial is None]
        for slot, number in zip(free, self._list_waiting(), strict=False):
            slot.trial = number
            if self._call(slot, slot.actor.start.remote(self._running[number])):
                self._pending[slot.actor.poll.remote()] = slot

    def _call(self, slot: _Slot, reference: Any) -> bool:
        """Whether the actor has carried out a call; the trial of one that has not is lost."""
        import ray

        try:
            ray.get(reference, timeout=_CALL_SECONDS)
        except Exception as error:
            self._lose(slot, error)
            return False
        return True

    def _add_actors(self) -> None:
        """Starts an actor on every slot without one."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        nodes = _list_nodes(self._world_size)
        if not nodes and not self._device_class:
            raise InputError(
                f"executor ray: no machine of the cluster has the {self._world_size} GPUs of a trial (0: a CPU "
                "core); see `ray status`, lower distributed.world_size, or give --on cpu."
            )
        taken = Counter(slot.node for slot in self._slots)
        here = (Path.cwd(), [str(Path(entry).absolute()) for entry in sys.path])
        make_actor_class: Any = ray.remote
        for node in nodes:
            actor_class = make_actor_class(
                num_gpus=self._world_size,
                num_cpus=0 if self._world_size else 1,
                max_restarts=0,  # the study decides what is retried
                max_task_retries=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node.key, soft=False),
            )(_TrialActor)
            # A slot has its share of the cores. A single slot has None: torch itself distinguishes hyperthreads.
            threads = max(1, node.num_cpus // node.num_slots) if node.num_slots > 1 else None
            for _ in range(node.num_slots - taken[node.key] - self._num_excluded[node.key]):
                actor = actor_class.remote(self._program, self._log_dir, self._world_size, threads, here)
                self._slots.append(_Slot(node=node.key, actor=actor))
                self._pending[actor.describe.remote()] = self._slots[-1]

    def _accept(self, slot: _Slot, described: dict[str, Any]) -> None:
        if described["code"] != self._code:
            versions = f"{described['code'][:12]} and not {self._code[:12]}"
            self._exclude(slot, f"its version of this program is {versions}")
            return
        slot.machine = described["machine"]
        self._settle_at = min(self._settle_at, time.monotonic() + _SETTLE_SECONDS)

    def _settle(self) -> None:
        """Chooses one device class, the most frequent one: times on different ones cannot be compared."""
        ready = [slot for slot in self._slots if slot.machine]
        if ready and self._device_class is None:
            if len(ready) < len(self._slots) and time.monotonic() < self._settle_at:
                return
            self._device_class = Counter(str(slot.machine["device"]) for slot in ready).most_common(1)[0][0]
        for slot in ready:
            if slot.machine["device"] != self._device_class:
                self._exclude(slot, f"{slot.machine['device']}, and the study is on {self._device_class}")

    def _lose(self, slot: _Slot, error: Exception) -> None:
        """An actor does not answer any more; its trial, if it had one, has ended with it."""
        from ray.exceptions import RayTaskError

        self._fill_at = 0.0
        text = _shorten_error(error)
        self._exclude(slot, "" if slot.machine else f"no actor starts there: {text}")
        if slot.trial is not None:
            is_there = slot.node in {node.key for node in _list_nodes(self._world_size)}
            # After an error of the call itself the actor is still there; the attempt failed for its own reason.
            cause = "" if isinstance(error, RayTaskError) else ACTOR_LOST if is_there else NODE_LOST
            self._messages.append((slot.trial, Ending(outcome="crashed", error=text, cause=cause)))
            del self._running[slot.trial]

    def _exclude(self, slot: _Slot, reason: str) -> None:
        """Ends the actor of a slot, and for a ``reason`` starts no other there."""
        import ray

        self._slots.remove(slot)
        ray.kill(slot.actor)
        if not reason:
            return
        if not self._slots and not self._device_class:
            raise InputError(f"executor ray: no trial can run on the cluster: {reason}")
        if not self._num_excluded[slot.node]:
            _log.warning("machine %s of the cluster is not fully used: %s", slot.node[:8], reason)
        self._num_excluded[slot.node] += 1


def _shorten_error(error: Exception) -> str:
    """The last lines of one of Ray's errors, without its markers."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^~")]
    return "\n".join(lines[-8:])[:2000]


# ---------------------------------------------------------------------- the cluster


def _start_cluster(folder: Path, num_cpus: int, gpus: list[str]) -> None:
    """Starts a cluster on loopback, closed to other users, with its files in ``folder``; it dies with this process."""
    _connect(
        _OWN_CLUSTER | make_pinned_environment(",".join(gpus)),
        "no cluster could be started",
        num_cpus=num_cpus,
        num_gpus=len(gpus),
        include_dashboard=False,
        object_store_memory=_STORE_BYTES,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(folder),
        _system_config={"memory_monitor_refresh_ms": 0},  # it would kill processes before the kernel has to
    )


def _connect(variables: Mapping[str, str], refusal: str, **options: Any) -> None:
    """Starts or joins a cluster with ``variables`` in the environment; afterwards this process has its own environment,
    hook and handler again. Raises ``InputError`` with the text ``refusal`` and Ray's error."""
    environment, hook, handler = dict(os.environ), sys.excepthook, signal.getsignal(signal.SIGTERM)
    os.environ.update(variables)
    try:
        import ray

        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        raise InputError(f"executor ray: {refusal}: {_shorten_error(error)}") from None
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.excepthook = hook
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


def _make_cluster_folder() -> Path:
    """A new folder for the files of a cluster, closed to other users."""
    usual = tempfile.gettempdir()
    is_short = len(usual) + len("/sweep-ray-12345678") <= _MAX_FOLDER_CHARACTERS
    return Path(tempfile.mkdtemp(prefix="sweep-ray-", dir=usual if is_short else "/tmp"))  # nosec B108 # a new folder


def _list_nodes(world_size: int) -> list[_Node]:
    """The nodes that are up and have a slot: ``world_size`` GPUs each, or one CPU core if it is 0."""
    import ray

    nodes = []
    described: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
    for node in described:
        resources: dict[str, Any] = node["Resources"] if node["Alive"] else {}
        num_cpus, num_gpus = int(resources.get("CPU", 0)), int(resources.get("GPU", 0))
        num_slots = num_gpus // world_size if world_size else num_cpus
        if num_slots:
            nodes.append(_Node(node["NodeID"], num_slots, num_cpus))
    return nodes


def _watch_vital(*, is_own: bool) -> "select.poll":
    """Becomes ready at the end of one of Ray's processes on this machine: of the own cluster the children of this
    process, else the raylet that it is connected to. Ray itself notices that after 15 s to a minute."""
    import ray

    watch = select.poll()
    node = f"--node_id={ray.get_runtime_context().get_node_id()}"
    for process in psutil.Process().children() if is_own else psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if process.name() in _VITAL and (is_own or node in process.cmdline()):
                watch.register(os.pidfd_open(process.pid), select.POLLIN)
    return watch


# ---------------------------------------------------------------------- the actors' side


@final
class _TrialActor:
    """The actor on one slot for the time of a study: a process executor with its own forkserver. Ray calls its methods
    one after the other, in one thread.

    A trial has ``world_size`` GPUs, 0 on a CPU. ``threads`` is the share of the machine's cores, None all of them.
    ``supervisor`` is the working folder and the module path of the supervisor, whose file names are used here too.
    """

    def __init__(
        self,
        program: WorkerProgram,
        log_dir: Path | None,
        world_size: int,
        threads: int | None,
        supervisor: tuple[Path, list[str]],
    ) -> None:
        os.environ.pop("OMP_NUM_THREADS", None)  # Ray sets it to one
        if threads is not None:
            os.environ["OMP_NUM_THREADS"] = str(threads)
        folder, path = supervisor
        sys.path += [entry for entry in path if entry not in sys.path]
        with suppress(OSError):
            os.chdir(folder)
        threading.Thread(target=_exit_with, args=(os.getppid(),), daemon=True).start()
        try:
            if log_dir is not None:
                log_dir.mkdir(parents=True, exist_ok=True)
        except OSError:  # this machine does not share the supervisor's files
            log_dir = None
        device = ",".join(list_devices()[:world_size]) or "cpu"  # Ray hides all other GPUs from a process
        self._executor = MonitoredExecutor(ProcessExecutor([device], log_dir, program), Monitor(make_source), {})

    def describe(self) -> dict[str, Any]:
        """``machine`` as :meth:`Executor.describe`, ``code`` as :func:`~sweep.records.inputs.digest_code`."""
        return {"machine": self._executor.describe(), "code": digest_code()}

    def start(self, text: str) -> None:
        """Begins an attempt at the encoded task ``text``."""
        self._executor.start(receive_task(text.encode()))

    def preempt(self, number: int) -> None:
        self._executor.preempt(number)

    def stop(self, number: int) -> None:
        self._executor.stop(number)

    def poll(self) -> list[str]:
        """Encoded messages; waits a while for the first."""
        messages = [message for _, message in self._executor.poll(_POLL_SECONDS)]
        if messages and isinstance(messages[-1], Ending):
            messages[-1] = replace(messages[-1], training_spans=())  # by the clock of this machine
        return [encode_message(message).decode() for message in messages]


def _exit_with(raylet_pid: int) -> None:
    """Ends this process with Ray's on this machine; Ray itself misses that if init is not process 1."""
    gone = select.poll()
    gone.register(os.pidfd_open(raylet_pid), select.POLLIN)
    gone.poll()
    os._exit(1)
