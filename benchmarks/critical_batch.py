"""The critical batch in two ways on the noisy quadratic, where each has a closed form, by real trials.

``python -m benchmarks critical_batch``: the numbers of each way, measured and exact, and what each cost in samples.

Each way estimates something else, so that each is compared with its own exact value:

* steps: B_crit = E_min / S_min of the law S = S_min (1 + B_crit / B), fitted to the steps with a loss above the target
  at the best constant rate of each batch. Exact: the same fit to the expected steps, with the rate optimized. The law
  itself is not exact here; ``limit`` is E_min / S_min from the expected steps at a batch of 1 and at one of 1e9.
* noise: tr(S) / |G|^2 with |G|^2 averaged over a training to the target. Exact: the same of the expected squares.

``at_start`` is tr(H S) / G'HG, B_crit of a single step at its best rate (McCandlish et al. 2018, equation 2.8), at the
start: it grows along a training.
"""

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from benchmarks import quadratic as theory
from benchmarks.harness import save
from sweep.analysis.critical_batch import Regimes, fit_regimes
from sweep.config.trial import build_config
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.training.trial import run_trial

DIMENSIONS = 256
_LARGEST_RATE = 1.98  # of SGD, which diverges at 2 over the largest curvature, 1
_EPOCH_STEPS = 2
_MANY = 1e5  # steps, more than any training to the target takes
_BATCHES = (8, 24, 64, 192, 512)
_RATES = tuple(np.linspace(0.2, 1.95, 10).tolist())
_SEEDS = 4
_NOISE_BATCH, _NOISE_MICRO = 128, 16


@dataclass(frozen=True)
class Way:
    """An estimate in samples, its exact value, and the samples that it took to train."""

    measured: float
    exact: float
    samples: int

    @property
    def error(self) -> float:
        return self.measured / self.exact - 1


def measure_steps() -> Way:
    """Trainings of one length for each batch and rate."""
    fewest, samples = [], 0
    for batch in _BATCHES:
        samples += _SEEDS * len(_RATES) * _count_samples(batch)
        found = np.array([find_steps(batch, rate, _SEEDS) for rate in _RATES])  # (rates, 2)
        # the rate is chosen by one half of the seeds and its steps are read from the other: the fewest of many noisy
        # numbers would be too few
        reached = np.where(np.isfinite(found.sum(axis=1, keepdims=True)), found, np.inf)
        fewest.append(float(np.mean([reached[np.argmin(reached[:, half]), 1 - half] for half in (0, 1)])))
    exact = _fit(_BATCHES, [expect_fewest_steps(batch) for batch in _BATCHES])
    return Way(_fit(_BATCHES, fewest).critical_batch, exact.critical_batch, samples)


def _fit(batches: Sequence[int], steps: Sequence[float]) -> Regimes:
    law = fit_regimes(np.array(batches, dtype=np.float64), np.array(steps))
    assert law is not None, (batches, steps)
    return law


def _count_samples(batch: int) -> int:
    # half as many again, or more, as those until the target at the best rate
    return 8_000 + 130 * batch


def find_steps(batch: int, rate: float, seeds: int) -> tuple[float, float]:
    """Steps with a mean loss above the target, by each half of two or more seeds; NaN where it is above it at the end.

    A noisy loss first falls below the target earlier than the expected one, but spends about as many steps above it.
    """
    values = {
        "batch.micro": batch, "optimizer.lr": rate, "budget.samples": _count_samples(batch),
        "data.subset": _EPOCH_STEPS * batch,
    }  # fmt: skip
    runs = [_run({**values, "seed": seed}) for seed in range(seeds)]
    if any(ending.outcome != "complete" for _, ending in runs):
        return math.nan, math.nan
    start = theory.loss(theory.start(DIMENSIONS) ** 2)
    losses = np.array([[start, *(each.val_loss for each in told)] for told, _ in runs])
    steps = np.array([0, *(each.step for each in runs[0][0])], dtype=np.float64)
    return _count_above(steps, losses[::2].mean(axis=0)), _count_above(steps, losses[1::2].mean(axis=0))


