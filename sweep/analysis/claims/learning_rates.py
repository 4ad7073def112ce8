"""Claims about the learning rate: how the best one follows the batch, and warm-up."""

from typing import Any

import numpy as np

from sweep.analysis.answer.commands import run_more, sweep_both
from sweep.analysis.batch_curve import ACCURACY, build_batch_curve
from sweep.analysis.claims.claim import Claim
from sweep.analysis.claims.pairs import seed_pairs
from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.statistics.estimates import NOTHING, Estimate, Region, mean_estimate
from sweep.analysis.statistics.frame_columns import format_count, read_numbers, read_text
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.config.recipe_sections import OptimizerSection
from sweep.config.scaling import lr_rule

_MIN_TRIALS = 12
_WARMUP_FROM = 8  # times the reference batch


def claims(ground: ComparableTrials) -> list[Claim]:
    """The linear rule, the square-root rule, warm-up."""
    names = read_text(ground.frame, "config.optimizer.name")
    with_linear = [name for name in set(names.tolist()) if _power_of(str(name), "auto") == 1.0]
    linear = np.asarray(np.isin(names.astype(str), with_linear), dtype=np.bool_)
    return [
        _rule(
            ground, linear, "lr_rule_linear",
            "With SGD the best learning rate grows linearly with the global batch: by its power 0.75 to 1.25.",
            Region(0.75, 1.25),
            "Goyal et al. 2017, ResNet-50, error at 8k: linear with warm-up 23.74 +- 0.09 %, square root 26.22 %, "
            "unscaled 41.67 %; holds to 8k. Shallue et al. 2018: no rule holds across workloads.",
        ),
        _rule(
            ground, ~linear, "lr_rule_sqrt",
            "With Adam and its kin the best learning rate grows with the square root of the global batch: by its power "
            "0.25 to 0.75.",
            Region(0.25, 0.75),
            "Malladi et al. 2022, betas and epsilon scaled too; McCandlish et al. 2018 measured powers between 0.5 and "
            "1.",
        ),
        warmup_is_needed(ground),
    ]  # fmt: skip


def _rule(ground: ComparableTrials, chosen: Mask, name: str, statement: str, region: Region, published: str) -> Claim:
    batches, rates = read_numbers(ground.frame, "global_batch_size"), effective_rates(ground)
    accuracies = ground.belief(ACCURACY).estimates
    good = _upper_half(batches, np.where(chosen, accuracies, np.nan))
    estimate = rate_power(batches[good], rates[good], accuracies[good])
    spec = ground.spec
    detail = ""
    if estimate.n:
        detail = (
            f"{estimate.n} configurations, the better half at each of {len(np.unique(batches[good]))} global batches; "
        )
        detail += _break(ground, chosen, region)
    return Claim(
        name,
        statement,
        region,
        "exponent",
        published,
        run_more(ground.called, 3 * spec.trials if spec and chosen.any() else 60)
        if {"optimizer.lr"} <= set(ground.swept)
        else sweep_both(ground.called, "optimizer.lr", "log = [0.001, 1.0]"),
        estimate,
        detail,
    )


def effective_rates(ground: ComparableTrials) -> Values:
    """The highest learning rate of each configuration with its scaling rule applied; shape ``[configurations]``."""
    frame = ground.frame
    ratio = read_numbers(frame, "global_batch_size") / read_numbers(frame, "config.optimizer.reference_batch")
    names, rules = read_text(frame, "config.optimizer.name"), read_text(frame, "config.optimizer.lr_rule")
    powers = {pair: _power_of(*pair) for pair in set(zip(names.tolist(), rules.tolist(), strict=True))}
    power = np.array([powers[pair] for pair in zip(names.tolist(), rules.tolist(), strict=True)], dtype=np.float64)
    return read_numbers(frame, "config.optimizer.lr") * np.where(power == 0, 1.0, ratio**power)


def _power_of(name: str, rule: str) -> float:
    values: dict[str, Any] = {"name": name or "momentum", "lr_rule": rule or "none"}  # of a plug-in, maybe
    section = OptimizerSection.model_construct(**values)
    return {"none": 0.0, "linear": 1.0, "sqrt": 0.5}[lr_rule(section)]


