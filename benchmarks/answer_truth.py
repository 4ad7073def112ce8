"""How often the answer's statements are right: studies on made-up truths, searched, confirmed and answered by the
product's own code.

``python -m benchmarks answer_truth``: each study's figures are written when it ends, under ``runs/answer_truth``, so
that an interrupted measurement continues; they are computed again when the code has changed.
"""

import argparse
import itertools
import json
import math
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtri

from benchmarks.harness import digest_files, keep, save, share_of
from sweep.analysis.recommendation import recommend
from sweep.config.commands import StudyCommands, StudyOrigin, find_study_commands
from sweep.config.metrics import METRICS
from sweep.config.study import FEWEST_SEEDS, StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import TrialConfig, config_keys, flatten_config
from sweep.records.inputs import DataSummary, StudyInputs
from sweep.records.records import Correct, TrialRecord
from sweep.search.samplers import make_sampler
from sweep.search.seeds import SearchEnd, find_candidates, may_search_on, rank_confirmations

Rng = np.random.Generator
BATCHES = (16, 32, 64, 128, 256, 512)
MODELS = ("resnet8", "vit_micro")
_BEST, CHANCE = 0.95, 0.1
_USUAL_BATCH = 64
_SECONDS = 20.0  # of a training at the usual batch size
_LOSS_AT_0, _LOSS_SLOPE = 3.0, 2.0  # of a study whose quality is a loss: its truths are those of accuracy, turned
_CURVATURE = 0.03  # accuracy lost at a learning rate ten times too large or too small

# ---------------------------------------------------------------------- what every configuration is truly worth


def _square(_batch: int, miss: float) -> float:
    return _CURVATURE * min(abs(miss), 3.0) ** 2


@dataclass(frozen=True, kw_only=True)
class Truth:
    """``tuned`` gives the accuracy at the best learning rate of a model and batch size, ``noise`` the standard
    deviation between seeds; the best rate grows by ``power`` of the batch size from ``best_rate`` at the usual one.
    ``loss`` gives the accuracy that another rate costs, by batch size and log10 of the rate over the best; ``unrest``
    the factor of the noise there. ``rates`` are those of the space. One training in ``1 / fails`` loses 3 to 10 points.
    """

    tuned: Callable[[str, int], float]
    noise: Callable[[str, int], float]
    models: tuple[str, ...] = MODELS[:1]
    power: float = 0.5
    best_rate: float = 0.01
    rates: tuple[float, float] = (1e-3, 1e-1)
    loss: Callable[[int, float], float] = _square
    unrest: Callable[[float], float] = lambda _miss: 1.0
    fails: float = 0.0

    def miss(self, batch: int, rate: float) -> float:
        return math.log10(rate / (self.best_rate * (batch / _USUAL_BATCH) ** self.power))

    def accuracy(self, model: str, batch: int, rate: float) -> float:
        return max(self.tuned(model, batch) - self.loss(batch, self.miss(batch, rate)), CHANCE)

    def train(self, model: str, batch: int, rate: float, rng: Rng) -> float:
        """The accuracy of one training."""
        spread = self.noise(model, batch) * self.unrest(self.miss(batch, rate))
        lost = rng.uniform(0.03, 0.1) if rng.random() < self.fails else 0.0
        return self.accuracy(model, batch, rate) + spread * float(rng.standard_normal()) - lost

    def best_of(self, model: str, batch: int) -> float:
        """The highest accuracy of the space at that batch size."""
        rates = np.geomspace(*self.rates, 2001)
        return max(self.accuracy(model, batch, float(rate)) for rate in rates)


def seconds_of(model: str, batch: int) -> float:
    """Training time: it falls with the batch size until the device is full."""
    return (1.4 if model == "vit_micro" else 1.0) * _SECONDS * (0.3 + 0.7 * _USUAL_BATCH / batch)


def _doublings(batch: int) -> float:
    return math.log2(batch / _USUAL_BATCH)


def _lose_above(loss: float, edge: float = 0.0) -> Callable[[str, int], float]:
    # accuracy for each doubling of the batch beyond ``edge`` doublings of the usual one
    return lambda _model, batch: _BEST - loss * max(_doublings(batch) - edge, 0.0)


def _flat(_rng: Rng, noise: float) -> Truth:
    return Truth(tuned=lambda *_: _BEST, noise=lambda *_: noise)


