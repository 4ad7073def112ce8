"""How often the answer's statements are right: studies on made-up truths, searched, confirmed and answered by the
product's own code.

``python -m benchmarks answer_truth``: each study's figures are written when it ends, under ``runs/answer_truth``, so
that an interrupted measurement continues; they are computed again when the code has changed. ``--fresh-subset``
computes 20 other studies of each family and reads nothing.

The constants of the answer were chosen while studies of ``FAMILIES`` were looked at. Those of ``HELD_BACK`` were
written after the constants were frozen.
"""

import argparse
import json
import math
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
from sweep.search.seeds import list_confirmations

Rng = np.random.Generator
BATCHES = (16, 32, 64, 128, 256, 512)
MODELS = ("resnet8", "vit_micro")
_BEST = 0.95
_USUAL_BATCH = 64
_SECONDS = 20.0  # of a training at the usual batch size
_CURVATURE = 0.03  # accuracy lost at a learning rate ten times too large or too small

# ---------------------------------------------------------------------- what every configuration is truly worth


def _square(_batch: int, miss: float) -> float:
    return _CURVATURE * min(abs(miss), 3.0) ** 2


@dataclass(frozen=True, kw_only=True)
class Truth:
    """``tuned`` gives the accuracy at the best learning rate of a model and batch size, ``noise`` the standard
    deviation between seeds; the best rate grows by ``power`` of the batch size. ``loss`` gives the accuracy that
    another rate costs, by batch size and log10 of the rate over the best."""

    tuned: Callable[[str, int], float]
    noise: Callable[[str, int], float]
    models: tuple[str, ...] = MODELS[:1]
    power: float = 0.5
    loss: Callable[[int, float], float] = _square

    def accuracy(self, model: str, batch: int, rate: float) -> float:
        best_rate = 0.01 * (batch / _USUAL_BATCH) ** self.power
        return max(self.tuned(model, batch) - self.loss(batch, math.log10(rate / best_rate)), 0.1)


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


Family = Callable[[Rng, float], Truth]
FAMILIES: dict[str, Family] = {
    "flat": _flat, "cliff": _cliff, "trade_off": _trade_off, "moving_rate": _moving_rate,
    "crossing_models": _crossing_models, "noisy_batches": _noisy_batches,
}  # fmt: skip
HELD_BACK: dict[str, Family] = {"rate_cliff": _rate_cliff, "staircase": _staircase, "rough": _rough}
_ALL = FAMILIES | HELD_BACK

# ---------------------------------------------------------------------- a study on a truth

_TIME_NOISE = 0.02
# Of the variance of whether an image is misclassified: what all configurations have in common, and each of its own.
_COMMON, _OWN = 0.5, 0.2


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
        return DataSummary(name="digits", num_train=1000, num_val=self.num_images, num_test=0, digest="made")

    @property
    def inputs(self) -> dict[str, StudyInputs]:
        return {self.spec.name: StudyInputs(data=self.data)} if self.spec else {}

    def find_commands(self, name: str) -> StudyCommands:
        return find_study_commands(name, self.place, self.origin, self.plugin)

    def find_correct(self, _study: str, numbers: Sequence[int]) -> dict[int, Correct]:
        return {number: self.correct[number] for number in numbers}


def make_spec(truth: Truth, num_trials: int, seed: int, **changes: Any) -> StudySpec:
    space: dict[str, Any] = {"batch.micro": {"choice": list(BATCHES)}, "optimizer.lr": {"log": [1e-3, 1e-1]}}
    base: dict[str, Any] = {"data.name": "digits"}
    if len(truth.models) > 1:
        space["model.name"] = {"choice": list(truth.models)}
    else:
        base["model.name"] = truth.models[0]
    table = {"name": "made", "trials": num_trials, "seed": seed, "sampler": "cost_aware", "space": space, "base": base}
    return build_study(table | changes, "made")


