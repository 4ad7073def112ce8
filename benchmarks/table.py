"""Every benchmark by its name; the module behind it is imported when it is asked for."""

import importlib
from typing import cast

from benchmarks.harness import Benchmark
from sweep.config.errors import InputError, describe_unknown

# Each module holds its ``BENCHMARK``.
MODULES = {
    "input": "benchmarks.input_path",
    "harness": "benchmarks.hand_loop",
    "precision": "benchmarks.precision",
    "lightning": "benchmarks.lightning_trainer",
    "accelerate": "benchmarks.accelerate_loop",
    "search_nsga2": "benchmarks.search_nsga2",
    "search_default": "benchmarks.search_default",
    "search_front": "benchmarks.search_front",
    "ask": "benchmarks.ask_latency",
    "ask_growth": "benchmarks.ask_growth",
    "ask_default": "benchmarks.ask_default",
    "workers": "benchmarks.workers",
    "open": "benchmarks.open_study",
    "frames": "benchmarks.read_frames",
    "report": "benchmarks.report_time",
    "report_many": "benchmarks.report_many",
    "noise": "benchmarks.noise_cost",
    "monitor": "benchmarks.monitor_cost",
    "probe": "benchmarks.probe_time",
    "forecast": "benchmarks.forecast_error",
    "ray_overhead": "benchmarks.ray_overhead",
    "data_look": "benchmarks.data_look",
    "data_look_again": "benchmarks.data_look_again",
}

# With a peer that requires an environment of its own: `make bench-peers`.
PEERS = {"search_moasha": "benchmarks.search_moasha"}


def find(name: str) -> Benchmark:
    """The benchmark called ``name``.

    Raises:
        InputError: for an unknown name, or a peer that is not installed.
    """
    known = MODULES | PEERS
    if name not in known:
        raise InputError(describe_unknown("benchmark", name, known))
    try:
        return cast("Benchmark", importlib.import_module(known[name]).BENCHMARK)
    except ModuleNotFoundError as error:
        raise InputError(f"benchmark {name}: {error}; run pip install -c constraints.txt -e '.[bench]'.") from None
