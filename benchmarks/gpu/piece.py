"""Pieces of ``python -m benchmarks.gpu``: each in a process of its own, which sends each sample as a line of JSON.

What breaks the process, a GPU that answers no more or the end of its time, then costs no other piece.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from benchmarks.gpu.measures import Job, Measure, TimeIsOverError
from benchmarks.gpu.plan import PIECES, Piece, State
from benchmarks.gpu.sheet import Sheet
from benchmarks.gpu.trainings import MEASURES
from benchmarks.harness import Json, Setting
from sweep.measurement.device import resolve_device
from sweep.training.processes import bind_forks_to_parent, die_with_parent

ROOT = Path(__file__).resolve().parents[2]
_GRACE_SECONDS = 15.0  # a piece that knows its time ends before it is ended
Send = Callable[[Json], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one piece; the samples that an earlier run kept are read from standard input."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.piece")
    parser.add_argument("name", choices=PIECES)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--parent", type=int, help="the process with which this one ends")
    options = parser.parse_args(arguments)
    if options.parent is not None:
        die_with_parent(options.parent)
        bind_forks_to_parent()
    until, kept = time.monotonic() + options.seconds, json.load(sys.stdin)
    line = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what others print goes to standard error
    try:
        setting = Setting(resolve_device(options.device), options.tiny)
    except Exception as error:  # for the sheet, whatever it is
        print(json.dumps(_ending("failed", f"{type(error).__name__}: {error}")), file=line, flush=True)
        return 0
    job = Job(setting=setting, until=until, kept=kept, page=options.page)
    run_measure(MEASURES[options.name], job, lambda message: print(json.dumps(message), file=line, flush=True))
    return 0


def run_measure(measure: Measure, job: Job, send: Send) -> None:
    """Sends each sample as soon as it is there, and how the piece ended."""
    try:
        for sample in measure.collect(job):
            send({"kind": "sample", "sample": sample})
        send(_ending("done"))
    except TimeIsOverError as error:
        send(_ending("cut short", str(error)))
    except ModuleNotFoundError as error:
        send(_ending("failed", f"the package {error.name} is not installed"))
    except Exception as error:  # whatever it is, the next piece has its turn
        traceback.print_exc()
        send(_ending("failed", f"{type(error).__name__}: {error}"))


def _ending(state: str, why: str = "") -> Json:
    return {"kind": "end", "state": state, "why": why[:500]}


@dataclass(frozen=True, kw_only=True)
class Day:
    """What all pieces share; ``until`` by ``time.monotonic``."""

    sheet: Sheet
    device: str
    until: float
    is_tiny: bool = False


def run_pieces(pieces: Sequence[Piece], day: Day, *, is_again: bool = False) -> list[Piece]:
    """Runs ``pieces`` in turn, each whose estimate fits into the time; returns those that were left out."""
    left = []
    for piece in pieces:
        remaining = day.until - time.monotonic()
        if not day.is_tiny and remaining < piece.seconds:
            _tell(day, f"{piece.name}: left out, {remaining:.0f} s remain and {piece.seconds:.0f} are estimated")
            left.append(piece)
            continue
        limit = min(piece.limit_seconds, remaining)
        _tell(day, f"{piece.name}: begins, about {piece.seconds:.0f} s on a GPU, {limit:.0f} s at most")
        began, kept = time.monotonic(), day.sheet.begin(piece.name, is_again=is_again)
        # a command that is killed leaves nothing on the GPU that the next one would find busy
        command = [sys.executable, "-m", "benchmarks.gpu.piece", piece.name, "--parent", str(os.getpid())]
        command += ["--device", day.device, f"--seconds={max(1.0, limit - _GRACE_SECONDS)}"]
        page = day.sheet.path.with_name(f"{day.sheet.path.stem}-study.html").absolute()
        command += ["--tiny"] if day.is_tiny else ["--page", str(page)]
        state, why = run_piece(piece, command, limit, day.sheet, json.dumps(kept))
        day.sheet.end(piece.name, state, why, time.monotonic() - began)
        _tell(day, f"{piece.name}: {state} after {time.monotonic() - began:.1f} s{f', {why}' if why else ''}")
    return left


def run_piece(
    piece: Piece, command: Sequence[str], limit_seconds: float, sheet: Sheet, kept: str = "[]"
) -> tuple[State, str]:
    """How the process of a piece ended, and why; what it sends is in ``sheet`` at once, its other output in the log."""
    is_over, pipe = threading.Event(), subprocess.PIPE
    ending: tuple[State, str] | None = None
    with subprocess.Popen(
        command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        log = threading.Thread(target=_copy_log, args=(process.stderr, sheet.path.with_suffix(".log")), daemon=True)
        log.start()

        def cut_off() -> None:
            is_over.set()
            _kill(process.pid)

        timer = threading.Timer(limit_seconds, cut_off)
        timer.start()
        try:
            with suppress(BrokenPipeError):  # it ended before it read
                process.stdin.write(kept)
                process.stdin.close()
            for message in map(json.loads, process.stdout):
                if message["kind"] == "sample":
                    samples = [*sheet.document["pieces"][piece.name]["samples"], message["sample"]]
                    sheet.add(piece.name, message["sample"], MEASURES[piece.name].answer(samples))
                else:
                    ending = message["state"], message["why"]
            code = process.wait()
        finally:
            timer.cancel()
            _kill(process.pid)  # what it may have left running would disturb the next
            log.join(timeout=5.0)
    if ending:
        return ending
    if is_over.is_set():
        return "cut short", f"ended after {limit_seconds:.0f} s"
    return "failed", f"its process ended with exit code {code}"


def _copy_log(output: IO[str], path: Path) -> None:
    with path.open("a", encoding="utf-8") as log:
        for line in output:
            log.write(hide_folders(line))
            log.flush()


def hide_folders(line: str) -> str:
    """``line`` without the folders of this machine, so that logs of two machines can be compared."""
    places = {str(ROOT): ".", sys.prefix: "PYTHON", sys.base_prefix: "PYTHON", tempfile.gettempdir(): "TMP"}
    for folder in sorted(places, key=len, reverse=True):  # one may lie in another
        line = line.replace(folder, places[folder])
    return line


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):  # nothing of it is left
        os.killpg(group, signal.SIGKILL)


def _tell(day: Day, text: str) -> None:
    line = f"{time.strftime('%H:%M:%S')} {text}\n"
    print(line, end="", file=sys.stderr, flush=True)
    day.sheet.path.parent.mkdir(parents=True, exist_ok=True)
    with day.sheet.path.with_suffix(".log").open("a", encoding="utf-8") as log:
        log.write(line)


if __name__ == "__main__":
    sys.exit(main())
