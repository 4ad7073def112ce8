"""The recommendation for one use: the choice, the second choice, and the probability of the first."""

import math
from typing import Any

import numpy as np
import pandas as pd

from sweep.analysis.answer.answer import NextBest, Recommendation
from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.answer.estimated_values import estimate_value, measure_values
from sweep.analysis.answer.use_cases import USE_TABLE, Use, find_regrets, find_right, score_candidates, widen_best
from sweep.analysis.comparable_trials import ACCURACY, MEMORY, SECONDS
from sweep.analysis.rate_powers import scaled_learning_rates
from sweep.analysis.statistics.column_reading import plain_value, read_numbers
from sweep.analysis.statistics.intervals import Interval
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.scales import LOG, difference_unit, scale_of
from sweep.config.errors import InputError
from sweep.config.study import FEWEST_SEEDS, StudySpec
from sweep.config.trial_config import Scalar, build_config, config_keys, replace_keys
from sweep.config.units import format_count

_SHOWN = (
    "batch.micro", "batch.accumulation", "batch.global", "optimizer.name", "optimizer.lr", "optimizer.weight_decay",
    "schedule.warmup",
)  # fmt: skip


def choose_configuration(candidates: Candidates, name: str) -> Recommendation:
    """The recommendation for the use called ``name``."""
    return choose_for(candidates, USE_TABLE[name], name)


def choose_for(candidates: Candidates, use: Use, name: str) -> Recommendation:
    """The recommendation for ``use``, which is called ``name``: of the configurations with enough fresh seeds the one
    that is most probably right (:func:`pick_surest`)."""
    frame = candidates.records.frame
    score = score_candidates(candidates, use, candidates.estimates)
    right = find_right(candidates, use, candidates.draws)
    probabilities = right.mean(axis=0)
    pick = pick_surest(candidates, use, probabilities, candidates.nameable)
    if pick is None:
        return Recommendation(use=name, missing=_command_for_none(candidates, name, score))
    second = _pick_second(candidates, score, pick)
    row, is_alone = int(candidates.rows[pick]), len(candidates.rows) == 1
    probability = 0.0 if is_alone else float(probabilities[pick])
    config = config_of(frame.iloc[row])
    return Recommendation(
        use=name,
        number=candidates.number(pick),
        config=config,
        settings=select_shown(candidates, config),
        global_batch_size=int(frame["global_batch_size"].iloc[row]),
        learning_rate=_find_learning_rate(frame.iloc[[row]]),
        num_epochs=_find_num_epochs(frame.iloc[[row]]),
        values={name: value for name in candidates.names if (value := estimate_value(candidates, pick, name)).n},
        measured=measure_values(candidates, pick),
        probability=probability,
        is_settled=probability >= candidates.rules.confidence,
        on_front=0.0 if is_alone else float(candidates.p_front[pick]),
        regret=_regret(candidates, use, pick),
        regret_metric=use.metric or "",
        next_best=None if second is None else _next_best(candidates, pick, second),
        evidence=tuple(_evidence(candidates, pick, score)),
        missing=None if probability >= candidates.rules.confidence else candidates.records.command_for_more_seeds,
    )


def _find_learning_rate(trial: pd.DataFrame) -> float | None:
    # the highest one with its scaling rule applied; None where it is not on record
    rate = float(scaled_learning_rates(trial)[0])
    return rate if math.isfinite(rate) else None


def _find_num_epochs(trial: pd.DataFrame) -> float | None:
    epochs = float(read_numbers(trial, "num_epochs")[0])
    return epochs if math.isfinite(epochs) else None


def config_of(row: pd.Series) -> dict[str, Scalar]:
    """The configuration in a row of trials by dotted key, without seed and the data's place."""
    keys = (key for key in config_keys() if key not in {"seed", "data.root"})
    return {key: plain_value(row.get(f"config.{key}")) for key in keys}


def select_shown(candidates: Candidates, config: dict[str, Scalar]) -> tuple[str, ...]:
    """The keys of ``config`` that describe a configuration: the usual ones, then whatever else is swept."""
    usual = (key for key in _SHOWN if config.get(key) is not None)
    return tuple(dict.fromkeys((*usual, *(key for key in candidates.records.swept if key in config))))


