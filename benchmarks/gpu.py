"""``python -m benchmarks.gpu [--only PART,PART.MEASURE ...]``: checks and measures on a CUDA device, under 25 minutes.

Every part runs in a process of its own, for less than ten minutes. What it finds is written at once into one file,
``benchmarks/results/gpu-<device>-<date>.json``, which a further run of the day completes; the table lies beside it.
Exit code 0 when every target is met, 1 when not, 2 for input that is refused, such as a device that is not there.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu_part import MODULES, measures_of
from benchmarks.gpu_sheet import Row, Sheet, as_text, is_met
from benchmarks.results import FOLDER
from sweep.config.errors import InputError, describe_unknown
from sweep.measurement.device import resolve_device

TOTAL_SECONDS = 1_440  # of all parts; starting and describing takes some as well
PART_SECONDS = 570  # of one part
_SHARES = {
    "checks": 16,
    "memory": 9,
    "ratios": 21,
    "cifar": 22,
    "study": 16,
    "packed": 16,
}  # of the time, where all are run
_GRACE_SECONDS = 15  # a part that knows its time ends before it is ended
_DESCRIBE = """
import json, sys, torch
from sweep.measurement.environment import describe_environment
print(json.dumps(describe_environment(torch.device(sys.argv[1]))))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the chosen parts, in order; prints the table of all that is known of the day."""
    options = _parser().parse_args(arguments)
    try:
        chosen = choose(options.only)
        device = resolve_device(options.device)  # which makes no context there: no part shall find a neighbour
        if device.type != "cuda" and not options.tiny:
            raise InputError(f"--device {options.device}: these targets are a GPU's; use python -m benchmarks.")
        if options.tiny and options.results is None:
            raise InputError("--tiny measures nothing: give --results FOLDER to see what it writes.")
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    sheet = Sheet(_environment(str(device)), options.results or FOLDER)
    for part, seconds in part_seconds(tuple(chosen)).items():
        print(f"{part}: for {seconds:.0f} s at most", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "benchmarks.gpu_part", part, *chosen[part], "--device", str(device)]
        command += [f"--seconds={seconds - _GRACE_SECONDS}", *(["--tiny"] if options.tiny else [])]
        run_part(part, command, seconds, sheet)
        print(f"saved {sheet.path}", file=sys.stderr, flush=True)
    print(as_text(sheet.document), end="", flush=True)
    return 0 if is_met(sheet.document, tuple(chosen)) else 1


def choose(only: str | None) -> dict[str, list[str]]:
    """The parts of ``--only`` in their order, each with its measures; no measure stands for all of them.

    Raises:
        InputError: for an unknown part or measure.
    """
    chosen: dict[str, list[str]] = {}
    for name in only.split(",") if only else MODULES:
        part, _, measure = name.strip().partition(".")
        if part not in MODULES:
            raise InputError(describe_unknown("part", part, MODULES))
        if measure and measure not in measures_of(part):
            raise InputError(describe_unknown(f"measure of {part}", measure, measures_of(part)))
        chosen.setdefault(part, [])
        chosen[part] += [measure] if measure else []
    return {part: chosen[part] for part in MODULES if part in chosen}


def part_seconds(parts: tuple[str, ...]) -> dict[str, float]:
    """How long each of ``parts`` may take: its share of the whole time, and no longer than one part may."""
    whole = sum(_SHARES[part] for part in parts)
    return {part: min(PART_SECONDS, TOTAL_SECONDS * _SHARES[part] / whole) for part in parts}


def run_part(part: str, command: Sequence[str], limit_seconds: float, sheet: Sheet) -> None:
    """Writes into ``sheet`` what the process of a part says, until it ends or its time is over."""
    is_over = threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None

        def cut_off() -> None:
            is_over.set()
            _kill(process.pid)

        timer = threading.Timer(limit_seconds, cut_off)
        timer.start()
        try:
            for line in process.stdout:
                _hear(part, json.loads(line), sheet)
            code = process.wait()
        except BaseException:
            _kill(process.pid)
            raise
        finally:
            timer.cancel()
    why = f"cut off after {limit_seconds:.0f} s" if is_over.is_set() else f"its process ended with exit code {code}"
    sheet.end_open(part, why)
    if part not in sheet.document["parts"]:  # it did not come as far as its first measure
        sheet.begin(part, "start")
        sheet.end(part, "start", why)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError):  # it ended just now
        os.killpg(group, signal.SIGKILL)


def _hear(part: str, message: dict[str, Any], sheet: Sheet) -> None:
    if message["kind"] == "plan":
        sheet.plan(part, message["measures"])
        return
    measure = message["measure"]
    if message["kind"] == "begin":
        sheet.begin(part, measure)
    elif message["kind"] == "row":
        sheet.add(part, measure, Row(**message["row"]))
    else:
        sheet.end(part, measure, message["why"], message["seconds"])


def _environment(device: str) -> dict[str, Any]:
    # by a process that is gone when the first part begins
    said = subprocess.run([sys.executable, "-c", _DESCRIBE, device], check=True, capture_output=True, text=True)
    environment: dict[str, Any] = json.loads(said.stdout.splitlines()[-1])
    return environment


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description="Checks and measures on a GPU.")
    parser.add_argument(
        "--only", metavar="PART,...", help=f"of {', '.join(MODULES)}, or PART.MEASURE; all when none is named"
    )
    parser.add_argument("--results", type=Path, help="folder of the file that is written (benchmarks/results)")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N; cpu only with --tiny")
    parser.add_argument("--tiny", action="store_true", help="smallest sizes: shows that it runs, measures nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
