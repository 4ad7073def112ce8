"""``python -m benchmarks.gpu``: checks and measures on a CUDA device, in pieces of at most eight minutes.

    python -m benchmarks.gpu --plan               # the pieces by importance, what each takes, what is done
    python -m benchmarks.gpu --rehearse           # all of it in the smallest sizes, on a CPU unless --device cuda
    python -m benchmarks.gpu --minutes 9          # what is left, in order, as far as nine minutes go
    python -m benchmarks.gpu --only input,memory  # these, unless they are done; --again if they are
    python -m benchmarks.gpu --compare            # predictions and outcomes of the newest file

A piece that is done is not repeated; one that was cut short continues from what it kept; one that failed is tried again
when nothing else is left. Everything is in one file, ``benchmarks/results/gpu-<device>-<date>.json``, with a
log beside it. Exit code 0 when every goal of the chosen pieces is met (rehearsal: every question is covered), 1 when
not, 2 for input that is refused, such as a device that is not there, 130 when it was interrupted.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.piece import Day, run_pieces
from benchmarks.gpu.plan import PIECES, TOTAL_SECONDS, choose_pieces, order_pieces
from benchmarks.gpu.sheet import Sheet, format_plan, format_sheet, is_met, list_missing
from benchmarks.harness import RESULTS
from sweep.config.errors import InputError
from sweep.measurement.device import resolve_device

_DESCRIBE = """
import json, sys, torch
from sweep.measurement.device import describe_environment
print(json.dumps(describe_environment(torch.device(sys.argv[1]))))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the options name; prints the plan, or the table of all that is known."""
    options = _parser().parse_args(arguments)
    try:
        if options.plan or options.compare:
            return _show(options)
        return _run(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped; the same command continues from here", file=sys.stderr)
        return 130


def _run(options: argparse.Namespace) -> int:
    pieces = choose_pieces(options.only)
    device = resolve_device(options.device or ("cpu" if options.rehearse else "cuda"))
    if device.type != "cuda" and not options.rehearse:
        raise InputError(f"--device {options.device}: these goals are a GPU's; use --rehearse or python -m benchmarks.")
    if options.again and not options.only:
        raise InputError("--again measures what is done once more: name it with --only.")
    if options.minutes <= 0:
        raise InputError(f"--minutes {options.minutes:g}: give more than 0.")
    until = time.monotonic() + 60 * options.minutes
    environment = _environment(str(device))  # by a process that is gone when the first piece begins
    sheet = Sheet(environment, options.results, is_rehearsal=options.rehearse)
    day = Day(sheet=sheet, device=str(device), until=until, is_tiny=options.rehearse)
    is_again = options.again or options.rehearse
    left = pieces if is_again else order_pieces(pieces, sheet.states())
    out = run_pieces(left, day, is_again=is_again)
    print(format_sheet(sheet.document), end="", flush=True)
    print(f"saved {sheet.path}", file=sys.stderr)
    if out:
        print(f"left for another run: {', '.join(piece.name for piece in out)}", file=sys.stderr)
    if not options.rehearse:
        return 0 if is_met(sheet.document, pieces) else 1
    missing = set(list_missing(sheet.document))
    return 1 if any(missing & piece.questions.keys() for piece in pieces) else 0


def _show(options: argparse.Namespace) -> int:
    # in the order of their names: of one day and device the last is the newest
    paths = sorted(options.results.glob("gpu-*.json"), reverse=True)
    documents = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    document = max(documents, key=lambda each: str(each["date"]), default=None)
    if options.compare:
        if document is None:
            raise InputError(f"--compare: no result of a GPU is in {options.results}.")
        print(format_sheet(document), end="")
        return 0 if is_met(document, choose_pieces(options.only)) else 1
    states = {name: piece["state"] for name, piece in document["pieces"].items()} if document else {}
    print(format_plan(states), end="")
    return 0


def _environment(device: str) -> dict[str, Any]:
    said = subprocess.run([sys.executable, "-c", _DESCRIBE, device], check=True, capture_output=True, text=True)
    environment: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return environment


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Checks and measures on a GPU.")
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--plan", action="store_true", help="show the pieces with their estimates, and stop")
    action.add_argument("--rehearse", action="store_true", help="smallest sizes: shows that it runs, measures nothing")
    action.add_argument("--compare", action="store_true", help="show predictions and outcomes of the newest result")
    parser.add_argument("--only", metavar="PIECE,...", help=f"of {', '.join(PIECES)}")
    parser.add_argument("--again", action="store_true", help="also measure what is done; with --only")
    parser.add_argument(
        "--minutes", type=float, default=TOTAL_SECONDS / 60, help="begin nothing that takes longer (40)"
    )
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the files (benchmarks/results)")
    parser.add_argument("--device", help="cuda, cuda:N (cuda); cpu only with --rehearse, where it is the default")
    return parser


if __name__ == "__main__":
    sys.exit(main())