def pick_surest(candidates: Candidates, use: Use, probabilities: Values, eligible: Mask) -> int | None:
    """The place among the ``eligible`` (shape ``[k]``) with the highest of the ``probabilities`` (shape ``[k]``) of
    being right for ``use``. Of several that are right with the study's confidence, the best by the estimates; of those
    within the tolerance of it, the one most probably on the front. None where there is none, or only such as are surely
    wrong."""
    usable = eligible & use.takes_part(candidates) & (probabilities > 1.0 - candidates.rules.confidence)
    if not usable.any():
        return None
    enough = min(candidates.rules.confidence, float(probabilities[usable].max()))
    sure = usable & (probabilities >= enough)
    score = np.where(sure, use.score(candidates, candidates.estimates), np.inf)
    close = np.flatnonzero(sure & (score <= widen_best(candidates, use, score.min(keepdims=True))))
    if not len(close):  # what is optimized was not measured
        return None
    return int(close[np.lexsort((-probabilities[close], -candidates.p_front[close]))[0]])


def _pick_second(candidates: Candidates, score: Values, pick: int) -> int | None:
    others = np.where(np.arange(len(score)) == pick, np.inf, score)
    named = np.where(candidates.nameable, others, np.inf)
    if np.isfinite(named).any():
        others = named
    return int(np.argmin(others)) if np.isfinite(others).any() else None


def _regret(candidates: Candidates, use: Use, pick: int) -> float:
    regrets = find_regrets(candidates, use, candidates.draws)[:, pick]
    known = regrets[np.isfinite(regrets)]
    return float(known.mean()) if len(known) else 0.0


def _next_best(candidates: Candidates, pick: int, second: int) -> NextBest:
    frame = candidates.records.frame
    first, other = (config_of(frame.iloc[int(candidates.rows[place])]) for place in (pick, second))
    n = min(len(candidates.basis_of(place)) for place in (pick, second))
    differences: dict[str, Interval] = {}
    for name in (name for name in (ACCURACY, SECONDS, MEMORY) if name in candidates.names):
        is_ratio = scale_of(name).is_ratio
        drawn = candidates.values(name, candidates.draws)
        drawn = LOG.forward(drawn) if is_ratio else drawn
        gap = drawn[:, pick] - drawn[:, second]
        if np.isfinite(gap).all():
            bounds = np.quantile(gap, [0.025, 0.5, 0.975])
            low, median, high = (LOG.backward(bounds) if is_ratio else bounds).tolist()
            differences[name] = Interval(median, low, high, n)
    return NextBest(
        number=candidates.number(second),
        changes={key: value for key, value in other.items() if value != first[key]},
        differences=differences,
        units={name: difference_unit(name) for name in differences},
    )


def _evidence(candidates: Candidates, pick: int, score: Values) -> list[str]:
    numbers = read_numbers(candidates.records.done, "number")[candidates.basis_of(pick)].astype(int).tolist()
    accuracy = candidates.records.posterior(ACCURACY)
    return [
        f"{len(numbers)} confirming trials with fresh seeds: {', '.join(map(str, numbers))}",
        _describe_rivals(int(np.isfinite(score).sum()), int(np.sum(candidates.nameable & np.isfinite(score)))),
        "standard deviation between seeds pooled over all confirmed configurations, with "
        f"{accuracy.spread.degrees} degrees of freedom",
    ]


def _describe_rivals(num_eligible: int, num_nameable: int) -> str:
    if num_eligible == 1:
        return "the only eligible configuration"
    return (
        f"compared with all {format_count(num_eligible, 'eligible configuration')}, {num_nameable} of them with "
        f"{FEWEST_SEEDS} fresh seeds or more"
    )


def _command_for_none(candidates: Candidates, name: str, score: Values) -> str | None:
    # what to run where no configuration may be named for the use called ``name``; None where the limits exclude all, or
    # the study's keys what the use requires
    records, commands = candidates.records, candidates.records.commands
    if not candidates.within_limits().any():
        return None
    if np.isfinite(score).any():
        return candidates.records.command_for_more_seeds
    if name == "fine_tune":
        weights = f"{records.study}_weights.safetensors"
        # weights fit one model
        best = records.frame.iloc[int(candidates.rows[np.argmax(candidates.values(ACCURACY))])]
        model = {"model.name": best["config.model.name"]} if "model.name" in records.swept else {}
        tuned = commands.run_variant("fine_tune", {**model, "model.weights": weights})
        return tuned if commands.is_foreign else f"{commands.train_and_save(weights, model)} && {tuned}"
    if name == "distributed":
        ranks = {"distributed.world_size": 2}
        return commands.run_variant("distributed", ranks) if _is_accepted(records.spec, ranks) else None
    return records.command_for_more


def _is_accepted(spec: StudySpec | None, changes: dict[str, Any]) -> bool:
    # --set replaces a key and removes none, so that the others of the study have to go with it
    try:
        build_config(replace_keys(spec.base if spec else {}, changes), "base")
    except InputError:
        return False
    return True
