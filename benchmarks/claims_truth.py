"""How often the findings are right: records of each claim's own planned study, whose truth is made up.

``python -m benchmarks claims_truth --studies N``: N studies where the claim is true by the smallest margin that
matters, and N where it is false by as much, with the planned number of trainings and the scatter that the plan assumes.
A verdict that contradicts the truth is wrong; "undecided" and the verdicts without a test settle nothing. Each study's
verdict is written when it is known, under ``runs/claims_truth``, so that an interrupted measurement continues; they are
computed again when the code has changed. ``--seconds`` ends the measurement in time: claims take turns, so that all of
them have equally many studies but for one.
"""

import argparse
import itertools
import json
import math
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.answer_truth import MadeFrames
from benchmarks.harness import digest_files, keep, save, share_of
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.claims import ACCURACY_SPREAD, MEMORY_SPREAD, TIME_SPREAD, Claim
from sweep.analysis.findings import UNSETTLED, count_planned, evaluate_claims, write_plan
from sweep.config.metrics import METRICS
from sweep.config.space import count_grid_points, pick_grid_point
from sweep.config.study_file import build_study
from sweep.config.trial import flatten_config

Row = dict[str, Any]
Truth = Callable[[pd.DataFrame, float, np.random.Generator], Row]  # columns that a study's rows measure, by the effect
_CLAIMS = {claim.name: claim for claim in CLAIMS}
_MOST_WRONG, _MOST_OPEN = 0.05, 0.20
_BEST, _CURVATURE = 0.93, 0.03  # accuracy at the best rate, and what a rate ten times as large loses
_SECONDS, _BYTES = 20.0, 64.0 * 2**20
_EVALUATION = ("study", "number", "step", "train_loss", "val_loss", "val_accuracy")


class MadeRecords(MadeFrames):
    """Without a study, and without the images that trials got right."""

    find_correct = None  # type: ignore[assignment]


def find_effect(claim: Claim, *, is_true: bool, times: float = 1.0) -> float:
    """The effect in the claim's unit: the middle of a range with two bounds, otherwise ``times`` as far inside its
    bound as matters; where the claim is false as far outside, on the side of no effect."""
    low, high = claim.scale_bounds(claim.region)
    matters = times * (math.log(claim.matters) if claim.is_ratio else claim.matters)
    if is_true:
        inside = low + matters if math.isfinite(low) else high - matters
        effect = (low + high) / 2 if math.isfinite(low + high) else inside
    else:
        # no effect is 0, of a ratio too by its logarithm; where it lies inside the range, the effect is below that
        effect = high + matters if high < 0 or math.isinf(low) else low - matters
    return math.exp(effect) if claim.is_ratio else effect


def make_records(claim: Claim, effect: float, rng: np.random.Generator) -> MadeRecords:
    """The records of the planned study of ``claim`` where the true effect is ``effect``."""
    trials = _plan_rows(claim.name).copy()
    n = len(trials)
    measured: Row = {"val_accuracy": np.full(n, _BEST), "train_seconds": _SECONDS, "peak_memory_bytes": _BYTES}
    measured |= TRUTHS[claim.name](trials, effect, rng)
    evaluations = measured.pop("evaluations", None)
    seconds = measured["train_seconds"] * np.exp(TIME_SPREAD * rng.standard_normal(n))
    rates = measured.pop("rate_factor", 1.0) * _SECONDS * 600 / seconds
    memory = measured["peak_memory_bytes"] * np.exp(MEMORY_SPREAD * rng.standard_normal(n))
    accuracies = np.clip(measured["val_accuracy"] + ACCURACY_SPREAD * rng.standard_normal(n), 0.0, 1.0)
    measured |= {"val_accuracy": accuracies, "train_seconds": seconds, "images_per_second": rates}
    trials = trials.assign(**(measured | {"peak_memory_bytes": memory}))
    if evaluations is None:
        losses = rng.lognormal(-2.0, 0.5, n)
        evaluations = pd.DataFrame({"number": range(n), "step": 100, "train_loss": losses, "val_accuracy": accuracies})
    evaluations = evaluations.assign(study="made").reindex(columns=list(_EVALUATION))
    return MadeRecords(None, trials, evaluations=evaluations)


