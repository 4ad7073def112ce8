"""The training time of a trial as published benchmarks count it.

A time that is compared with a published one must count the same phases. Each is a sum of phases of the ledger.
"""

from collections.abc import Mapping

# What each clock counts, and its source.
CLOCK_MEANINGS = {
    "algoperf": "compiling, first steps and training; no set-up, no evaluation (AlgoPerf's submission time)",
    "airbench": "training alone; no loading, compiling, warm-up or evaluation (cifar10-airbench)",
    "ffcv": "everything from the start to the end, evaluations included (ffcv's wall-clock)",
}
COUNTED = {
    "algoperf": ("compile_seconds", "warmup_seconds", "train_seconds"),
    "airbench": ("train_seconds",),
    "ffcv": ("total_seconds",),
}
# Phases of this program alone, which no other clock counts.
OURS_ALONE = ("memory_seconds", "diagnostics_seconds")


def sum_published_clocks(measurements: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a trial by clock, from its ``measurements`` by name of the metric table; a clock with a part that was
    not measured is left out.

    airbench also counts the evaluation at the end with test-time augmentation, which no trial runs.
    """
    return {
        clock: _sum(clock, measurements)
        for clock, names in COUNTED.items()
        if all(name in measurements for name in names)
    }


def _sum(clock: str, measurements: Mapping[str, float]) -> float:
    counted = sum(measurements[name] for name in COUNTED[clock])
    ours = sum(measurements.get(name, 0.0) for name in OURS_ALONE) if clock == "ffcv" else 0.0
    return counted - ours