def rate_power(batches: Values, rates: Values, accuracies: Values) -> Estimate:
    """The power p of best rate ~ batch^p from a quadratic surface of accuracy over log rate and log batch.

    At a given batch the surface peaks at log rate = -(b + d log batch) / (2 c), so that p = -d / (2 c); its error by
    the delta method. Too little when there is no clear peak. All of shape ``[n]``.
    """
    n = len(accuracies)
    if n < _MIN_TRIALS or len(np.unique(batches)) < 3 or len(np.unique(rates)) < 4:
        return NOTHING
    b, r = np.log(batches) - np.log(batches).mean(), np.log(rates) - np.log(rates).mean()
    design = np.stack([np.ones(n), b, b * b, r, r * r, r * b], axis=1)
    found, _, rank, _ = np.linalg.lstsq(design, accuracies, rcond=None)
    if rank < design.shape[1]:
        return NOTHING
    variance = float(np.sum((accuracies - design @ found) ** 2)) / (n - design.shape[1])
    covariance = variance * np.linalg.inv(design.T @ design)
    curve, tilt = float(found[4]), float(found[5])
    if not curve < -2 * np.sqrt(covariance[4, 4]):
        return NOTHING
    gradient = np.array([tilt / (2 * curve**2), -1 / (2 * curve)])
    error = float(np.sqrt(gradient @ covariance[4:6, 4:6] @ gradient))
    return Estimate(-tilt / (2 * curve), error, n - design.shape[1], n)


def _upper_half(batches: Values, accuracies: Values) -> Mask:
    # a quadratic holds near its peak only
    good = np.zeros(len(batches), dtype=np.bool_)
    for batch in np.unique(batches[np.isfinite(accuracies)]):
        rows = np.flatnonzero((batches == batch) & np.isfinite(accuracies))
        good[rows[accuracies[rows] >= np.median(accuracies[rows])]] = True
    return good


def _break(ground: ComparableTrials, chosen: Mask, region: Region) -> str:
    # from which batch on the best rate stays behind the rule by a factor of two, the rule drawn from the smallest batch
    best, rates = build_batch_curve(ground, chosen, at_least=3), effective_rates(ground)
    if len(best.batches) < 3:
        return "too few batches to say where it breaks"
    power = (region.low + region.high) / 2
    behind = rates[best.rows] / rates[best.rows[0]] < 0.5 * (best.batches / best.batches[0]) ** power
    if not behind[-1]:
        return f"it holds up to a global batch of {int(best.batches[-1])}"
    holds = np.flatnonzero(~behind)[-1]
    return f"it breaks beyond a global batch of {int(best.batches[holds])}"


def warmup_is_needed(ground: ComparableTrials) -> Claim:
    """Accuracy with warm-up less that without, in pairs of equal seed, from 8 times the reference batch on."""
    trials = ground.done
    times = read_numbers(trials, "global_batch_size") / read_numbers(trials, "config.optimizer.reference_batch")
    large = trials[np.asarray(times >= _WARMUP_FROM, dtype=np.bool_)]
    side = np.asarray(read_numbers(large, "config.schedule.warmup") > 0, dtype=np.bool_)
    pairs = seed_pairs(large, ("schedule.warmup", "schedule.warmup_unit"), side)
    accuracies = read_numbers(large, ACCURACY)
    estimate = mean_estimate(accuracies[pairs.first] - accuracies[pairs.second])
    return Claim(
        "warmup_needed",
        "From 8 times the reference batch on, warm-up gains half a point of accuracy or more.",
        Region(0.005, np.inf),
        "fraction",
        "Goyal et al. 2017, ResNet-50, error at 8k: no warm-up 24.84 +- 0.37 %, constant 25.88 +- 0.56 %, gradual "
        "23.74 +- 0.09 %.",
        sweep_both(ground.called, "schedule.warmup", "choice = [0.0, 0.1]"),
        estimate,
        f"{format_count(estimate.n, 'pair')} of equal settings and seed" if estimate.n else "",
    )