def _cliff(rng: Rng, noise: float) -> Truth:
    edge, loss = float(rng.integers(0, 3)), float(rng.uniform(0.008, 0.03))
    return Truth(tuned=_lose_above(loss, edge), noise=lambda *_: noise)


def _trade_off(rng: Rng, noise: float) -> Truth:
    loss = float(rng.uniform(0.001, 0.006))
    return Truth(tuned=lambda _, batch: _BEST - loss * (_doublings(batch) + 2.0), noise=lambda *_: noise)


def _moving_rate(rng: Rng, noise: float) -> Truth:
    power, loss = float(rng.uniform(0.0, 1.2)), float(rng.uniform(0.0, 0.004))
    return Truth(tuned=lambda _, batch: _BEST - loss * abs(_doublings(batch)), power=power, noise=lambda *_: noise)


def _crossing_models(rng: Rng, noise: float) -> Truth:
    slope = float(rng.uniform(0.002, 0.008))

    def tuned(model: str, batch: int) -> float:
        if model == "resnet8":
            return _BEST - slope * max(_doublings(batch) + 1.0, 0.0)
        return _BEST - 0.006 - slope * max(1.0 - _doublings(batch), 0.0) / 4

    return Truth(models=MODELS, tuned=tuned, noise=lambda *_: noise)


def _noisy_batches(rng: Rng, noise: float) -> Truth:
    loss = float(rng.uniform(0.0, 0.006))
    return Truth(tuned=_lose_above(loss), noise=lambda _, batch: noise * 2.0 ** (_doublings(batch) / 3.0))


def _rate_cliff(rng: Rng, noise: float) -> Truth:
    # from some factor above the best rate on training breaks down, below it the rate hardly matters
    edge, fall, loss = float(rng.uniform(0.15, 0.5)), float(rng.uniform(0.1, 0.6)), float(rng.uniform(0.0, 0.006))
    return Truth(
        tuned=_lose_above(loss), power=float(rng.uniform(0.3, 1.0)), noise=lambda *_: noise,
        loss=lambda _batch, miss: 0.01 * min(miss, 0.0) ** 2 + fall * max(miss - edge, 0.0),
    )  # fmt: skip


def _staircase(rng: Rng, noise: float) -> Truth:
    # flat parts with steps down between them, and the smallest batch sizes lose too
    steps = sorted(float(each) for each in rng.uniform(-1.0, 3.0, 2))
    heights = rng.uniform(0.002, 0.02, 2).tolist()
    below = float(rng.uniform(0.0, 0.01))

    def tuned(_model: str, batch: int) -> float:
        fallen = sum(height for step, height in zip(steps, heights, strict=True) if _doublings(batch) > step)
        return float(_BEST - fallen - below * max(-1.0 - _doublings(batch), 0.0))

    return Truth(tuned=tuned, noise=lambda *_: noise)


def _rough(rng: Rng, noise: float) -> Truth:
    # every twentieth of a decade of the rate has a deviation of its own at each batch size
    size, seed = float(rng.uniform(0.0005, 0.003)), int(rng.integers(2**31))
    slope = float(rng.uniform(0.0, 0.005))

    def loss(batch: int, miss: float) -> float:
        own: Any = np.random.default_rng([seed, batch, round(20 * miss) + 1000]).standard_normal()
        return _square(batch, miss) - size * float(np.clip(own, -2.0, 2.0))

    return Truth(tuned=_lose_above(slope), noise=lambda *_: noise, loss=loss)


def _valley(width: float) -> Callable[[int, float], float]:
    # within ``width`` decades the rate hardly matters, beyond training learns nothing
    return lambda _batch, miss: 0.02 * (miss / width) ** 2 + 0.9 / (1.0 + math.exp(-8.0 * (abs(miss) / width - 1.8)))


def _wide_range(rng: Rng, noise: float) -> Truth:
    # five decades, of which one or two are good
    loss, center = float(rng.uniform(0.0, 0.006)), float(10 ** rng.uniform(-3.0, -0.5))
    return Truth(
        tuned=_lose_above(loss), noise=lambda *_: noise, power=float(rng.uniform(0.0, 1.0)), best_rate=center,
        rates=(1e-4, 10.0), loss=_valley(float(rng.uniform(0.3, 0.8))),
    )  # fmt: skip