@cache
def _plan_rows(name: str) -> pd.DataFrame:
    # the trainings of the planned study, before anything is measured
    spec = build_study(tomllib.loads(write_plan(_CLAIMS[name])), name)
    size = count_grid_points(spec.space) or 0
    configs = [spec.config(pick_grid_point(spec.space, index)) for index in range(size)]
    rows = [{f"config.{key}": value for key, value in flatten_config(config).items()} for config in configs]
    columns = {"global_batch_size": [config.global_batch_size for config in configs], "number": range(size)}
    columns |= {"seed": [config.seed for config in configs]}
    fixed = {"study": "made", "phase": "search", "outcome": "complete", "device": "made", "quality_flags": ""}
    empty = dict.fromkeys(METRICS, np.nan)
    return pd.DataFrame(rows).assign(**columns, **fixed, **empty)


def _column(trials: pd.DataFrame, key: str) -> Any:
    return trials[f"config.{key}"].to_numpy()


def _paired(key: str, *values: float | str) -> Truth:
    # accuracy is higher by the effect where the key has one of the values
    return lambda trials, effect, _rng: {"val_accuracy": 0.9 + effect * np.isin(_column(trials, key), list(values))}


def _lose(values: Any, best: Any) -> Any:
    return _CURVATURE * np.log10(values / best) ** 2


def _tuned(key: str, *values: float | str) -> Truth:
    # the same at the best learning rate, which each side has anywhere in the middle of the rates that are tried
    def truth(trials: pd.DataFrame, effect: float, rng: np.random.Generator) -> Row:
        side, rates = np.isin(_column(trials, key), list(values)), _column(trials, "optimizer.lr")
        low, high = np.log(np.quantile(rates, [0.3, 0.7]))
        best = np.exp(rng.uniform(low, high, 2))[side.astype(int)]
        return {"val_accuracy": 0.9 + effect * side - _lose(rates, best)}

    return truth


def _sloped(key: str = "", value: str = "") -> Truth:
    # accuracy per doubling of the batch; of the configurations with the value that of the others plus the effect
    def truth(trials: pd.DataFrame, effect: float, rng: np.random.Generator) -> Row:
        doublings = np.log2(trials["global_batch_size"].to_numpy() / 64)
        rates = _column(trials, "optimizer.lr")
        slope = effect if not key else -0.002 + effect * (_column(trials, key) == value)
        best = np.exp(np.log(rates).mean() + rng.uniform(-0.3, 0.3)) * 2 ** (0.3 * doublings)
        return {"val_accuracy": 0.9 + slope * doublings - _lose(rates, best)}

    return truth


def _powered(trials: pd.DataFrame, effect: float, rng: np.random.Generator) -> Row:
    # the best rate grows with the batch by the power
    rates, batches = _column(trials, "optimizer.lr"), trials["global_batch_size"].to_numpy()
    middle = np.exp(np.log(rates).mean() + rng.uniform(-0.3, 0.3))
    return {"val_accuracy": _BEST - _lose(rates, middle * (batches / 64) ** effect)}


def _ratio(key: str, value: object, metric: str, usual: float) -> Truth:
    return lambda trials, effect, _rng: {metric: usual * np.where(_column(trials, key) == value, effect, 1.0)}


def _saved_memory(trials: pd.DataFrame, effect: float, _rng: np.random.Generator) -> Row:
    counts = np.ceil(trials["global_batch_size"] / _column(trials, "batch.micro")).to_numpy()
    return {"peak_memory_bytes": _BYTES * (1 - effect * (1 - 1 / counts))}


def _regimes(trials: pd.DataFrame, effect: float, rng: np.random.Generator) -> Row:
    batches, rates = trials["global_batch_size"].to_numpy(), _column(trials, "optimizer.lr")
    steps = 50 * (1 + effect / batches) * np.exp(np.log10(rates / 0.05) ** 2 + 0.1 * rng.standard_normal(len(trials)))
    target = _column(trials, "budget.target")
    shares = np.array([0.5, 0.95, 1.05])
    points = {
        "number": np.repeat(np.arange(len(trials)), len(shares)), "step": np.outer(steps, shares).ravel(),
        "train_loss": 1.0, "val_accuracy": np.outer(target, shares).ravel(),
    }  # fmt: skip
    return {"val_accuracy": target, "evaluations": pd.DataFrame(points)}


