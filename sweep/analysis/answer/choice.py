"""The recommendation for one use: the choice, the second choice, and the probability of the first."""

import numpy as np
import pandas as pd

from sweep.analysis.answer.answer import NextBest, Recommendation
from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.answer.use_cases import USE_TABLE, Use, score_candidates
from sweep.analysis.comparable_trials import ACCURACY, MEMORY, SECONDS
from sweep.analysis.statistics.column_reading import plain_value, read_numbers
from sweep.analysis.statistics.intervals import CONFIDENCE, Interval, seed_interval
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.scales import LOG, difference_unit, scale_of
from sweep.config.trial_config import Scalar, config_keys
from sweep.config.units import format_count

_SHOWN = (
    "batch.micro", "batch.accumulation", "batch.global", "optimizer.name", "optimizer.lr", "optimizer.weight_decay",
    "schedule.warmup",
)  # fmt: skip

# From this probability on a configuration passes for one of the front. It is an estimate itself, so it is more than the
# 95 % of recommendations that are to be truly there. In simulated studies 98 to 99 % of all recommendations are, and
# 99 % or more of those above it, with equal noise (60 studies) and with noise that differs fivefold between
# configurations (25 studies); it is no rate at which such a statement is right.
_SURELY = 0.98
# Below this certainty the answer names what would raise it; so it does where the configuration may be off the front.
_SURE = 0.8


def choose_configuration(candidates: Candidates, name: str) -> Recommendation:
    """The recommendation for the use called ``name``."""
    use, frame = USE_TABLE[name], candidates.records.frame
    score = score_candidates(candidates, use, candidates.estimates)
    drawn = score_candidates(candidates, use, candidates.draws)
    eligible = _select_eligible(candidates, use, score, drawn)
    if not eligible.any():
        return Recommendation(use=name, missing=_command_for_none(candidates, name))
    pick = _pick_best(candidates, use, score, eligible)
    second = _pick_second(candidates, use, score, pick)
    row, is_alone = int(candidates.rows[pick]), len(candidates.rows) == 1
    certainty = 0.0 if is_alone else _certainty(drawn, pick)
    config = config_of(frame.iloc[row])
    return Recommendation(
        use=name,
        number=candidates.number(pick),
        config=config,
        settings=_select_shown(candidates, config),
        global_batch_size=int(frame["global_batch_size"].iloc[row]),
        values=_values(candidates, pick),
        is_confirmed=bool(candidates.confirmed[pick]),
        certainty=certainty,
        on_front=0.0 if is_alone else float(candidates.p_front[pick]),
        regret=_regret(drawn, pick),
        regret_metric=use.metric or "",
        next_best=None if second is None else _next_best(candidates, pick, second),
        evidence=tuple(_evidence(candidates, pick, score)),
        missing=_command_for_more(candidates, pick, certainty),
    )


def config_of(row: pd.Series) -> dict[str, Scalar]:
    """The configuration in a row of trials by dotted key, without seed and the data's place."""
    keys = (key for key in config_keys() if key not in {"seed", "data.root"})
    return {key: plain_value(row.get(f"config.{key}")) for key in keys}


def _select_shown(candidates: Candidates, config: dict[str, Scalar]) -> tuple[str, ...]:
    # what is always shown, then whatever else is swept
    usual = (key for key in _SHOWN if config.get(key) is not None)
    return tuple(dict.fromkeys((*usual, *(key for key in candidates.records.swept if key in config))))


def _select_eligible(candidates: Candidates, use: Use, score: Values, drawn: Values) -> Mask:
    # the most accurate of many single seeds is the luckiest, so that accuracy is chosen among confirmed ones, and among
    # others that are almost surely better than all of those
    open_to = np.isfinite(score)
    confirmed = open_to & candidates.confirmed
    if use.metric != ACCURACY or not confirmed.any():
        return open_to
    better = np.mean(drawn < drawn[:, confirmed].min(axis=1, keepdims=True), axis=0)
    return np.asarray(confirmed | (open_to & (better >= CONFIDENCE)))


def _pick_best(candidates: Candidates, use: Use, score: Values, eligible: Mask) -> int:
    """The best score; where that is not surely on the front, the best of those that are among those hardly worse (as
    the one-standard-error rule of Breiman et al. 1984 takes the simplest): first of the eligible ones, then of all, for
    what is just as good by one seed and costs less beats a confirmed one. Or else the candidate most surely there."""
    best = int(np.argmin(np.where(eligible, score, np.inf)))
    close = use.is_close(candidates, score, best)
    for among in (eligible, np.isfinite(score)):
        sure = np.flatnonzero(among & close & (candidates.p_front >= _SURELY))
        if len(sure):
            return int(sure[np.lexsort((-candidates.p_front[sure], score[sure]))[0]])
    tied = np.flatnonzero(eligible & close)
    return int(tied[np.argmax(candidates.p_front[tied])])