class MadeStudy:
    """One study on ``truth``, searched by the product's sampler and confirmed by its rule; ``num_images`` validation
    images are drawn once for all its trials."""

    def __init__(self, truth: Truth, spec: StudySpec, num_images: int, seed: int) -> None:
        self.truth, self._spec = truth, spec
        self._rng = np.random.default_rng(seed)
        self._difficulty = self._rng.standard_normal(num_images)
        self._own: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
        self._correct: dict[int, Correct] = {}
        self._rows: list[dict[str, Any]] = []
        self.records: list[TrialRecord] = []

    def run(self) -> MadeFrames:
        sampler = make_sampler(self._spec, [])
        for index in range(self._spec.trials):
            values = sampler.propose(index)
            if values is None:
                break
            self._train(self._spec.config(values), "search")
            sampler.learn(self.records[-1])
        while due := list_confirmations(self.frames, self.records, self._spec):  # type: ignore[arg-type]
            self._train(due[0], "confirm")
        return self.frames

    @property
    def frames(self) -> MadeFrames:
        trials = pd.DataFrame(self._rows, columns=_COLUMNS)
        for name in METRICS:
            trials[name] = pd.to_numeric(trials[name]).astype("Float64")
        return MadeFrames(self._spec, trials, self._correct, len(self._difficulty))

    def _train(self, config: TrialConfig, phase: Any) -> None:
        number, model, batch = len(self.records), config.model.name, config.global_batch_size
        accuracy = self.truth.accuracy(model, batch, config.optimizer.lr)
        accuracy += self.truth.noise(model, batch) * self._rng.standard_normal()
        self._correct[number] = correct = self._evaluate(config, float(np.clip(accuracy, 0.01, 0.999)))
        seconds = seconds_of(model, batch) * float(np.exp(_TIME_NOISE * self._rng.standard_normal()))
        measured: dict[str, float | int] = {
            "val_accuracy": float(correct.mean()), "train_seconds": seconds, "total_seconds": seconds + 1.0,
            "peak_memory_bytes": (20.0 + 0.3 * batch) * 2.0**20 * (1.5 if model == "vit_micro" else 1.0),
        }  # fmt: skip
        values, common = flatten_config(config), {"number": number, "phase": phase}
        ended = {"outcome": "complete", "device": "made"}
        self.records.append(TrialRecord(values=values, measurements=measured, **common, **ended))  # type: ignore[arg-type]
        row = {f"config.{key}": value for key, value in values.items()} | measured | common | ended
        row |= {"seed": config.seed, "global_batch_size": batch, "quality_flags": "", "error": "", "reused_from": ""}
        self._rows.append(row | {"study": self._spec.name})

    def _evaluate(self, config: TrialConfig, accuracy: float) -> Correct:
        # an image is right where its latent difficulty is below the accuracy's quantile
        key, size = config.model_copy(update={"seed": 0}).model_dump_json(), len(self._difficulty)
        if key not in self._own:
            self._own[key] = self._rng.standard_normal(size)
        latent = np.sqrt(_COMMON) * self._difficulty + np.sqrt(_OWN) * self._own[key]
        latent += np.sqrt(1.0 - _COMMON - _OWN) * self._rng.standard_normal(size)
        return np.asarray(latent < ndtri(accuracy))


_COLUMNS = [
    "study", "number", "phase", "outcome", "seed", *(f"config.{key}" for key in config_keys()), "global_batch_size",
    *METRICS, "device", "quality_flags", "error", "reused_from",
]  # fmt: skip

# ---------------------------------------------------------------------- the judgment

_NOISES, _IMAGES, _TRIALS = (0.002, 0.004, 0.007, 0.01), (200, 1000, 3000, 10_000), (30, 60)
_FIRST = 20_000  # number of the first study: those with lower numbers were looked at before
_FRESH, _SUBSET = 1_000_000, 20


@dataclass(frozen=True, kw_only=True)
class StudyFigures:
    """One study. ``is_right`` and ``is_near`` are about the headline where it is settled: whether it is right among the
    configurations that were tried, and whether its accuracy is within the tolerance of the best there could be."""

    family: str
    number: int
    noise: float
    num_images: int
    seconds: float
    budget: float
    is_settled: bool
    is_feasible: bool
    largest_settled: bool
    largest_right: bool
    is_named: bool = False
    is_right: bool = False
    is_near: bool = False
    is_covered: bool = True
    width: float = 0.0
    num_seeds: int = 0


def run_study(family: str, number: int) -> StudyFigures:
    """Searches, confirms and answers one study, and judges the answer by the truth."""
    rng = np.random.default_rng([number, *family.encode()])
    noise, num_images = float(rng.choice(_NOISES)), int(rng.choice(_IMAGES))
    truth = _ALL[family](rng, noise)
    spec = make_spec(truth, int(rng.choice(_TRIALS)), number, answer={"tolerance": {"accuracy": 0.01}})
    study = MadeStudy(truth, spec, num_images, int(rng.integers(2**31)))
    answer = recommend(study.run()).batch_size  # type: ignore[arg-type]
    assert answer is not None
    search = sum(each.measurements["total_seconds"] for each in study.records if each.phase == "search")
    tried = []
    for record in (each for each in study.records if each.phase == "search"):
        model, batch = record.config.model.name, record.config.global_batch_size
        exact = truth.accuracy(model, batch, record.config.optimizer.lr)
        tried.append(_Tried(record.number, batch, exact, seconds_of(model, batch), truth.noise(model, batch)))
    budget = float(spec.confirm.share * search)
    largest = next((each for each in answer.statements if each.name == "largest_without_loss"), None)
    return StudyFigures(
        family=family, number=number, noise=noise, num_images=num_images,
        seconds=float(sum(each.measurements["total_seconds"] for each in study.records)), budget=budget,
        is_settled=answer.named.is_settled, is_feasible=_is_feasible(tried, spec, num_images, budget),
        largest_settled=bool(largest and largest.is_settled),
        largest_right=bool(largest and largest.batches and _is_without_loss(largest.batches[0], tried, spec)),
        **_judge_named(answer.named, tried, truth, spec),
    )  # fmt: skip