def _falling_losses(trials: pd.DataFrame, effect: float, rng: np.random.Generator) -> Row:
    # losses are reached by the law of three regimes, whose critical batch grows by the power of 1 / loss
    batches, rates = trials["global_batch_size"].to_numpy(), _column(trials, "optimizer.lr")
    slow = np.exp(np.log10(rates / 0.003) ** 2 + 0.05 * rng.standard_normal(len(trials)))
    losses = np.geomspace(1.6, 0.8, 12)
    steps = 40 * losses**-3 * (1 + 60 * losses**-effect / batches[:, None]) * slow[:, None]
    points = {
        "number": np.repeat(np.arange(len(trials)), len(losses)), "step": steps.ravel(), "train_loss": 1.0,
        "val_loss": np.tile(losses, len(trials)), "val_accuracy": 0.5,
    }  # fmt: skip
    return {"val_loss": losses[-1], "evaluations": pd.DataFrame(points)}


def _half_life(trials: pd.DataFrame, effect: float, rng: np.random.Generator) -> Row:
    side, rates = _column(trials, "rules.betas") == "half_life", _column(trials, "optimizer.lr")
    scatter = 0.02 * rng.standard_normal(len(trials))
    return {"val_loss": 0.4 - effect * side + 10 * _lose(rates, 6e-4) + scatter}


def _decay_powered(trials: pd.DataFrame, effect: float, rng: np.random.Generator) -> Row:
    # the loss is lowest at a weight decay that grows with the batch by the power
    decays, batches = _column(trials, "optimizer.weight_decay"), trials["global_batch_size"].to_numpy()
    best = 0.3 * np.exp(rng.uniform(-0.3, 0.3)) * (batches / 64) ** effect
    return {"val_loss": 0.3 + _lose(decays, best) + ACCURACY_SPREAD * rng.standard_normal(len(trials))}


def _noise_scale(trials: pd.DataFrame, effect: float, rng: np.random.Generator) -> Row:
    scales = trials["global_batch_size"] ** effect / _column(trials, "optimizer.lr")
    return {"num_noise_steps": 50, "noise_scale_run": scales * rng.lognormal(0, 0.5, len(trials))}


TRUTHS: Mapping[str, Truth] = {
    "lr_rule_linear": _powered, "lr_rule_sqrt": _powered,
    "warmup_needed": _paired("schedule.warmup", 0.1),
    "large_batch_equal_epochs": _sloped(), "large_batch_equal_steps": _sloped(),
    "small_batches_best": _tuned("batch.micro", 16, 32), "vit_less_sensitive": _sloped("model.name", "vit_micro"),
    "muon_less_sensitive": _sloped("optimizer.name", "muon"), "layerwise_needed": _tuned("optimizer.name", "lars"),
    "sgd_small_batch": _tuned("optimizer.name", "sgd"), "muon_ahead": _tuned("optimizer.name", "muon"),
    "schedule_free_matches": _tuned("optimizer.name", "schedule_free"),
    "fine_tune_small_batches": _tuned("batch.micro", 32), "small_batch_norm": _paired("model.norm", "group"),
    "accumulation_time": _ratio("batch.micro", 32, "train_seconds", _SECONDS), "accumulation_memory": _saved_memory,
    "accumulation_batch_norm": _paired("batch.micro", 32), "accumulation_diverges": _paired("batch.micro", 16),
    "accumulation_wasteful": _tuned("batch.accumulation", 1),
    "batch_instead_of_decay": _paired("batch.schedule", "stepwise"),
    "batch_warmup": _paired("batch.schedule", "exponential"), "linear_decay_best": _paired("schedule.name", "linear"),
    "ema_follows_batch": _paired("rules.ema", "power"),
    "memory_linear": lambda trials, effect, _rng: {
        "peak_memory_bytes": _BYTES * (0.1 + (_column(trials, "batch.micro") / 128) ** effect)
    },
    "larger_is_faster": lambda trials, effect, _rng: {
        "rate_factor": np.where(_column(trials, "batch.micro") >= 256, effect, 1.0)
    },
    "mixed_precision_time": _ratio("precision.dtype", "bf16", "train_seconds", _SECONDS),
    "mixed_precision_memory": _ratio("precision.dtype", "bf16", "peak_memory_bytes", _BYTES),
    "checkpointing_time": _ratio("precision.checkpointing", True, "train_seconds", _SECONDS),
    "checkpointing_memory": _ratio("precision.checkpointing", True, "peak_memory_bytes", _BYTES),
    "three_regimes": _regimes,
    "critical_batch_grows": _falling_losses, "beta2_follows_batch": _half_life, "decay_follows_batch": _decay_powered,
    "noise_scale_temperature": _noise_scale,
    "large_batches_sharp": lambda trials, effect, rng: {
        "sharpness_keskar": trials["global_batch_size"] ** effect * rng.lognormal(0, 0.5, len(trials))
    },
}  # fmt: skip