def _pick_second(candidates: Candidates, use: Use, score: Values, pick: int) -> int | None:
    others = np.where(np.arange(len(score)) == pick, np.inf, score)
    confirmed = np.where(candidates.confirmed, others, np.inf)
    if use.metric == ACCURACY and np.isfinite(confirmed).any():
        others = confirmed
    return int(np.argmin(others)) if np.isfinite(others).any() else None


def _certainty(drawn: Values, pick: int) -> float:
    best = drawn.min(axis=1)
    return float(np.mean(np.isfinite(best) & (drawn[:, pick] <= best)))


def _regret(drawn: Values, pick: int) -> float:
    taken = drawn[np.isfinite(drawn[:, pick])]
    return float(np.mean(taken[:, pick] - taken.min(axis=1))) if len(taken) else 0.0


def _values(candidates: Candidates, place: int) -> dict[str, Interval]:
    # of the configuration's own trials; times and memory of all trials of equal cost
    rows = candidates.basis_of(place)
    found = {}
    for name in dict.fromkeys((*candidates.names, "test_accuracy")):
        values = read_numbers(candidates.records.done, name)[rows]
        if not np.isfinite(values).any():
            continue
        posterior = candidates.records.posterior(name) if name in candidates.names else None
        pooled = posterior.pooled_interval(int(candidates.rows[place])) if posterior else None
        found[name] = pooled or _interval(candidates, name, values, _image_variance(candidates, name, place))
    return found


def _image_variance(candidates: Candidates, name: str, place: int) -> float:
    # of the error that the images leave in the accuracy on new ones; 0 where their number is not known
    images = candidates.records.images
    if name == ACCURACY:
        return float(images.covariance(candidates.rows)[place, place])
    return 1.0 / (4.0 * images.num_test) if name == "test_accuracy" and images.num_test else 0.0


def _interval(candidates: Candidates, name: str, values: Values, known_variance: float) -> Interval:
    scale, records = scale_of(name), candidates.records
    if name in candidates.names and not candidates.records.posterior(name).is_assumed:
        spread = candidates.records.posterior(name).spread
    else:
        spread = records.grouping.seed_spread(scale.forward(read_numbers(records.done, name)))
    _, low, high, n = seed_interval(scale.forward(values), spread, known_variance=known_variance)
    low, high = scale.backward(np.array([low, high])).tolist()
    return Interval(float(np.nanmedian(values)), low, high, n)


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
    if not candidates.confirmed[pick]:
        basis = "one search trial, not confirmed"
    elif len(numbers) == 1:
        basis = "one confirming trial with a fresh seed"
    else:
        basis = f"{len(numbers)} confirming trials with fresh seeds"
    accuracy = candidates.records.posterior(ACCURACY)
    return [
        f"{basis}: {', '.join(map(str, numbers))}",
        f"chosen among {format_count(int(np.isfinite(score).sum()), 'configuration')} in question",
        "no seed was repeated, so the spread between seeds is assumed, not measured"
        if accuracy.is_assumed
        else f"spread between seeds pooled over confirmed configurations, {accuracy.spread.degrees} degrees of freedom",
    ]


def _command_for_none(candidates: Candidates, name: str) -> str:
    # what to run where no configuration is eligible for the use called ``name``
    records, commands = candidates.records, candidates.records.commands
    if name == "fine_tune":
        weights = f"{records.study}_weights.safetensors"
        # weights fit one model
        best = records.frame.iloc[int(candidates.rows[np.argmax(candidates.values(ACCURACY))])]
        model = {"model.name": best["config.model.name"]} if "model.name" in records.swept else {}
        tuned = commands.run_variant("fine_tune", {**model, "model.weights": weights})
        return f"{commands.train_and_save(weights, model)} && {tuned}"
    if name == "distributed":
        return commands.run_variant("distributed", {"distributed.world_size": 2})
    return records.command_for_more


def _command_for_more(candidates: Candidates, pick: int, certainty: float) -> str | None:
    # what to run to be surer of the candidate ``pick``; None where it is sure enough
    spec = candidates.records.spec
    seeds = spec.confirm.seeds if spec else 3
    if candidates.confirmed[pick]:
        if certainty >= _SURE and candidates.p_front[pick] >= CONFIDENCE:
            return None
        seeds *= 2
    # confirming takes the front's trials, so a number as large as the front leaves none of them out
    likely = int(np.sum(candidates.p_front > 0.05))
    configurations = min(1000, max(likely, spec.confirm.max_configurations if spec else 4))
    return candidates.records.commands.confirm_more(configurations, seeds=max(3, seeds))