class _Tried(NamedTuple):
    number: int
    batch: int
    accuracy: float
    seconds: float
    noise: float


def _judge_named(named: Any, tried: list[_Tried], truth: Truth, spec: StudySpec) -> dict[str, Any]:
    if named.number is None:
        return {}
    one = next(each for each in tried if each.number == named.number)
    interval = named.values["val_accuracy"]
    optimum = max(truth.tuned(model, batch) for model in truth.models for batch in BATCHES)
    return {
        "is_named": True, "is_right": _find_margin(one, tried, spec) >= 0,
        "is_near": one.accuracy >= optimum - spec.answer.tolerance.accuracy,
        "is_covered": interval.low <= one.accuracy <= interval.high, "width": interval.high - interval.low,
        "num_seeds": interval.n,
    }  # fmt: skip


def _find_margin(one: _Tried, tried: list[_Tried], spec: StudySpec) -> float:
    # accuracy by which the statement "use this one" is right; negative where it is wrong
    tolerance, best = spec.answer.tolerance, max(each.accuracy for each in tried)
    limit, slower = best - tolerance.accuracy / 2, one.seconds / (1 + tolerance.time)
    rivals = [limit - each.accuracy for each in tried if each.seconds < slower]
    return min(one.accuracy - (best - tolerance.accuracy), *rivals, math.inf)


def _is_feasible(tried: list[_Tried], spec: StudySpec, num_images: int, budget: float) -> bool:
    """Whether half of ``budget`` suffices for one who knows the truth and trains the best named one and its closest
    rival alone."""
    margins = [_find_margin(each, tried, spec) for each in tried]
    margin, one = max(margins), tried[int(np.argmax(margins))]
    if margin <= 0:
        return False
    best = max(tried, key=lambda each: each.accuracy)
    # two configurations on the same images: what each gets right of its own, 0.3 of the variance, leaves an error
    image_variance = 2 * 0.3 * best.accuracy * (1 - best.accuracy) / num_images
    allowed = (margin / ndtri(spec.answer.confidence)) ** 2 - image_variance
    if allowed <= 0:
        return False
    seeds = max((one.noise**2 + best.noise**2) / allowed, FEWEST_SEEDS)
    return bool(seeds * (one.seconds + best.seconds + 2.0) <= budget / 2)


def _is_without_loss(batch: int, tried: list[_Tried], spec: StudySpec) -> bool:
    best_here = max(each.accuracy for each in tried if each.batch == batch)
    return best_here >= max(each.accuracy for each in tried) - spec.answer.tolerance.accuracy


def summarize(found: Sequence[StudyFigures]) -> dict[str, Any]:
    settled = [each for each in found if each.is_settled]
    named = [each for each in found if each.is_named]
    return {
        "num_studies": len(found),
        "settled_right": share_of([each.is_right for each in settled]),
        "settled_near_optimum": share_of([each.is_near for each in settled]),
        "largest_right": share_of([each.largest_right for each in found if each.largest_settled]),
        "named_covered": share_of([each.is_covered for each in named]),
        "median_width_points": 100 * float(np.median([each.width for each in named])) if named else None,
        "named_with_enough_seeds": share_of([each.num_seeds >= FEWEST_SEEDS for each in named]),
        "settled_where_feasible": share_of([each.is_settled for each in found if each.is_feasible]),
        "settled": share_of([each.is_settled for each in found]),
    }


def _measure(family: str, number: int, folder: Path | None) -> StudyFigures:
    if folder is None:
        return run_study(family, number)
    return StudyFigures(**keep(folder / f"{family}_{number}.json", lambda: asdict(run_study(family, number))))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks answer_truth", description=__doc__)
    parser.add_argument("--studies", type=int, default=200, help="of each family (200)")
    parser.add_argument("--families", nargs="*", default=list(_ALL), choices=list(_ALL))
    parser.add_argument("--fresh-subset", action="store_true", help="other studies, without results on record")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args(arguments)
    count, first = (_SUBSET, _FRESH) if options.fresh_subset else (options.studies, _FIRST)
    code = ("sweep/analysis", "sweep/search", "benchmarks/answer_truth.py")
    folder = None if options.fresh_subset else Path("runs/answer_truth") / digest_files(*code)
    tasks = [(family, first + number) for number in range(count) for family in options.families]
    with ProcessPoolExecutor(options.workers) as pool:
        found = list(pool.map(partial(_measure, folder=folder), *zip(*tasks, strict=True)))
    families = {name: summarize([each for each in found if each.family == name]) for name in options.families}
    held_back = summarize([each for each in found if each.family in HELD_BACK])
    result = {"all": summarize(found), "held_back": held_back, "families": families}
    print(json.dumps({"all": result["all"], "families": families}, indent=1))
    if options.save:
        save("answer_truth", result)
    return 0
