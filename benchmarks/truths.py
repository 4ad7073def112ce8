"""Made-up truths of studies: what every configuration is truly worth, in families of different shape.

The constants of the answer were chosen while studies of ``FAMILIES`` were looked at. Those of ``HELD_BACK`` were
written after the constants were frozen.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

BATCHES = (16, 32, 64, 128, 256, 512)
MODELS = ("resnet8", "vit_micro")
_BEST = 0.95
_USUAL_BATCH = 64
_SECONDS = 20.0  # of a training at the usual batch size
_CURVATURE = 0.03  # accuracy lost at a learning rate ten times too large or too small


def _square(_batch: int, miss: float) -> float:
    return _CURVATURE * min(abs(miss), 3.0) ** 2


@dataclass(frozen=True, kw_only=True)
class Truth:
    """``tuned`` gives the accuracy at the best learning rate of a model and batch size, ``best_rate`` that rate,
    ``noise`` the standard deviation of the accuracy between seeds; all by model and effective batch size. ``loss``
    gives the accuracy that another rate costs, by batch size and log10 of the rate over the best."""

    models: tuple[str, ...]
    tuned: Callable[[str, int], float]
    best_rate: Callable[[str, int], float]
    noise: Callable[[str, int], float]
    loss: Callable[[int, float], float] = _square

    def accuracy(self, model: str, batch: int, rate: float) -> float:
        """On new images, over seeds."""
        miss = math.log10(rate / self.best_rate(model, batch))
        return max(self.tuned(model, batch) - self.loss(batch, miss), 0.1)


def seconds_of(model: str, batch: int) -> float:
    """Training time: it falls with the batch size until the device is full."""
    factor = 1.4 if model == "vit_micro" else 1.0
    return factor * _SECONDS * (0.3 + 0.7 * _USUAL_BATCH / batch)


def memory_of(model: str, batch: int) -> float:
    """Peak memory in bytes."""
    return (20.0 + 0.3 * batch) * 2.0**20 * (1.5 if model == "vit_micro" else 1.0)


def _doublings(batch: int) -> float:
    return math.log2(batch / _USUAL_BATCH)


def _rate(power: float) -> Callable[[str, int], float]:
    return lambda _model, batch: 0.01 * (batch / _USUAL_BATCH) ** power


def _flat(rng: np.random.Generator, noise: float) -> Truth:
    del rng
    return Truth(models=MODELS[:1], tuned=lambda *_: _BEST, best_rate=_rate(0.5), noise=lambda *_: noise)


def _cliff(rng: np.random.Generator, noise: float) -> Truth:
    edge, loss = float(rng.integers(0, 3)), float(rng.uniform(0.008, 0.03))
    return Truth(
        models=MODELS[:1],
        tuned=lambda _model, batch: _BEST - loss * max(_doublings(batch) - edge, 0.0),
        best_rate=_rate(0.5),
        noise=lambda *_: noise,
    )


def _trade_off(rng: np.random.Generator, noise: float) -> Truth:
    loss = float(rng.uniform(0.001, 0.006))
    return Truth(
        models=MODELS[:1],
        tuned=lambda _model, batch: _BEST - loss * (_doublings(batch) + 2.0),
        best_rate=_rate(0.5),
        noise=lambda *_: noise,
    )


def _moving_rate(rng: np.random.Generator, noise: float) -> Truth:
    power, loss = float(rng.uniform(0.0, 1.2)), float(rng.uniform(0.0, 0.004))
    return Truth(
        models=MODELS[:1],
        tuned=lambda _model, batch: _BEST - loss * abs(_doublings(batch)),
        best_rate=_rate(power),
        noise=lambda *_: noise,
    )


def _crossing_models(rng: np.random.Generator, noise: float) -> Truth:
    slope = float(rng.uniform(0.002, 0.008))

    def tuned(model: str, batch: int) -> float:
        if model == "resnet8":
            return _BEST - slope * max(_doublings(batch) + 1.0, 0.0)
        return _BEST - 0.006 - slope * max(1.0 - _doublings(batch), 0.0) / 4

    return Truth(models=MODELS, tuned=tuned, best_rate=_rate(0.5), noise=lambda *_: noise)


def _noisy_batches(rng: np.random.Generator, noise: float) -> Truth:
    loss = float(rng.uniform(0.0, 0.006))
    return Truth(
        models=MODELS[:1],
        tuned=lambda _model, batch: _BEST - loss * max(_doublings(batch), 0.0),
        best_rate=_rate(0.5),
        noise=lambda _model, batch: noise * 2.0 ** (_doublings(batch) / 3.0),
    )


FAMILIES: dict[str, Callable[[np.random.Generator, float], Truth]] = {
    "flat": _flat,
    "cliff": _cliff,
    "trade_off": _trade_off,
    "moving_rate": _moving_rate,
    "crossing_models": _crossing_models,
    "noisy_batches": _noisy_batches,
}


def _rate_cliff(rng: np.random.Generator, noise: float) -> Truth:
    # from some factor above the best rate on training breaks down, below it the rate hardly matters
    edge, fall, loss = float(rng.uniform(0.15, 0.5)), float(rng.uniform(0.1, 0.6)), float(rng.uniform(0.0, 0.006))
    return Truth(
        models=MODELS[:1],
        tuned=lambda _model, batch: _BEST - loss * max(_doublings(batch), 0.0),
        best_rate=_rate(float(rng.uniform(0.3, 1.0))),
        noise=lambda *_: noise,
        loss=lambda _batch, miss: 0.01 * min(miss, 0.0) ** 2 + fall * max(miss - edge, 0.0),
    )


def _staircase(rng: np.random.Generator, noise: float) -> Truth:
    # flat parts with steps down between them, and the smallest batch sizes lose too
    steps = sorted(float(each) for each in rng.uniform(-1.0, 3.0, 2))
    heights = rng.uniform(0.002, 0.02, 2).tolist()
    below = float(rng.uniform(0.0, 0.01))
    return Truth(
        models=MODELS[:1],
        tuned=lambda _model, batch: (
            _BEST
            - sum(height for step, height in zip(steps, heights, strict=True) if _doublings(batch) > step)
            - below * max(-1.0 - _doublings(batch), 0.0)
        ),
        best_rate=_rate(0.5),
        noise=lambda *_: noise,
    )


def _rough(rng: np.random.Generator, noise: float) -> Truth:
    # every twentieth of a decade of the rate has a deviation of its own at each batch size
    size, seed = float(rng.uniform(0.0005, 0.003)), int(rng.integers(2**31))
    slope = float(rng.uniform(0.0, 0.005))

    def loss(batch: int, miss: float) -> float:
        own: Any = np.random.default_rng([seed, batch, round(20 * miss) + 1000]).standard_normal()
        return _square(batch, miss) - size * float(np.clip(own, -2.0, 2.0))

    return Truth(
        models=MODELS[:1],
        tuned=lambda _model, batch: _BEST - slope * max(_doublings(batch), 0.0),
        best_rate=_rate(0.5),
        noise=lambda *_: noise,
        loss=loss,
    )


HELD_BACK: dict[str, Callable[[np.random.Generator, float], Truth]] = {
    "rate_cliff": _rate_cliff,
    "staircase": _staircase,
    "rough": _rough,
}