def _dead_center(rng: Rng, noise: float) -> Truth:
    # the center of the range learns nothing
    loss, low = float(rng.uniform(0.0, 0.006)), bool(rng.integers(2))
    return Truth(
        tuned=_lose_above(loss), noise=lambda *_: noise, best_rate=0.1 if low else 1000.0, rates=(1e-2, 1e4),
        power=float(rng.uniform(0.0, 0.6)), loss=_valley(float(rng.uniform(0.3, 0.6))),
    )  # fmt: skip


def _two_optima(rng: Rng, noise: float) -> Truth:
    # two valleys of rates, of which one is deeper
    apart, lower = float(rng.uniform(1.2, 2.0)), float(rng.uniform(0.005, 0.04))
    one = _valley(float(rng.uniform(0.25, 0.4)))
    sign, loss = float(rng.choice([-1.0, 1.0])), float(rng.uniform(0.0, 0.006))
    return Truth(
        tuned=_lose_above(loss), noise=lambda *_: noise, power=float(rng.uniform(0.0, 0.8)), rates=(1e-4, 1.0),
        loss=lambda batch, miss: min(one(batch, miss), lower + one(batch, miss - sign * apart)),
    )  # fmt: skip


def _dip(rng: Rng, noise: float) -> Truth:
    # one batch size in the middle is worse than its neighbors
    where, depth = int(rng.choice(BATCHES[1:-1])), float(rng.uniform(0.01, 0.04))
    return Truth(
        tuned=lambda _, batch: _BEST - depth * (batch == where), noise=lambda *_: noise, rates=(3e-4, 3e-1),
        power=float(rng.uniform(0.0, 1.0)),
    )  # fmt: skip


def _own_heights(rng: Rng, noise: float) -> Truth:
    # the accuracies of the batch sizes have nothing to do with each other
    heights = dict(zip(BATCHES, rng.uniform(0.0, 0.04, len(BATCHES)).tolist(), strict=True))
    return Truth(
        tuned=lambda _, batch: _BEST - heights[batch], noise=lambda *_: noise, rates=(3e-4, 3e-1),
        power=float(rng.uniform(0.0, 1.0)),
    )  # fmt: skip


def _heavy_tails(rng: Rng, noise: float) -> Truth:
    loss = float(rng.uniform(0.0, 0.01))
    return Truth(
        tuned=_lose_above(loss), noise=lambda *_: noise / 2, fails=1 / 8, rates=(3e-4, 3e-1),
        power=float(rng.uniform(0.3, 0.8)),
    )  # fmt: skip


def _unstable_rates(rng: Rng, noise: float) -> Truth:
    # above the best rate trainings scatter ten times as much and lose
    loss, fall = float(rng.uniform(0.0, 0.01)), float(rng.uniform(0.05, 0.3))
    return Truth(
        tuned=_lose_above(loss), noise=lambda *_: noise / 2, power=float(rng.uniform(0.3, 1.0)), rates=(1e-3, 1.0),
        loss=lambda _batch, miss: 0.015 * min(miss, 0.0) ** 2 + fall * max(miss - 0.3, 0.0),
        unrest=lambda miss: 1.0 + 9.0 / (1.0 + math.exp(-10.0 * (miss - 0.4))),
    )  # fmt: skip


Family = Callable[[Rng, float], Truth]
FAMILIES: dict[str, Family] = {
    "flat": _flat, "cliff": _cliff, "trade_off": _trade_off, "moving_rate": _moving_rate,
    "crossing_models": _crossing_models, "noisy_batches": _noisy_batches, "rate_cliff": _rate_cliff,
    "staircase": _staircase, "rough": _rough,
}  # fmt: skip
# Truths that deceive a search or a statement.
HARD: dict[str, Family] = {
    "wide_range": _wide_range, "dead_center": _dead_center, "two_optima": _two_optima, "dip": _dip,
    "own_heights": _own_heights, "heavy_tails": _heavy_tails, "unstable_rates": _unstable_rates,
}  # fmt: skip
_ALL = FAMILIES | HARD

# ---------------------------------------------------------------------- a study on a truth

_TIME_NOISE = 0.02
_COMMON, _OWN = 0.5, 0.2  # of the variance of errors on an image: in all configurations, and in each on its own


