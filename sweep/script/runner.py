"""Runs a trial that is a user's program: its values are asked for, what it does is observed, and both are compared."""

import base64
import json
import math
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast, final

import numpy as np

from sweep.config.metrics import METRICS
from sweep.records.messages import (
    LEFT,
    Ending,
    Evaluation,
    Heartbeat,
    Message,
    Outcome,
    Progress,
    ScriptCommand,
    TrialTask,
)
from sweep.records.quality import (
    BATCH_NOT_FOLLOWED,
    DECAY_NOT_FOLLOWED,
    MEMORY_RECOVERED,
    NOT_OBSERVED,
    RATE_NOT_FOLLOWED,
)
from sweep.records.records import encode_correct
from sweep.script.channel import VARIABLE, describe_script_trial
from sweep.training.processes import SUPERVISOR_LINK, die_with_parent, find_signal_name

_POLL_SECONDS, _END_POLL_SECONDS, _DRAIN_SECONDS, _GRACE_SECONDS = 0.5, 0.05, 2.0, 30.0
_TAIL_LINES, _MAX_LINE, _MAX_FOLDER = 25, 64 * 2**20, 80
_CLOSE = 0.01  # ratio by which a rate or a decay may differ from the asked one
NO_REPORT, NOT_TAKEN = "the script ended without", "the script never took"  # errors of a script that runs all the same
_OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "outofmemoryerror")
_SITE = Path(__file__).parent / "site"
_Said = dict[str, Any]


@final
@dataclass(kw_only=True)
class _Seen:
    """What a script has said of itself until now."""

    metric: str
    began: float
    ranks: int
    target: float = math.inf  # of the gain, which is the metric or, where less of it is better, its negative
    sign: float = 1.0
    latest: _Said = field(default_factory=dict)  # of the first rank: measurements, flags ...
    read: dict[str, Any] = field(default_factory=dict)  # keys that it has read, with its defaults
    ooms: int = 0
    error: _Said = field(default_factory=dict)
    value: float = math.nan
    num_reports: int = 0
    num_samples: int | None = None
    scores: str = ""
    timed: float = 0.0
    to_target: dict[str, float] = field(default_factory=dict)

    def add(self, said: _Said) -> Message | None:
        """Takes a message of the script into account; the one for the supervisor, if there is one."""
        kind, rank = said.get("kind"), int(said.get("rank", 0))
        self.ooms = max(self.ooms, int(said.get("num_ooms", 0)))
        if kind == "read":
            self.read[str(said.get("key"))] = said.get("default")
        if kind == "error" and not self.error:
            self.error = said
        if kind == "gpu" and not rank:
            return Heartbeat(gpus=tuple(said["gpus"]))
        if rank or kind in ("read", "error"):
            return Heartbeat()
        # a launcher of ranks is a process without steps, and so is a worker that reads data
        if "measurements" in said and ("num_steps" in said["measurements"] or not self.has_steps):
            self.latest = {**self.latest, **said}
        if kind == "progress":
            self.timed = float(said["timed"])
            return self._describe_progress(said)
        return self._evaluate(said) if kind == "report" else Heartbeat()

    def _describe_progress(self, said: _Said) -> Progress:
        step, peak = int(said["step"]), int(said["peak"])
        return Progress(
            step=step, num_steps=step, epoch=float(said["passes"]), images_per_second=self.ranks * float(said["rate"]),
            peak_memory_bytes=peak or None,
        )  # fmt: skip

    def _evaluate(self, said: _Said) -> Evaluation:
        value = said.get("value")
        self.value, self.num_reports = math.nan if value is None else float(value), self.num_reports + 1
        self.num_samples = said.get("n")
        if text := said.get("scores"):
            scores: Any = np.frombuffer(base64.b64decode(text), dtype=said["type"])
            self.scores = encode_correct(scores)
        measured, column = self.latest.get("measurements", {}), self.column
        size = self.ranks * int(measured.get("observed_batch_size", 0))
        steps = int(measured.get("num_steps", self.num_reports))
        seconds = float(measured.get("train_seconds", time.perf_counter() - self.began))
        if self.sign * self.value >= self.target:
            self.to_target = {"steps_to_target": steps, "seconds_to_target": seconds}
        return Evaluation(
            step=steps,
            epoch=float(measured.get("num_epochs", 0.0)),
            samples=int(measured.get("num_steps", 0)) * size,
            train_seconds=seconds,
            train_loss=math.nan,
            val_loss=self.value if column == "val_loss" else math.nan,
            val_accuracy=self.value if column == "val_accuracy" else math.nan,
            learning_rate=float(measured.get("observed_lr", math.nan)),
            global_batch_size=size,
            quality=self.value if column == "quality" else None,
        )

    @property
    def has_steps(self) -> bool:
        return "num_steps" in self.latest.get("measurements", {})

    @property
    def column(self) -> str:
        return self.metric if self.metric in ("val_accuracy", "val_loss") else "quality"


