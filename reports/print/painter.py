"""Draws pictures in other processes while this one makes the page: matplotlib takes longer than all the rest.

Figures are data, sent one by one as JSON as they are made; the bytes of the pictures come back. One process imports
matplotlib while the records are read, and forks its workers afterwards.
"""

import gc
import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import fields, is_dataclass
from multiprocessing.connection import Connection, Pipe
from threading import Thread
from typing import Any, Self, final

from reports import figure as figures
from reports.figure import Figure, Format, Paper
from reports.first import answer_figure
from reports.first.answer_figure import AnswerFigure

Task = tuple[Figure | AnswerFigure, Format, Paper]  # a figure, the format of its picture, and what that is for
MAX_PROCESSES = 4
_KINDS = vars(figures) | vars(answer_figure)
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from reports.print.painter import main; main()"


@final
class Painter:
    """Processes that draw figures; they end with the context."""

    def __init__(self) -> None:
        self._line, theirs = Pipe()
        self._num_tasks = 0
        with theirs:
            # with the path of this process, so that it finds this package wherever it is installed
            self._process = subprocess.Popen(
                [sys.executable, "-c", _PROGRAM, json.dumps(sys.path), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # a process with threads cannot be forked safely
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._line.close()  # by which the other process ends
        self._process.wait()

    def send_task(self, task: Task) -> None:
        """Orders a picture; returns before it is drawn."""
        self._num_tasks += 1
        with suppress(OSError):  # collect_pictures() returns None then
            self._line.send_bytes(dump_task(task).encode())

    def collect_pictures(self) -> list[bytes] | None:
        """The picture of each task, when all are drawn; None where the processes failed."""
        try:
            self._line.send_bytes(b"")
            return [self._line.recv_bytes() for _ in range(self._num_tasks)]
        except (OSError, EOFError):
            return None


def dump_task(task: Task) -> str:
    """A task as JSON; a layer, a panel or a figure is an object with its class as ``kind``."""
    return json.dumps(task, default=_fields)


def load_task(text: str | bytes) -> Task:
    """The inverse of :func:`dump_task`."""
    figure, form, paper = json.loads(text, object_hook=_build)
    return figure, form, paper


def _fields(value: object) -> dict[str, Any]:
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{value!r} is no part of a figure")
    return {"kind": type(value).__name__, **{field.name: getattr(value, field.name) for field in fields(value)}}


def _build(fields: dict[str, Any]) -> Any:
    return _KINDS[fields.pop("kind")](**{name: _tuples(value) for name, value in fields.items()})


def _tuples(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    # most lists are of thousands of numbers
    return tuple(map(_tuples, value)) if any(isinstance(each, list) for each in value[:1]) else tuple(value)


def main() -> None:
    """The program of the other process: reads tasks until an empty one, then answers with their pictures in order."""
    from reports.print import pictures  # noqa: F401  imported once for all workers

    gc.disable()  # figures are few, and a collection in a worker would copy the pages that it shares
    line = Connection(int(sys.argv[2]))
    with ProcessPoolExecutor(
        min(MAX_PROCESSES, len(os.sched_getaffinity(0))),
        multiprocessing.get_context("fork"),
        initializer=_end_with_parent,
        initargs=(line,),
    ) as pool:
        with suppress(EOFError, OSError):  # the parent has ended or closed the connection
            drawn = [pool.submit(_draw, text) for text in iter(line.recv_bytes, b"")]
            for each in drawn:
                line.send_bytes(each.result())
        pool.shutdown(cancel_futures=True)


def _end_with_parent(line: Connection) -> None:
    line.close()  # else the other end would not see that the parent has ended
    Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _draw(text: bytes) -> bytes:
    from reports.print.pictures import draw_picture

    return draw_picture(*load_task(text))
