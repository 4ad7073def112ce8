"""What runs in a job: one attempt at a trial, in a child as on one machine, its words appended to a file.

The job leaves with a checkpoint when Slurm says by a signal that its time is over, when it is told to, and when its
supervisor shows no sign of life; it ends at once when another run of the study has taken its place.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, final

from sweep.executors.base import Executor
from sweep.executors.devices import available_devices
from sweep.executors.monitored import MonitoredExecutor, source_of
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.executors.slurm.job_files import ORDER, SUPERVISOR, Order, append_lines, look, messages_of
from sweep.executors.slurm.rendezvous import Meeting
from sweep.measurement.monitor import Monitor
from sweep.records.messages import Ending, NodePlacement, Task, TrialTask, decode_task, encode_message

_LOOK_SECONDS = 0.5
# Slurm's at the end of a job's time, what it sends before it takes a node away, and what clusters are set up to send
_SIGNALS = (signal.SIGUSR2, signal.SIGTERM, signal.SIGUSR1)


def run_job(text: str) -> None:
    """The whole life of a job on one of its nodes; ``text`` is a request of
    :class:`sweep.executors.slurm.slurm_executor.SlurmExecutor` as JSON."""
    request: dict[str, Any] = json.loads(text)
    node = int(os.environ.get("SLURM_NODEID", "0"))
    if node >= request["nodes"] or not _claim(request, node):
        return  # nothing to do here; or Slurm has started the job again, and the study will have done so too
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # for the children, which a signal to the whole job reaches too
    sys.path[:] = request["path"]
    folder = Path(request["folder"])
    say = _speaker(messages_of(folder, node))
    try:
        with _executor(request, node) as executor:
            orders = Orders(folder, request["run"], request["stale_seconds"])
            for number in _SIGNALS:
                signal.signal(number, orders.hear)
            say([_note("began", node=os.uname().nodename)])
            _work(request, executor, orders, say, node)
    finally:
        say([_note("over")])


@final
class Orders:
    """What the job is to do: by a file of its own, by its supervisor's sign of life, by signals."""

    def __init__(self, folder: Path, run: str, stale_seconds: float) -> None:
        self._order, self._supervisor, self._run = folder / ORDER, folder.parent / SUPERVISOR, run
        self._stale_seconds = stale_seconds
        self._sign, self._seen_at, self._looked_at = "", time.monotonic(), 0.0
        self._is_signalled = False
        self._last: Order = ""

    def hear(self, _number: int, _frame: FrameType | None) -> None:
        """The handler of the signals that ask to leave."""
        self._is_signalled = True

    def look(self) -> Order:
        """What is wanted now; looks at the files twice a second at most."""
        now = time.monotonic()
        if now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._last = self._wanted(now)
        return "leave" if self._is_signalled and self._last == "" else self._last

    def _wanted(self, now: float) -> Order:
        sign = look(self._supervisor)
        if sign and sign.split()[0] != self._run:
            return "stop"  # the supervisor has ended, or another has taken over
        if sign != self._sign:
            self._sign, self._seen_at = sign, now
        silent_seconds = now - self._seen_at
        if silent_seconds > 2 * self._stale_seconds or look(self._order) == "stop":
            return "stop"
        return "leave" if silent_seconds > self._stale_seconds or look(self._order) == "leave" else ""


def _work(
    request: dict[str, Any], executor: Executor, orders: Orders, say: Callable[[list[bytes]], None], node: int
) -> None:
    if "task" not in request:
        say([_note("described", machine=executor.describe())])
        return
    task = _task(request)
    if request["nodes"] == 1:
        _attend(task, executor, orders, say)
        return
    meeting = Meeting(Path(request["folder"]), request["nodes"], node)
    while not (place := meeting.place()):
        if orders.look() == "stop":
            return
        time.sleep(_LOOK_SECONDS)
    if meeting.is_over():  # before this node was there
        return
    try:
        _attend(_placed(task, request["nodes"], node, place), executor, orders, say, meeting)
    finally:
        meeting.close()


def _placed(task: Task, num_nodes: int, node: int, rendezvous: str) -> Task:
    assert isinstance(task, TrialTask)  # a probe runs on one node
    return replace(task, placement=NodePlacement(num_nodes, node, rendezvous))


def _attend(
    task: Task,
    executor: Executor,
    orders: Orders,
    say: Callable[[list[bytes]], None],
    meeting: Meeting | None = None,
) -> None:
    """Hands on what the trial says, to its ending, and what it is told."""
    executor.start(task)
    is_asked = False
    while True:
        news = [message for _, message in executor.poll(_LOOK_SECONDS)]
        last = news[-1] if news else None
        if meeting and isinstance(last, Ending):
            news[-1] = meeting.judge(last)
        say([encode_message(message) for message in news])
        if isinstance(last, Ending):
            return
        order = orders.look()
        if meeting and (ending := meeting.failure()):
            say([encode_message(ending)])
            order = "stop"
        if order == "stop" or (meeting and meeting.is_over()):
            executor.stop(task.number)
            return
        if order == "leave" and not is_asked:
            executor.ask_to_leave(task.number)
            is_asked = True


def _executor(request: dict[str, Any], node: int) -> Executor:
    log_dir = Path(request["log_dir"]) if request["log_dir"] else None
    if log_dir and node:
        log_dir = log_dir / f"node-{node}"
    runner, describer, modules = request["runner"], request["describer"], tuple(request["modules"])
    inner = ProcessExecutor([_device(request["num_gpus"])], log_dir, runner, describer, modules)
    if request["nodes"] > 1:
        return inner  # what one machine draws is not what the trial draws
    return MonitoredExecutor(inner, Monitor(source_of), {})  # from the machine that trains


def _device(num_gpus: int) -> str:
    """The GPUs of this node that the trial uses, or ``cpu``."""
    if not num_gpus:
        return "cpu"
    gpus = [name for name in available_devices() if name != "cpu"]
    if len(gpus) < num_gpus:
        raise RuntimeError(f"the job asked for {num_gpus} GPUs on a node, and {len(gpus)} can be seen there")
    return ",".join(gpus[:num_gpus])


def _task(request: dict[str, Any]) -> Task:
    if plugin := json.loads(request["task"])["plugin"]:
        from sweep.training.plugins import load_plugin

        load_plugin(plugin)  # its names may stand in the configuration
    return decode_task(request["task"].encode())


def _speaker(path: Path) -> Callable[[list[bytes]], None]:
    return lambda lines: append_lines(path, lines) if lines else None


def _note(what: str, **facts: Any) -> bytes:
    """What the job says of itself, as against its trial."""
    return json.dumps({"job": what, **facts}).encode()


def _claim(request: dict[str, Any], node: int) -> bool:
    """Whether this is the first process that runs this job on this node."""
    try:
        (Path(request["folder"]) / f"claim-{node}").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