def run_script(task: TrialTask) -> Iterator[Message]:
    """Runs the program of ``task`` to its end; yields progress, each evaluation, and last exactly one :class:`Ending`.

    Closing the iterator ends the program, with everything that it started.
    """
    return _run(task, _begin(task))


def _begin(task: TrialTask) -> _Seen:
    script, target = task.script, task.config.budget.target
    assert script is not None
    return _Seen(
        metric=script.metric, began=time.perf_counter(), ranks=task.config.distributed.world_size, sign=script.sign,
        target=math.inf if target is None else script.sign * target,
    )  # fmt: skip


class ScriptProbe(NamedTuple):
    """A short run of a script: its ending, the ``sketch`` of its first gradients (projections on fixed directions, and
    the square of their norm; empty where it took no step), the layers whose results depend on the micro batch or on
    chance, the keys that it has read with its own defaults, and whether it ``has_reported``."""

    ending: Ending
    sketch: list[float]
    varying: list[str]
    read: dict[str, Any]
    has_reported: bool


def probe_script(task: TrialTask) -> ScriptProbe:
    """Runs the program of ``task`` until its ``timed_seconds`` of training."""
    seen = _begin(task)
    *_, ending = _run(task, seen)
    assert isinstance(ending, Ending)
    latest = seen.latest
    return ScriptProbe(
        ending, latest.get("sketch", []), latest.get("varying", []), seen.read, has_reported=seen.num_reports > 0
    )


def _run(task: TrialTask, seen: _Seen) -> Iterator[Message]:
    script = task.script
    assert script is not None
    # the address of a socket has 107 bytes at most
    place = "/tmp" if len(tempfile.gettempdir()) > _MAX_FOLDER else None
    with (
        tempfile.TemporaryDirectory(prefix="sweep-", dir=place) as room,
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server,
    ):
        server.bind(address := str(Path(room) / "socket"))
        server.listen(64)
        folder = task.checkpoint_dir or room
        Path(folder).mkdir(parents=True, exist_ok=True)
        try:
            process = _start(script, address, folder, task)
        except OSError as error:
            yield Ending(outcome="crashed", error=f"{script.arguments[0]}: cannot be run: {error.strerror}")
            return
        output = _Output(process)
        try:
            yield from _listen(server, process, seen, script)
        finally:
            _end(process)
    yield _make_ending(task, seen, process.returncode, output.tail())


def prepare_call(script: ScriptCommand, address: str = "", folder: str = "") -> tuple[list[str], dict[str, str]]:
    """The arguments and the environment with which a ``script`` runs as a trial in ``folder``. Without the ``address``
    of a supervisor what it reports goes nowhere."""
    is_probe = script.timed_seconds is not None
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",
        **script.environment,
        VARIABLE: describe_script_trial(address, script.values, script.metric, folder, is_probe=is_probe),
    }
    environment["PYTHONPATH"] = os.pathsep.join([str(_SITE), *filter(None, [environment.get("PYTHONPATH", "")])])
    # python is the one that has this project
    first = sys.executable if script.arguments[0] in ("python", "python3") else script.arguments[0]
    return [first, *script.arguments[1:]], environment


