"""One piece of ``python -m benchmarks.gpu`` in a process of its own, which sends each sample as a line of JSON.

What breaks the process, a GPU that answers no more or the end of its time, then costs no other piece.
"""

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.found import Job, Measure, TimeIsOverError
from benchmarks.gpu.plan import PIECES
from benchmarks.harness import Setting
from sweep.measurement.device import resolve_device
from sweep.training.subprocesses import bind_forks_to_parent, die_with_parent

Send = Callable[[dict[str, Any]], None]


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
    send = _take_standard_output()
    try:
        measure = find_measure(options.name)
        setting = Setting(resolve_device(options.device), options.tiny)
    except Exception as error:  # for the sheet, whatever it is
        traceback.print_exc()
        send(_ending("failed", f"{type(error).__name__}: {error}"))
        return 0
    run_measure(measure, Job(setting=setting, until=until, kept=kept, page=options.page), send)
    return 0


def find_measure(name: str) -> Measure:
    """The measure of the piece ``name``."""
    measure: Measure = importlib.import_module(PIECES[name].module).MEASURES[name]
    return measure


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


def _ending(state: str, why: str = "") -> dict[str, Any]:
    return {"kind": "end", "state": state, "why": why[:500]}


def _take_standard_output() -> Send:
    # what others print goes to standard error
    line = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=line, flush=True)

    return send


if __name__ == "__main__":
    sys.exit(main())