def _count_above(steps: theory.Vector, losses: theory.Vector) -> float:
    # on straight lines between the logarithms
    above = np.log(losses / theory.TARGET_LOSS)
    if above[-1] > 0:
        return math.nan
    before, after = above[:-1], above[1:]
    highest = np.maximum(before, after)
    shares = np.clip(highest / np.maximum(np.abs(before - after), 1e-12), 0.0, 1.0)
    return float(np.diff(steps) @ shares)


def expect_steps(batch: float, rate: float) -> float:
    """Expected steps to the target at a constant rate; infinite where the noise keeps the loss above it."""
    curve, noise = theory.curvatures(DIMENSIONS), theory.noise_variances(DIMENSIONS)
    floor = 0.5 * float((rate * noise / (batch * (2 - rate * curve))).sum())
    if floor >= theory.TARGET_LOSS:
        return math.inf
    floors = rate * noise / (batch * curve * (2 - rate * curve))

    def excess(steps: float) -> float:
        shrunk = (1 - rate * curve) ** 2
        squares = floors + shrunk**steps * (theory.start(DIMENSIONS) ** 2 - floors)
        return math.log(theory.loss(squares) / theory.TARGET_LOSS)

    return float(brentq(excess, 0.0, _MANY)) if excess(_MANY) < 0 else math.inf


def expect_fewest_steps(batch: float) -> float:
    rates = np.geomspace(0.01, _LARGEST_RATE, 40)
    best = int(np.argmin([expect_steps(batch, rate) for rate in rates]))
    low, high = rates[max(best - 1, 0)], rates[min(best + 1, len(rates) - 1)]
    found = minimize_scalar(lambda rate: expect_steps(batch, rate), bounds=(low, high), method="bounded")
    return float(found.fun)


def measure_noise() -> Way:
    batch, micro = _NOISE_BATCH, _NOISE_MICRO
    rates = np.geomspace(0.2, _LARGEST_RATE, 40)
    rate = float(min(rates, key=lambda each: expect_steps(batch, each)))
    steps = round(expect_steps(batch, rate))
    values: dict[str, Any] = {
        "batch.micro": micro, "batch.accumulation": batch // micro, "optimizer.lr": rate, "budget.steps": steps,
        "diagnostics.noise_scale": True, "data.subset": 8 * batch,
    }  # fmt: skip
    endings = [_run({**values, "seed": seed})[1] for seed in range(_SEEDS)]
    measured = float(np.mean([ending.measurements["noise_scale_run"] for ending in endings]))
    squares = theory.expected_squares([rate] * steps, batch, DIMENSIONS)[2:steps:4]  # the steps that are looked at
    return Way(measured, theory.noise_scale(squares.mean(0)), _SEEDS * steps * batch)


def _run(values: dict[str, Any]) -> tuple[list[Evaluation], Ending]:
    settings = {
        "model.name": "noisy_quadratic", "data.name": "noisy_quadratic", "optimizer.name": "sgd",
        "schedule.name": "constant", "schedule.warmup": 0.0,
    }  # fmt: skip
    task = TrialTask(number=0, config=build_config(settings | values, "benchmark"), device="cpu", threads=1)
    *messages, ending = run_trial(task)
    assert isinstance(ending, Ending)
    assert ending.outcome in ("complete", "diverged"), ending.error
    return [message for message in messages if isinstance(message, Evaluation)], ending


def describe(ways: dict[str, Way]) -> dict[str, Any]:
    few, many = 1.0, 1e9
    found: dict[str, Any] = {
        name: {"measured": way.measured, "exact": way.exact, "error": way.error, "samples": way.samples}
        for name, way in ways.items()
    }
    found["steps"]["limit"] = few * expect_fewest_steps(few) / expect_fewest_steps(many)
    return found | {"at_start": theory.critical_batch(theory.start(DIMENSIONS) ** 2)}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where each way is within 10 %, else 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks critical_batch", description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args(arguments)
    ways = {"steps": measure_steps(), "noise": measure_noise()}
    found = describe(ways)
    print(json.dumps(found, indent=1))
    if options.save:
        save("critical_batch", found)
    return 0 if all(abs(way.error) <= 0.1 for way in ways.values()) else 1
