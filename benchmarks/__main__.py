"""``python -m benchmarks NAME``: exit code 0 when the target is met, 1 when not, 2 for input that is refused."""

import argparse
import os
import sys
from collections.abc import Sequence

from benchmarks import table
from benchmarks.harness import ArmsDifferError, Setting, measure, warn_if_busy
from benchmarks.results import save
from sweep.config.errors import InputError
from sweep.measurement.device import resolve_device


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one benchmark; its verdict is the last line on standard output."""
    options = _parser().parse_args(arguments)
    if options.list or not options.name:
        for name in table.MODULES:
            print(name)
        return 0
    try:
        return _run(options)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except ArmsDifferError as error:
        print(f"{options.name}: {error}", file=sys.stderr)
        return 1


def _run(options: argparse.Namespace) -> int:
    benchmark, device = table.find(options.name), resolve_device(options.device)
    if options.pairs is not None and options.pairs < 1:
        raise InputError(f"--pairs {options.pairs}: give 1 or more.")
    warn_if_busy(os.getloadavg()[0])
    print(f"{benchmark.name}: {benchmark.question}", file=sys.stderr)
    result = measure(benchmark, Setting(device, options.tiny), options.pairs)
    for name, value in result.facts.items():
        print(f"{name}: {value}", file=sys.stderr)
    if options.save:
        print(f"saved {save(result, device)}", file=sys.stderr)
    print(result.line, flush=True)
    return 0 if result.is_met else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measures one ratio against its target.")
    parser.add_argument("name", nargs="?", help="which benchmark; --list shows them")
    parser.add_argument("--list", action="store_true", help="show the names and stop")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    parser.add_argument("--pairs", type=int, help="measured pairs (each benchmark's own number)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    parser.add_argument("--tiny", action="store_true", help="smallest sizes: shows that it runs, measures nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
