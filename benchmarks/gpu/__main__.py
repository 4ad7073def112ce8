"""``python -m benchmarks.gpu``: checks and measures on a CUDA device, in pieces of at most eight minutes.

    python -m benchmarks.gpu --rehearse           # all of it in the smallest sizes, on a CPU unless --device cuda
    python -m benchmarks.gpu --minutes 9          # what is left, in order, as far as nine minutes go
    python -m benchmarks.gpu --only input,memory  # these, also if they are done
    python -m benchmarks.gpu --compare            # predictions and outcomes of the newest file

Each piece is a process of its own, so that what breaks it, a GPU that answers no more or the end of its time, costs no
other piece. Everything is in one file, ``benchmarks/results/gpu-<device>.json``, with a log beside it. Exit code 0 when
every goal of the chosen pieces is met (rehearsal: every question is covered), 1 when not, 2 for input that is refused,
such as a device that is not there, 130 when it was interrupted.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu.measures import Job, Measure, TimeIsOverError
from benchmarks.gpu.sheet import PIECES, TOTAL_SECONDS, Piece, Sheet, choose_pieces, format_sheet, is_complete
from benchmarks.gpu.trainings import MEASURES
from benchmarks.harness import RESULTS, Json, Setting
from sweep.config.errors import InputError
from sweep.measurement.device import resolve_device
from sweep.training.processes import bind_forks_to_parent, die_with_parent

ROOT = Path(__file__).resolve().parents[2]
_GRACE_SECONDS = 15.0  # a piece that knows its time ends before it is ended
_DESCRIBE = """
import json, sys, torch
from sweep.measurement.device import describe_environment
print(json.dumps(describe_environment(torch.device(sys.argv[1]))))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the options name; prints the table of all that is known."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Checks and measures on a GPU.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--rehearse", action="store_true", help="smallest sizes: shows that it runs, measures nothing")
    action.add_argument("--compare", action="store_true", help="show predictions and outcomes of the newest result")
    action.add_argument("--piece", choices=PIECES, help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument("--only", metavar="PIECE,...", help=f"of {', '.join(PIECES)}, also if they are done")
    parser.add_argument(
        "--minutes", type=float, default=TOTAL_SECONDS / 60, help="begin nothing that takes longer (40)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the files (benchmarks/results)")
    parser.add_argument("--device", help="cuda, cuda:N (cuda); cpu only with --rehearse, where it is the default")
    options = parser.parse_args(arguments)
    try:
        if options.piece:
            return _measure(options)
        return _show(options) if options.compare else _run(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command continues from here", file=sys.stderr)
        return 130


def _show(options: argparse.Namespace) -> int:
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in options.results.glob("gpu-*.json")]
    document: Json = {"device": "no GPU yet", "date": "", "is_rehearsal": False, "pieces": {}}
    document = max(documents, key=lambda each: str(each["date"]), default=document)
    print(format_sheet(document), end="")
    return 0 if is_complete(document, choose_pieces(options.only)) else 1


def _run(options: argparse.Namespace) -> int:
    pieces = choose_pieces(options.only)
    device = str(resolve_device(options.device or ("cpu" if options.rehearse else "cuda")))
    if not device.startswith("cuda") and not options.rehearse:
        raise InputError(f"--device {options.device}: these goals are a GPU's; use --rehearse or python -m benchmarks.")
    until = time.monotonic() + 60 * options.minutes
    # by a process that is gone when the first piece begins
    said = subprocess.check_output([sys.executable, "-c", _DESCRIBE, device], text=True)
    sheet = Sheet.begin(json.loads(said.splitlines()[-1]), options.results, is_rehearsal=options.rehearse)
    for piece in pieces:
        remaining = until - time.monotonic()
        if not options.only and sheet.state(piece.name) == "done":
            continue
        if not options.rehearse and remaining < piece.seconds:
            _tell(f"{piece.name}: left out, {remaining:.0f} s remain and {piece.seconds:.0f} are estimated")
            continue
        limit = min(piece.limit_seconds, remaining)
        _tell(f"{piece.name}: begins, about {piece.seconds:.0f} s on a GPU, {limit:.0f} s at most")
        # a command that is killed leaves nothing on the GPU that the next one would find busy
        command = [sys.executable, "-m", "benchmarks.gpu", "--piece", piece.name, "--device", device]
        command += ["--results", str(sheet.path.absolute()), f"--minutes={max(1.0, limit - _GRACE_SECONDS) / 60}"]
        run_piece(piece, command, limit, sheet)
        known = sheet.document["pieces"][piece.name]
        _tell(f"{piece.name}: {known['state']} after {known['seconds']} s {known['why']}")
    print(format_sheet(sheet.document), end="", flush=True)
    print(f"saved {sheet.path}", file=sys.stderr)
    return 0 if is_complete(sheet.document, pieces) else 1


def run_piece(piece: Piece, command: Sequence[str], limit_seconds: float, sheet: Sheet) -> None:
    """Runs the process of a piece, which writes what it finds to the file of ``sheet``; the rest goes to the log."""
    sheet.add(piece.name, {}, state="running", why="", seconds=0.0, environment=[*sheet.document["environments"]][-1])
    began = time.monotonic()
    log = sheet.path.with_suffix(".log").open("a", encoding="utf-8")
    with log, subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True) as process:
        try:
            code = process.wait(timeout=limit_seconds)
            state, why = "failed", f"its process ended with exit code {code}"
        except subprocess.TimeoutExpired:
            state, why = "cut short", f"ended after {limit_seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):  # what it may have left running would disturb the next
                os.killpg(process.pid, signal.SIGKILL)
    sheet.document = Sheet(sheet.path).document
    if sheet.state(piece.name) == "running":
        sheet.add(piece.name, state=state, why=why)
    sheet.add(piece.name, seconds=round(time.monotonic() - began, 1))


def _measure(options: argparse.Namespace) -> int:
    die_with_parent(os.getppid())
    bind_forks_to_parent()
    sheet, until = Sheet(options.results), time.monotonic() + 60 * options.minutes
    setting = Setting(resolve_device(options.device), sheet.document["is_rehearsal"])
    page = None if setting.is_tiny else sheet.path.with_name(f"{sheet.path.stem}-study.html")
    run_measure(options.piece, MEASURES[options.piece], Job(setting=setting, until=until, page=page), sheet)
    return 0


def run_measure(name: str, measure: Measure, job: Job, sheet: Sheet) -> None:
    """Keeps the rows as soon as they are there, and how the piece ended."""
    state, why = "done", ""
    try:
        for rows in measure(job):
            sheet.add(name, rows)
    except TimeIsOverError as error:
        state, why = "cut short", str(error)
    except Exception as error:  # whatever it is, the next piece has its turn
        traceback.print_exc()
        state, why = "failed", f"{type(error).__name__}: {error}"[:500]
    sheet.add(name, state=state, why=why)


def _tell(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
