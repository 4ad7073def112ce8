"""What measuring the gradient noise scale costs a trial: with one micro batch per step, and with four."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

from benchmarks.hand_loop import losses_apart
from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Setting
from benchmarks.trials import train

_GPU_TOLERANCE = 1e-2  # relative: a GPU adds in another order each time
# one micro batch: two halves of every 48th step (on a GPU: 96th); four: those of every fourth step
_CASES: dict[str, dict[str, Any]] = {
    "one_micro_batch": {"batch.micro": 64},
    "four_micro_batches": {"batch.micro": 16, "batch.accumulation": 4},
}


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """An arm's figure is the time of both trials together; the training must be the same, on a CPU to the last bit."""
    values: dict[str, Any] = {
        "model.name": "resnet8",
        "data.name": "digits",
        "optimizer.lr": 0.05,
        "budget.epochs": setting.pick(12, 2),
        **({"data.subset": 200} if setting.is_tiny else {}),
    }
    seconds: dict[tuple[str, bool], list[float]] = defaultdict(list)
    losses: dict[tuple[str, bool], list[float]] = {}

    def both(is_measured: bool) -> float:
        for name, case in _CASES.items():
            trained = train({**values, **case, "diagnostics.noise_scale": is_measured}, setting.device)
            seconds[name, is_measured].append(trained.seconds)
            losses[name, is_measured] = [evaluation.train_loss for evaluation in trained.evaluations]
        return sum(seconds[name, is_measured][-1] for name in _CASES)

    def check() -> dict[str, Any]:
        for name in _CASES:
            apart = losses_apart(losses[name, True], losses[name, False], setting.device)
            if not apart <= (0.0 if setting.device.type == "cpu" else _GPU_TOLERANCE):
                raise ArmsDifferError(f"{name}: the training losses differ: {losses}")
        return {f"ratio_{name}": _median_ratio(seconds[name, True], seconds[name, False]) for name in _CASES}

    yield Arms(lambda _pair: both(True), lambda _pair: both(False), check, {"settings": values})


def _median_ratio(measured: list[float], plain: list[float]) -> float:
    # without the warm-up
    return median(one / other for one, other in zip(measured[1:], plain[1:], strict=True))


BENCHMARK = Benchmark(
    "noise",
    "seconds of training with the gradient noise scale over without (digits, ResNet-8, 64 samples per step)",
    "seconds",
    "lower",
    1.05,
    prepare,
)