def _start(script: ScriptCommand, address: str, folder: str, task: TrialTask) -> "subprocess.Popen[bytes]":
    arguments, environment = prepare_call(script, address, folder)
    if task.threads:
        environment.setdefault("OMP_NUM_THREADS", str(task.threads))
    if task.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""
    return subprocess.Popen(
        arguments, cwd=script.folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, preexec_fn=partial(die_with_parent, os.getpid())
    )  # fmt: skip


@final
class _Output:
    """What a program prints: it goes where this process prints, and the last lines are kept."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._lines: deque[str] = deque(maxlen=_TAIL_LINES)
        self._stream: Any = process.stdout
        self._thread = threading.Thread(target=self._copy, daemon=True)
        self._thread.start()

    def _copy(self) -> None:
        for line in self._stream:
            text = line.decode(errors="replace")
            self._lines.append(text.rstrip()[:300])
            with suppress(OSError, ValueError):
                sys.stderr.write(text)

    def tail(self) -> str:
        """The last lines, once the program has ended."""
        self._thread.join(_DRAIN_SECONDS)
        if not self._thread.is_alive():  # else something that it has started still holds the pipe
            self._stream.close()
        return "\n".join(self._lines)


def _listen(
    server: socket.socket, process: "subprocess.Popen[bytes]", seen: _Seen, script: ScriptCommand
) -> Iterator[Message]:
    """The messages of the program until it has ended and all of them have arrived, its quality has reached the target
    of the budget, or its probe has enough."""
    limit = math.inf if script.timed_seconds is None else script.timed_seconds
    stop_at = drain_at = math.inf
    with _Connections(server) as connections:
        while time.monotonic() < min(drain_at, stop_at) and seen.timed < limit:
            # a program that has closed its connections is about to end, which no message tells
            is_quiet = connections.are_open and drain_at == math.inf
            for line in connections.read_lines(_POLL_SECONDS if is_quiet else _END_POLL_SECONDS):
                if message := seen.add(json.loads(line)):
                    yield message
                if seen.to_target:
                    return
            if process.poll() is not None and drain_at == math.inf:
                drain_at = time.monotonic() + _DRAIN_SECONDS
            if drain_at < math.inf and not connections.are_open:
                return
            if SUPERVISOR_LINK.is_preempted and stop_at == math.inf:
                stop_at = time.monotonic() + _GRACE_SECONDS
                connections.ask_to_stop()


@final
class _Connections:
    """The sockets of the processes of a program."""

    def __init__(self, server: socket.socket) -> None:
        self._server, self._rest = server, dict[socket.socket, bytes]()
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in list(self._rest):
            self._close(connection)
        self._selector.close()

    @property
    def are_open(self) -> bool:
        """Whether more may come: one is open, or waits to be accepted."""
        return bool(self._rest) or any(key.fileobj is self._server for key, _ in self._selector.select(0))

    def read_lines(self, timeout_seconds: float) -> Iterator[bytes]:
        """Whole lines that have arrived; waits for the first at most so long."""
        for key, _ in self._selector.select(timeout_seconds):
            if key.fileobj is self._server:
                connection, _ = self._server.accept()
                self._rest[connection] = b""
                self._selector.register(connection, selectors.EVENT_READ)
                continue
            connection = cast(socket.socket, key.fileobj)
            try:
                data = connection.recv(2**20)
            except ConnectionError:
                data = b""
            *lines, self._rest[connection] = (self._rest[connection] + data).split(b"\n")
            yield from lines
            if not data or len(self._rest[connection]) > _MAX_LINE:
                self._close(connection)

    def ask_to_stop(self) -> None:
        for connection in self._rest:
            with suppress(OSError):
                connection.send(b"s")

    def _close(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        connection.close()
        del self._rest[connection]


def _end(process: "subprocess.Popen[bytes]") -> None:
    # what it has started is bound to it (sitecustomize), or in the process group of this process
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(1.0)
        process.kill()
    process.wait()


# ---------------------------------------------------------------------- how it ended


def _make_ending(task: TrialTask, seen: _Seen, exit_code: int, tail: str) -> Ending:
    script, ranks = task.script, seen.ranks
    assert script is not None
    measured: dict[str, float | int] = {
        name: round(value) if METRICS[name].unit_facts.is_whole else value
        for name, value in seen.latest.get("measurements", {}).items()
        if name in METRICS
    }
    if "observed_batch_size" in measured:
        measured["observed_batch_size"] *= ranks
        for name in ("images_per_second", "tokens_per_second"):
            measured |= {name: measured[name] * ranks} if name in measured else {}
    measured |= {**seen.to_target, "total_seconds": time.perf_counter() - seen.began}
    if math.isfinite(seen.value):
        measured[seen.column] = seen.value
    if seen.num_samples is not None:
        measured["num_val_samples"] = int(seen.num_samples)
    outcome, error, cause = _judge(task, seen, exit_code, tail)
    return Ending(
        outcome=outcome,
        measurements=measured,
        device=str(seen.latest.get("device", "")),
        environment=seen.latest.get("environment", {}),
        quality_flags=(*seen.latest.get("flags", ()), *find_deviations(script, measured, seen.latest)),
        error=error,
        cause=cause,
        correct_images=seen.scores if outcome == "complete" else "",
    )


def find_deviations(script: ScriptCommand, measured: _Said, said: _Said) -> Iterator[str]:
    """The flags of a script that did something else than it was asked, or of which that is not known."""
    if said.get("num_ooms"):
        yield MEMORY_RECOVERED
    observed, asked = measured.get("observed_batch_size"), script.values.get("batch.global")
    if not observed:
        yield NOT_OBSERVED
        return
    if (asked is not None and observed != asked) or said.get("has_changed_batch"):
        yield BATCH_NOT_FOLLOWED
    for key, name, flag in (
        ("optimizer.lr", "observed_lr", RATE_NOT_FOLLOWED),
        ("optimizer.weight_decay", "observed_weight_decay", DECAY_NOT_FOLLOWED),
    ):
        value = script.values.get(key)
        is_known = key in script.keys and isinstance(value, int | float) and name in measured
        if is_known and abs(measured[name] - value) > _CLOSE * abs(value):  # type: ignore[arg-type]
            yield flag


def _judge(task: TrialTask, seen: _Seen, exit_code: int, tail: str) -> tuple[Outcome, str, str]:
    # outcome, error and cause
    script = task.script
    assert script is not None
    if script.timed_seconds is not None and seen.timed >= script.timed_seconds:
        return "complete", "", ""
    if SUPERVISOR_LINK.is_preempted:
        return "cancelled", "stopped on request", LEFT
    if seen.ooms:
        return "out_of_memory", "the script went on after the device was out of memory", ""
    if seen.error:
        return seen.error["outcome"], str(seen.error["error"]), str(seen.error["cause"])
    if exit_code and not seen.to_target:
        name = find_signal_name(exit_code)
        is_full = any(words in tail.lower() for words in _OUT_OF_MEMORY)
        outcome: Literal["out_of_memory", "crashed"] = "out_of_memory" if is_full else "crashed"
        ended = f"killed by {name}" if name else f"exit code {exit_code}"
        return outcome, f"{ended}\n{tail}".rstrip(), name
    if not seen.num_reports:
        return "crashed", f"{NO_REPORT} trial.report({script.metric}=...)\n{tail}".rstrip(), ""
    if not math.isfinite(seen.value):
        return "diverged", f"{script.metric} is {seen.value}", ""
    if unread := [key for key in script.keys if key not in script.placed and not _is_taken(key, seen.read)]:
        remedy = f"write {{{unread[0]}}} in its command, or read it from sweep.trial()"
        return "crashed", f"{NOT_TAKEN} {', '.join(unread)}: {remedy}", ""
    if math.isfinite(seen.target) and not seen.to_target:
        target = f"budget.target = {seen.sign * seen.target:g}"
        return "target_missed", f"the script ended with {script.metric} = {seen.value:g}, short of {target}", ""
    return "complete", "", ""


def _is_taken(key: str, read: Collection[str]) -> bool:
    # the batch size may be read by its parts, and samples as steps; the target is seen to from here
    is_size = key.startswith("batch.") and any(other.startswith("batch.") for other in read)
    return key in read or key == "budget.target" or is_size or (key == "budget.samples" and "budget.steps" in read)
