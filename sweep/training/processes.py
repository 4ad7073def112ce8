"""The process of a trial: its plug-in, its life and death with its parent, and its connection to the supervisor.

Imports no torch, and nothing that takes long: a user's script imports it too.
"""

import ctypes
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any, NoReturn, final

from sweep.config.errors import InputError

if TYPE_CHECKING:
    from sweep.records.messages import Task

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

HEARTBEAT_SECONDS = 2.0
PROGRESS_SECONDS = 0.5  # between two messages of progress, at least


def load_plugin(path: str) -> None:
    """Executes the user's Python file, which adds entries to ``MODELS`` or ``DATASETS``; loading twice does nothing.

    It must run before a configuration that uses the new names is validated.

    Raises:
        InputError: for a missing file, or one that raises.
    """
    from sweep.config.tables import DATASETS, MODELS, DatasetEntry, ModelEntry

    file = Path(path).resolve()
    module_name = f"sweep_plugin_{file.stem}"
    loaded = sys.modules.get(module_name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return
    spec = importlib.util.spec_from_file_location(module_name, file) if file.suffix == ".py" else None
    if spec is None or spec.loader is None or not file.is_file():
        raise InputError(f"plug-in {path!r} is not a Python file; give the path of a .py file.")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # as for a script, so that it can import the modules beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        with redirect_stdout(sys.stderr):  # standard output is the command's own, which may be JSON
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise InputError(f"plug-in {path}: {_locate(error, file)}{type(error).__name__}: {error}") from error
    # a plug-in may assign a function alone
    models: dict[str, Any] = MODELS
    datasets: dict[str, Any] = DATASETS
    MODELS.update({name: ModelEntry(build=item) for name, item in models.items() if not isinstance(item, ModelEntry)})
    DATASETS.update(
        {name: DatasetEntry(load=item) for name, item in datasets.items() if not isinstance(item, DatasetEntry)}
    )


def receive_task(data: bytes) -> "Task":
    """Decodes a task in the process that carries it out; its configuration may use names that its plug-in defines."""
    from sweep.records.messages import decode_task

    if plugin := json.loads(data)["plugin"]:
        load_plugin(plugin)
    return decode_task(data)


def _locate(error: BaseException, file: Path) -> str:
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(file)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    return f"line {lines[-1]}: " if lines else ""


def die_with_parent(parent_pid: int) -> None:
    """Makes the kernel kill this process when its parent dies; exits at once if ``parent_pid`` is no longer its parent.

    The kernel watches the parent's *thread* that started this process: that thread must live as long as the parent.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def bind_forks_to_parent() -> None:
    """Calls :func:`die_with_parent` in every process forked from this one from now on, and in their forks in turn.

    This includes the workers of a data loader with the ``fork`` context. A process that executes a new program inherits
    nothing of it and has to call :func:`die_with_parent` itself.
    """
    parent_pid = os.getpid()

    def after_fork() -> None:
        nonlocal parent_pid
        die_with_parent(parent_pid)
        parent_pid = os.getpid()

    os.register_at_fork(after_in_child=after_fork)


def exit_at_once(exit_code: int) -> NoReturn:
    """Flushes the output and ends this process, without cleaning up what it shares with the one it was forked from."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(exit_code)


def adopt_orphans() -> None:
    """Makes this process the parent of every descendant whose own parent dies, so that it can reap them."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def make_python_command(statements: str) -> list[str]:
    """The command line of a new interpreter that runs ``statements`` and finds the same modules as this one."""
    path = [str(Path(entry).absolute()) for entry in sys.path]
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {statements}"]


def find_signal_name(exit_code: int | None) -> str:
    """The name of the signal that ended a process; empty if none did. ``exit_code`` is the negative signal number."""
    if exit_code is None or exit_code >= 0:
        return ""
    return signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else f"signal {-exit_code}"


def describe_exit(exit_code: int | None) -> str:
    name = find_signal_name(exit_code)
    hint = "; the kernel does that when the machine runs out of memory (see `dmesg`), or a user"
    return f"killed by {name}{hint if name == 'SIGKILL' else ''}" if name else f"exit code {exit_code} without a result"


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


@final
class _SupervisorLink:
    """The connection of a trial's process to its supervisor apart from the trial's messages: heartbeats and preemption.

    While it is not connected, heartbeats go nowhere and cost nothing.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._send: Callable[[], None] | None = None
        self._look: Callable[[], bool] | None = None
        self._forward: Callable[[], None] | None = None
        self._is_preempted, self._next_heartbeat = False, 0.0

    def connect(self, send: Callable[[], None], look: Callable[[], bool] | None = None) -> None:
        """Starts anew. ``send`` sends a heartbeat; ``look`` returns whether the supervisor requests preemption."""
        self.reset()
        self._send, self._look = send, look

    def send_heartbeat(self) -> None:
        """Called wherever the trial has made progress; sends one every few seconds, else only reads the clock."""
        if self._send is None:
            return
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_SECONDS
            self._send()

    def preempt(self) -> None:
        """Requests that the trial finishes its timed window, writes a checkpoint and ends; a signal handler may."""
        self._is_preempted = True
        if self._forward is not None:
            self._forward()

    def forward_preemption(self, forward: Callable[[], None] | None) -> None:
        """From now on a request for preemption is passed on by ``forward``; at once if there has been one already."""
        self._forward = forward
        if forward is not None and self._is_preempted:
            forward()

    @property
    def is_preempted(self) -> bool:
        if not self._is_preempted and self._look is not None:
            self._is_preempted = self._look()
        return self._is_preempted


SUPERVISOR_LINK = _SupervisorLink()
