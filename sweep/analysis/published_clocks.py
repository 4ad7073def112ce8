"""One trial by the clocks that others publish their training times by.

A time that is compared with a published one must count what that one counts. From the ledger each is one sum.
"""

from collections.abc import Mapping

# What each clock counts, and where that is written down.
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
# What only this program does: nobody else's clock counts it.
OURS_ALONE = ("memory_seconds", "diagnostics_seconds")


def sum_published_clocks(measurements: Mapping[str, float]) -> dict[str, float]:
    """Seconds of a trial by clock, from its ``measurements`` by name of the metric table; a clock with a part that was
    not measured is left out.

    airbench also counts the evaluation at the end with test-time augmentation, which no trial here does.
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
