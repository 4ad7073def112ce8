"""``python -m benchmarks NAME``: what can be run, and the command of those that are a ratio of two arms.

Exit code 0 when the target is met, 1 when not, 2 for input that is refused.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import BENCHMARKS, ArmsDifferError, Benchmark, Setting, measure, save_ratio, warn_if_busy
from sweep.config.errors import InputError, describe_unknown
from sweep.measurement.device import resolve_device

# The module that registers each; imported when it is asked for.
RATIOS = {
    **dict.fromkeys(("input", "harness", "noise", "monitor"), "speed"),
    **dict.fromkeys(("script_overhead", "script_trial", "script_loop"), "scripts"),
    **dict.fromkeys(("frames", "report", "report_many"), "records"), "forecast": "forecast",
    **dict.fromkeys(("map_decode", "map_draft", "map_load", "map_epoch", "map_steps", "map_steps_small"), "image_maps"),
}  # fmt: skip
# Modules with a ``main`` and options of their own, which take minutes to hours.
STUDIES = {
    "answer_truth": "how often the answer is right on made-up truths",
    "answer_arms": "seconds until the answer is right and settled, ours against peers, on recorded tables",
    "ask_guide": "what `sweep ask` loses to an oracle and gains on the usual settings",
    "claims_digits": "every claim by its own study on the digits",
    "claims_truth": "how often the findings are right on made-up truths",
    "critical_batch": "two ways to the critical batch where it is known",
    "memory_forecast": "the forecast of memory beside what trials record",
    "text_memory": "memory of a step of GPT-2 and BERT without running it, beside the allocator",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one benchmark; the verdict of a ratio is the last line on standard output."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given and given[0] in STUDIES:
            os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each process that it starts
            return int(_import(given[0]).main(given[1:]))
        return _run(_parser().parse_args(given))
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    except ArmsDifferError as error:
        print(f"{given[0]}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; what was kept is not computed again", file=sys.stderr)
        return 130


def find(name: str) -> Benchmark:
    if name not in RATIOS:
        raise InputError(describe_unknown("benchmark", name, RATIOS | STUDIES))
    _import(RATIOS[name])
    return BENCHMARKS[name]


def _import(module: str) -> Any:
    return importlib.import_module(f"benchmarks.{module}")


def _run(options: argparse.Namespace) -> int:
    if options.list or not options.name:
        print("\n".join(RATIOS))
        return 0
    benchmark, device = find(options.name), resolve_device(options.device)
    if options.pairs is not None and options.pairs < 1:
        raise InputError(f"--pairs {options.pairs}: give 1 or more.")
    warn_if_busy()
    print(f"{benchmark.name}: {benchmark.question}", file=sys.stderr)
    result = measure(benchmark, Setting(device, options.tiny), options.pairs)
    for name, value in result.facts.items():
        print(f"{name}: {value}", file=sys.stderr)
    if options.save:
        save_ratio(result, device)
    print(result.line, flush=True)
    return 0 if result.is_met else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures one ratio against its target.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="With options of their own (NAME --help):\n"
        + "\n".join(f"  {name:20}{about}" for name, about in STUDIES.items()),
    )
    parser.add_argument("name", nargs="?", help="which benchmark; --list shows them")
    parser.add_argument("--list", action="store_true", help="show the names and stop")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    parser.add_argument("--pairs", type=int, help="measured pairs (each benchmark's own number)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    parser.add_argument("--tiny", action="store_true", help="smallest sizes: shows that it runs, measures nothing")
    return parser


if __name__ == "__main__":
    sys.exit(main())