@dataclass(frozen=True)
class MadeFrames:
    """What the analysis reads of a study's frames."""

    spec: StudySpec | None
    trials: pd.DataFrame
    correct: dict[int, Correct] = field(default_factory=dict)
    num_images: int = 0
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)
    probes: pd.DataFrame = field(default_factory=pd.DataFrame)
    place: str = ""
    plugin: str = ""
    origin: StudyOrigin | None = None

    @property
    def data(self) -> DataSummary | None:
        if self.spec is None:
            return None
        classes = {str(digit): {"val": self.num_images // 10} for digit in range(10)}  # CHANCE is known from them
        return DataSummary(name="digits", num_train=1000, num_val=self.num_images, classes=classes, digest="made")

    @property
    def specs(self) -> dict[str, StudySpec]:
        return {self.spec.name: self.spec} if self.spec else {}

    @property
    def inputs(self) -> dict[str, StudyInputs]:
        return {self.spec.name: StudyInputs(data=self.data)} if self.spec else {}

    def find_commands(self, name: str) -> StudyCommands:
        return find_study_commands(name, self.place, self.origin, self.plugin)

    def find_correct(self, _study: str, numbers: Sequence[int]) -> dict[int, Correct]:
        return {number: self.correct[number] for number in numbers if number in self.correct}


def make_spec(truth: Truth, num_trials: int, seed: int, **changes: Any) -> StudySpec:
    space: dict[str, Any] = {"batch.micro": {"choice": list(BATCHES)}, "optimizer.lr": {"log": list(truth.rates)}}
    base: dict[str, Any] = {"data.name": "digits"}
    if len(truth.models) > 1:
        space["model.name"] = {"choice": list(truth.models)}
    else:
        base["model.name"] = truth.models[0]
    table = {"name": "made", "trials": num_trials, "seed": seed, "sampler": "cost_aware", "space": space, "base": base}
    return build_study(table | changes, "made")


class MadeStudy:
    """One study on ``truth``, searched by the product's sampler and confirmed by its rule; ``num_images`` validation
    images are drawn once for all its trials. A study with a script reports a loss, with the scores of its samples where
    it ``has_scores``."""

    def __init__(self, truth: Truth, spec: StudySpec, num_images: int, seed: int, *, has_scores: bool = True) -> None:
        self.truth, self._spec, self._has_scores = truth, spec, has_scores
        self._rng = np.random.default_rng(seed)
        self._difficulty = self._rng.standard_normal(num_images)
        self._own: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
        self._correct: dict[int, Correct] = {}
        self._rows: list[dict[str, Any]] = []
        self.records: list[TrialRecord] = []

    def run(self) -> MadeFrames:
        """As the product's loop does it: a search trial, or seeds where these tell more, or the search again."""
        sampler = make_sampler(self._spec, [], chance=None if self._spec.script else CHANCE)
        end, index = SearchEnd(self._spec), 0
        while True:
            candidates = None
            if index < self._spec.trials and end.is_due(self.records):
                end.decide(candidates := find_candidates(self.frames))  # type: ignore[arg-type]
                sampler.require(end.lacking)
            values = sampler.propose(index) if index < self._spec.trials and not end.reason else None
            if values is None:
                candidates = candidates or find_candidates(self.frames)  # type: ignore[arg-type]
                if due := rank_confirmations(candidates, self.records, self._spec):
                    self._train(due[0], "confirm")
                    continue
            if values is None and end.reason and not end.is_settled and may_search_on(self.records, self._spec):
                values = sampler.propose(index)
            if values is None:
                return self.frames
            self._train(self._spec.config(values), "search")
            sampler.learn(self.records[-1])
            index += 1

    @property
    def frames(self) -> MadeFrames:
        trials = pd.DataFrame(self._rows, columns=_COLUMNS)
        for name in METRICS:
            trials[name] = pd.to_numeric(trials[name]).astype("Float64")
        return MadeFrames(self._spec, trials, self._correct, len(self._difficulty))

    def _train(self, config: TrialConfig, phase: Any) -> None:
        number, model, batch = len(self.records), config.model.name, config.global_batch_size
        accuracy = self.truth.train(model, batch, config.optimizer.lr, self._rng)
        reported = self._report(number, config, accuracy)
        seconds = seconds_of(model, batch) * float(np.exp(_TIME_NOISE * self._rng.standard_normal()))
        measured: dict[str, float | int] = {
            self._spec.quality.column: reported, "train_seconds": seconds, "total_seconds": seconds + 1.0,
            "peak_memory_bytes": (20.0 + 0.3 * batch) * 2.0**20 * (1.5 if model == "vit_micro" else 1.0),
        }  # fmt: skip
        values, common = flatten_config(config), {"number": number, "phase": phase}
        ended = {"outcome": "complete", "device": "made"}
        self.records.append(TrialRecord(values=values, measurements=measured, **common, **ended))  # type: ignore[arg-type]
        row = {f"config.{key}": value for key, value in values.items()} | measured | common | ended
        row |= {"seed": config.seed, "global_batch_size": batch, "quality_flags": "", "error": "", "reused_from": ""}
        self._rows.append(row | {"study": self._spec.name})

    def _report(self, number: int, config: TrialConfig, accuracy: float) -> float:
        # what the training measures on the validation data, of which what they hold of each sample is kept
        share = float(np.clip(accuracy, 0.01, 0.999))
        if self._spec.script is None:
            self._correct[number] = self._draw_latent(config) < ndtri(share)
            return float(self._correct[number].mean())
        loss = _LOSS_AT_0 - _LOSS_SLOPE * accuracy
        if not self._has_scores:
            return loss
        spread = _LOSS_SLOPE * math.sqrt(share * (1.0 - share))
        self._correct[number] = scores = (loss + spread * self._draw_latent(config)).astype(np.float32)
        return float(scores.mean())

    def _draw_latent(self, config: TrialConfig) -> np.ndarray[Any, np.dtype[np.float64]]:
        # an image is right where its latent difficulty is below the accuracy's quantile
        key, size = config.model_copy(update={"seed": 0}).model_dump_json(), len(self._difficulty)
        if key not in self._own:
            self._own[key] = self._rng.standard_normal(size)
        latent = np.sqrt(_COMMON) * self._difficulty + np.sqrt(_OWN) * self._own[key]
        return np.asarray(latent + np.sqrt(1.0 - _COMMON - _OWN) * self._rng.standard_normal(size))


_COLUMNS = [
    "study", "number", "phase", "outcome", "seed", *(f"config.{key}" for key in config_keys()), "global_batch_size",
    *METRICS, "device", "quality_flags", "error", "reused_from",
]  # fmt: skip

# ---------------------------------------------------------------------- the judgment

_TOLERANCE = 0.01
_NOISES, _IMAGES, _TRIALS = (0.002, 0.004, 0.007, 0.01), (200, 1000, 3000, 10_000), (6, 12, 30, 60)
ARMS = ("cost_aware", "tpe", "gp", "nsga2", "qmc", "random")
_FRESH = 30_000_000  # number of the first study: those with lower numbers were looked at


@dataclass(frozen=True, kw_only=True)
class StudyFigures:
    """One study. ``is_right`` and ``is_near`` are about the named configuration and the whole space: whether it is the
    fastest of those that lose no more than the tolerance, and whether its accuracy is within the tolerance of the best;
    ``regret`` is what it loses against that. Without a named one it is that of guessing, the mean of the space. The
    fastest of the truth within the tolerance has ``oracle_regret``; the named one takes ``slowdown`` times as long."""

    arm: str
    family: str
    number: int
    num_trials: int
    noise: float
    num_images: int
    seconds: float
    is_settled: bool
    is_feasible: bool
    largest_settled: bool
    largest_right: bool
    regret: float
    oracle_regret: float
    slowdown: float | None = None
    is_named: bool = False
    is_right: bool = False
    is_near: bool = False
    is_covered: bool = True
    width: float = 0.0
    num_seeds: int = 0


class _Tuned(NamedTuple):
    """What a batch size of a model can reach."""

    batch: int
    accuracy: float
    seconds: float
    noise: float


def run_study(
    family: str, number: int, num_trials: int = 30, arm: str = "cost_aware", metric: str = "", has_scores: bool = True
) -> StudyFigures:
    """Searches, confirms and answers one study, and judges the answer by the truth of the whole space. With ``metric``
    "val_loss" a script reports the loss that mirrors the accuracy."""
    rng = np.random.default_rng([number, *family.encode()])
    noise, num_images = float(rng.choice(_NOISES)), int(rng.choice(_IMAGES))
    truth = _ALL[family](rng, noise)
    rules = {"tolerance": {"accuracy": _TOLERANCE, "quality": _TOLERANCE * _LOSS_SLOPE}}
    script = {"script": {"command": "train", "metric": metric}} if metric else {}
    spec = make_spec(truth, num_trials, number, answer=rules, sampler=arm, **script)
    study = MadeStudy(truth, spec, num_images, int(rng.integers(2**31)), has_scores=has_scores)
    answer = recommend(study.run()).batch_size  # type: ignore[arg-type]
    assert answer is not None
    tuned = [
        _Tuned(batch, truth.best_of(model, batch), seconds_of(model, batch), truth.noise(model, batch))
        for model in truth.models
        for batch in BATCHES
    ]
    searched = sum(each.measurements["total_seconds"] for each in study.records if each.phase == "search")
    largest = next((each for each in answer.statements if each.name == "largest_without_loss"), None)
    return StudyFigures(
        arm=arm, family=family, number=number, num_trials=num_trials, noise=noise, num_images=num_images,
        seconds=float(sum(each.measurements["total_seconds"] for each in study.records)),
        is_feasible=_is_feasible(tuned, spec, num_images, spec.confirm.share * searched),
        is_settled=answer.statements[0].is_settled, largest_settled=bool(largest and largest.is_settled),
        largest_right=bool(largest and largest.batches and _is_without_loss(largest.batches[0], tuned, spec)),
        oracle_regret=max(each.accuracy for each in tuned) - _find_fastest(tuned, spec).accuracy,
        **_judge_named(answer.named, tuned, truth, spec),
    )  # fmt: skip


def _judge_named(named: Any, tuned: list[_Tuned], truth: Truth, spec: StudySpec) -> dict[str, Any]:
    optimum = max(each.accuracy for each in tuned)
    if named.number is None:
        guesses = [
            truth.accuracy(model, batch, float(rate))
            for model in truth.models for batch in BATCHES for rate in np.geomspace(*truth.rates, 51)
        ]  # fmt: skip
        return {"regret": optimum - float(np.mean(guesses))}
    model, interval = str(named.config["model.name"]), named.values[spec.quality.column]
    low, high = interval.low, interval.high
    if spec.script:
        low, high = ((_LOSS_AT_0 - loss) / _LOSS_SLOPE for loss in (high, low))
    accuracy = truth.accuracy(model, named.global_batch_size, float(named.config["optimizer.lr"]))
    one = _Tuned(named.global_batch_size, accuracy, seconds_of(model, named.global_batch_size), 0.0)
    return {
        "is_named": True, "is_right": _find_margin(one, tuned, spec) >= 0, "regret": optimum - accuracy,
        "is_near": accuracy >= optimum - spec.answer.tolerance.accuracy,
        "slowdown": one.seconds / _find_fastest(tuned, spec).seconds,
        "is_covered": low <= accuracy <= high, "width": high - low,
        "num_seeds": interval.n,
    }  # fmt: skip


def _find_fastest(tuned: list[_Tuned], spec: StudySpec) -> _Tuned:
    limit = max(each.accuracy for each in tuned) - spec.answer.tolerance.accuracy
    return min((each for each in tuned if each.accuracy >= limit), key=lambda each: each.seconds)


def _find_margin(one: _Tuned, tuned: list[_Tuned], spec: StudySpec) -> float:
    # accuracy by which the statement "use this one" is right; negative where it is wrong
    tolerance, best = spec.answer.tolerance, max(each.accuracy for each in tuned)
    limit, slower = best - tolerance.accuracy / 2, one.seconds / (1 + tolerance.time)
    rivals = [limit - each.accuracy for each in tuned if each.seconds < slower]
    return min(one.accuracy - (best - tolerance.accuracy), *rivals, math.inf)


def _is_feasible(tuned: list[_Tuned], spec: StudySpec, num_images: int, budget: float) -> bool:
    """Whether half of ``budget`` suffices for one who knows the truth and trains the best named one and its closest
    rival alone."""
    margins = [_find_margin(each, tuned, spec) for each in tuned]
    margin, one = max(margins), tuned[int(np.argmax(margins))]
    if margin <= 0:
        return False
    best = max(tuned, key=lambda each: each.accuracy)
    # two configurations on the same images: what each gets right of its own, 0.3 of the variance, leaves an error
    image_variance = 2 * 0.3 * best.accuracy * (1 - best.accuracy) / num_images
    allowed = (margin / ndtri(spec.answer.confidence)) ** 2 - image_variance
    if allowed <= 0:
        return False
    seeds = max((one.noise**2 + best.noise**2) / allowed, FEWEST_SEEDS)
    return bool(seeds * (one.seconds + best.seconds + 2.0) <= budget / 2)


def _is_without_loss(batch: int, tuned: list[_Tuned], spec: StudySpec) -> bool:
    best_here = max(each.accuracy for each in tuned if each.batch == batch)
    return best_here >= max(each.accuracy for each in tuned) - spec.answer.tolerance.accuracy


def summarize(found: Sequence[StudyFigures]) -> dict[str, Any]:
    settled = [each for each in found if each.is_settled]
    named = [each for each in found if each.is_named]
    return {
        "num_studies": len(found),
        "settled_near_optimum": share_of([each.is_near for each in settled]),
        "settled_right": share_of([each.is_right for each in settled]),
        "largest_right": share_of([each.largest_right for each in found if each.largest_settled]),
        "named_covered": share_of([each.is_covered for each in named]),
        "median_width_points": 100 * float(np.median([each.width for each in named])) if named else None,
        "mean_regret_points": 100 * float(np.mean([each.regret for each in found])),
        "mean_oracle_regret_points": 100 * float(np.mean([each.oracle_regret for each in found])),
        "mean_loss_beyond_tolerance_points": 100
        * float(np.mean([max(each.regret - _TOLERANCE, 0.0) for each in found])),
        "median_slowdown": float(np.median([each.slowdown for each in named])) if named else None,
        "mean_study_seconds": float(np.mean([each.seconds for each in found])),
        "settled_where_feasible": share_of([each.is_settled for each in found if each.is_feasible]),
        "settled": share_of([each.is_settled for each in found]),
    }


def _measure(
    family: str, number: int, num_trials: int, arm: str, folder: Path, quality: tuple[str, bool]
) -> StudyFigures:
    kind = f"{quality[0]}{'' if quality[1] else '_alone'}_" if quality[0] else ""
    path = folder / f"{kind}{arm}_{family}_{num_trials}_{number}.json"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # samplers of Optuna are experimental
        return StudyFigures(**keep(path, lambda: asdict(run_study(family, number, num_trials, arm, *quality))))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks answer_truth", description=__doc__)
    parser.add_argument("--studies", type=int, default=25, help="of each family, number of trials and arm (25)")
    parser.add_argument("--families", nargs="*", default=list(_ALL), choices=list(_ALL))
    parser.add_argument("--trials", nargs="*", type=int, default=list(_TRIALS), help="of the search (6 12 30 60)")
    parser.add_argument("--arms", nargs="*", default=list(ARMS[:1]), choices=ARMS)
    parser.add_argument("--first", type=int, default=_FRESH, help="number of the first study")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--metric", default="", choices=["", "val_loss"], help="what a script reports (accuracy)")
    parser.add_argument("--scores", action=argparse.BooleanOptionalAction, default=True, help="of the samples too")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args(arguments)
    folder = Path("runs/answer_truth") / digest_files("sweep/analysis", "sweep/search", "benchmarks/answer_truth.py")
    numbers = range(options.first, options.first + options.studies)
    tasks = list(itertools.product(options.families, numbers, options.trials, options.arms))
    with ProcessPoolExecutor(options.workers) as pool:
        measure = partial(_measure, folder=folder, quality=(options.metric, options.scores))
        found = list(pool.map(measure, *zip(*tasks, strict=True)))
    result = {}
    for arm in options.arms:
        own = [each for each in found if each.arm == arm]
        families = {name: [each for each in own if each.family == name] for name in options.families}
        result[arm] = {
            "all": summarize(own),
            "families": {name: summarize(each) for name, each in families.items()},
            "trials": {num: summarize([each for each in own if each.num_trials == num]) for num in options.trials},
        }
    result["regret"] = _compare_regret(found)
    print(json.dumps(result, indent=1))
    if options.save:
        save("answer_truth", result)
    return 0


def _compare_regret(found: Sequence[StudyFigures]) -> dict[str, dict[str, float]]:
    # in points by family, number of trials and arm
    table: dict[str, dict[str, float]] = {}
    for (family, num_trials, arm), studies in pd.DataFrame(map(asdict, found)).groupby(["family", "num_trials", "arm"]):
        table.setdefault(f"{family}_{num_trials}", {})[str(arm)] = 100 * float(studies["regret"].mean())
    return table