class Judged(NamedTuple):
    """The verdict of one study about its own claim."""

    claim: str
    is_true: bool
    verdict: str

    @property
    def is_open(self) -> bool:
        return self.verdict in UNSETTLED

    @property
    def is_wrong(self) -> bool:
        return not self.is_open and (self.verdict == "supported") != self.is_true


def judge_study(name: str, number: int, *, is_true: bool) -> Judged:
    """Makes the records of one study of the claim ``name`` and reads its verdict from the findings on all claims."""
    claim = _CLAIMS[name]
    rng = np.random.default_rng([number, int(is_true), *name.encode()])
    found = evaluate_claims(make_records(claim, find_effect(claim, is_true=is_true), rng))  # type: ignore[arg-type]
    return Judged(name, is_true, next(each.verdict for each in found if each.name == name))


def summarize(judged: Sequence[Judged]) -> dict[str, Any]:
    wrong, unsettled = [each.is_wrong for each in judged], [each.is_open for each in judged]
    return {"num_studies": len(judged), "wrong": share_of(wrong), "undecided": share_of(unsettled)}


def _judge_all(num_studies: int, names: Sequence[str], seconds: float) -> Iterator[Judged]:
    folder = Path("runs/claims_truth") / digest_files("sweep/analysis", "benchmarks/claims_truth.py")
    until = time.monotonic() + seconds
    for number, name, is_true in itertools.product(range(num_studies), names, (True, False)):
        path = folder / f"{name}_{number}_{is_true}.json"
        if not path.is_file() and time.monotonic() > until:
            return
        yield Judged(*keep(path, lambda: judge_study(name, number, is_true=is_true)))  # noqa: B023  # is called at once


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where the shares over all claims are within their limits, otherwise 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks claims_truth", description=__doc__)
    parser.add_argument("--studies", type=int, default=100, help="of each claim and truth (100)")
    parser.add_argument("--claims", nargs="*", default=list(TRUTHS), choices=list(TRUTHS), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=600.0, help="no study begins later (600)")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args(arguments)
    judged = list(_judge_all(options.studies, options.claims, options.seconds))
    whole, by_claim = summarize(judged), {}
    for name in options.claims:
        own = [each for each in judged if each.claim == name]
        trainings = _CLAIMS[name].design.count_trainings(count_planned(_CLAIMS[name]))
        sides = {
            side: summarize([each for each in own if each.is_true == (side == "true")]) for side in ("true", "false")
        }
        by_claim[name] = {"trainings": trainings, **sides}
    print(json.dumps({"all": whole, "claims": by_claim}, indent=1))
    if options.save:
        save("claims_truth", {"all": whole, "claims": by_claim})
    is_met = judged and whole["wrong"]["share"] <= _MOST_WRONG and whole["undecided"]["share"] <= _MOST_OPEN
    return 0 if is_met else 1
