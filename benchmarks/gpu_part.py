"""One part of ``python -m benchmarks.gpu`` in a process of its own, which says what it finds, line by line.

What breaks the process, a GPU that answers no more or the end of its time, then costs no other part.
"""

import argparse
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.gpu_sheet import Row
from benchmarks.harness import Setting
from sweep.measurement.device import resolve_device

# Each module holds its ``MEASURES``; in the order in which they run.
MODULES = {
    "checks": "benchmarks.gpu_checks",
    "memory": "benchmarks.gpu_memory",
    "ratios": "benchmarks.gpu_ratios",
    "cifar": "benchmarks.gpu_cifar",
    "study": "benchmarks.gpu_study",
    "packed": "benchmarks.gpu_packed",
}


@dataclass(frozen=True)
class Job:
    """Where to measure, and until when; a measure that could go on for longer looks at the time."""

    setting: Setting
    until: float  # by time.monotonic()

    @property
    def seconds_left(self) -> float:
        """Of the part; below 0 when its time is over."""
        return self.until - time.monotonic()


Measure = Callable[[Job], Iterator[Row]]
Say = Callable[[dict[str, Any]], None]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the measures of one part; each ends well or with the reason."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_part")
    parser.add_argument("part", choices=MODULES)
    parser.add_argument("measures", nargs="*", help="all when none is named")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--seconds", type=float, default=570.0)
    options = parser.parse_args(arguments)
    job = Job(Setting(resolve_device(options.device), options.tiny), time.monotonic() + options.seconds)
    say = _own_line()
    try:
        measures = measures_of(options.part)
    except ModuleNotFoundError as error:
        measures = {"start": partial(_raise, error)}
    chosen = [name for name in measures if not options.measures or name in (*options.measures, "start")]
    say({"kind": "plan", "measures": chosen})
    for name in chosen:
        run_measure(name, measures[name], job, say)
    return 0


def measures_of(part: str) -> dict[str, Measure]:
    """The measures of ``part`` by name."""
    measures: dict[str, Measure] = importlib.import_module(MODULES[part]).MEASURES
    return measures


def run_measure(name: str, measure: Measure, job: Job, say: Say) -> None:
    """Says that it begins, each row as soon as it is there, and how it ended."""
    began, why = time.monotonic(), ""
    say({"kind": "begin", "measure": name})
    if job.seconds_left <= 0:
        why = "no time was left"
    else:
        try:
            for row in measure(job):
                say({"kind": "row", "measure": name, "row": asdict(row)})
        except ModuleNotFoundError as error:
            why = f"the package {error.name} is not installed"
        except Exception as error:  # whatever it is, the next measure has its turn
            traceback.print_exc()
            why = f"{type(error).__name__}: {error}"[:500]
    say({"kind": "end", "measure": name, "why": why, "seconds": round(time.monotonic() - began, 1)})


def _raise(error: Exception, _job: Job) -> Iterator[Row]:
    raise error


def _own_line() -> Say:
    # what others print goes to standard error
    line = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=line, flush=True)

    return say


if __name__ == "__main__":
    sys.exit(main())
