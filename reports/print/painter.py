"""Draws pictures in processes of their own, while this one makes the page: matplotlib takes longer than all the rest.

What is sent there are figures, which are data, one by one as they are made; what comes back are the bytes of the
pictures. The process that is started has matplotlib by then and divides itself, one for each processor.
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import is_dataclass
from multiprocessing.connection import Connection, Pipe
from queue import SimpleQueue
from threading import Thread
from typing import Any, NoReturn, Self, final

from reports import figure as figures
from reports.figure import Figure

Task = tuple[Figure, str]  # a figure, and the format of its picture
MAX_PROCESSES = 4
_PROGRAM = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from reports.print.painter import main; main()"
_SIZE = 8  # bytes that tell how long a picture is


@final
class Painter:
    """Processes that are ready to draw when the figures are; they are gone when the context is left."""

    def __init__(self) -> None:
        # with the path of this process, so that it finds this package wherever it lies
        command = [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # whoever has threads cannot divide
        )
        self._texts: SimpleQueue[str | None] = SimpleQueue()
        self._answer = b""
        self._thread = Thread(target=self._talk, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._texts.put(None)
        self._thread.join()
        self._process.wait()

    def send(self, task: Task) -> None:
        """Has a picture drawn; returns at once."""
        self._texts.put(dumps(task))

    def _talk(self) -> None:
        pipe, answer = self._process.stdin, self._process.stdout
        assert pipe is not None
        assert answer is not None
        with answer:
            with suppress(BrokenPipeError), pipe:  # its end shows in what it answers
                for text in iter(self._texts.get, None):
                    pipe.write(text.encode() + b"\n")
            self._answer = answer.read()

    def pictures(self) -> list[bytes] | None:
        """The picture of each task, when all are drawn; None where the processes could not."""
        self._texts.put(None)
        self._thread.join()
        return list(_parts(self._answer)) if self._process.wait() == 0 else None


def dumps(task: Task) -> str:
    """A task as one line of JSON; a layer, a panel or a figure is an object with its class as ``kind``."""
    return json.dumps(task, default=_fields)


def loads(text: str | bytes) -> Task:
    """The inverse of :func:`dumps`."""
    figure, form = json.loads(text, object_hook=_built)
    return figure, form


def _fields(value: object) -> dict[str, Any]:
    if not is_dataclass(value):
        raise TypeError(f"{value!r} is no part of a figure")
    return {"kind": type(value).__name__, **vars(value)}


def _built(fields: dict[str, Any]) -> Any:
    return getattr(figures, fields.pop("kind"))(**{name: _tuples(value) for name, value in fields.items()})


def _tuples(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    # most lists are of thousands of numbers
    return tuple(map(_tuples, value)) if any(isinstance(each, list) for each in value[:1]) else tuple(value)


def _parts(answer: bytes) -> list[bytes]:
    parts, at = [], 0
    while at < len(answer):
        end = at + _SIZE + int.from_bytes(answer[at : at + _SIZE])
        parts.append(answer[at + _SIZE : end])
        at = end
    return parts


def main() -> None:
    """What the process runs: tasks from standard input, line by line, pictures to standard output."""
    hands = _divide(min(MAX_PROCESSES, len(os.sched_getaffinity(0))))
    idle: SimpleQueue[Connection] = SimpleQueue()
    for hand in hands:
        idle.put(hand)

    def draw(text: bytes) -> bytes:
        hand = idle.get()
        try:
            hand.send_bytes(text)
            return hand.recv_bytes()
        finally:
            idle.put(hand)  # of a copy that is gone too: whoever takes it next hears so, and nobody waits

    with ThreadPoolExecutor(len(hands)) as pool:
        for drawn in pool.map(draw, sys.stdin.buffer):
            sys.stdout.buffer.write(len(drawn).to_bytes(_SIZE) + drawn)
    for hand in hands:
        hand.close()
        os.wait()


def _divide(number: int) -> list[Connection]:
    """Lines to so many copies of this process that draw."""
    from reports.print import pictures  # noqa: F401  imported once for all of them

    gc.freeze()  # they share these pages: their collector must not touch every object
    hands: list[Connection] = []
    for _ in range(number):
        here, there = Pipe()
        if os.fork() == 0:
            _serve(there, [*hands, here])
        there.close()
        hands.append(here)
    return hands


def _serve(line: Connection, others: Iterable[Connection]) -> NoReturn:
    from reports.print.pictures import picture

    try:
        for other in others:
            other.close()  # else the lines of a process that was killed would never end
        while True:
            figure, name = loads(line.recv_bytes())
            line.send_bytes(picture(figure, next(form for form in figures.FORMATS if form == name)))
    finally:
        os._exit(0)
