"""From the contest to a recommendation: the choice for one use, the second choice, and how sure the first is."""

import numpy as np
import pandas as pd

from sweep.analysis.answer.answer import NextBest, Recommendation
from sweep.analysis.answer.candidates import ACCURACY, MEMORY, SECONDS, Candidates
from sweep.analysis.answer.missing_evidence import command_for_more, command_for_none
from sweep.analysis.answer.use_cases import USE_TABLE, Use, score_candidates
from sweep.analysis.statistics.frame_columns import format_count, plain_value, read_numbers
from sweep.analysis.statistics.intervals import CONFIDENCE, Interval, Spread, pooled_spread, seed_interval
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.scales import LOG, scale_of
from sweep.config.metrics import METRICS
from sweep.config.trial_config import Scalar, config_keys

_SHOWN = (
    "batch.micro", "batch.accumulation", "batch.global", "optimizer.name", "optimizer.lr", "optimizer.weight_decay",
    "schedule.warmup",
)  # fmt: skip

# From this probability on a configuration passes for one of the front. It is an estimate itself, so it is more than the
# 95 % of recommendations that are to be truly there.
_SURELY = 0.98


def choose_configuration(contest: Candidates, name: str) -> Recommendation:
    """The recommendation for the use called ``name``."""
    use = USE_TABLE[name]
    score = score_candidates(contest, use, contest.estimates)
    drawn = score_candidates(contest, use, contest.draws)
    candidates = _candidates(contest, use, score, drawn)
    if not candidates.any():
        return Recommendation(name, missing=command_for_none(contest, name))
    pick = _pick(contest, use, score, candidates)
    second = _second(contest, use, score, pick)
    certainty = _certainty(drawn, pick) if len(contest.rows) > 1 else 0.0
    config = config_of(contest.ground.frame.iloc[int(contest.rows[pick])])
    return Recommendation(
        use=name,
        number=_number(contest, pick),
        config=config,
        settings=shown_settings(contest, config),
        global_batch_size=int(contest.ground.frame["global_batch_size"].iloc[int(contest.rows[pick])]),
        values=_values(contest, pick),
        is_confirmed=bool(contest.confirmed[pick]),
        certainty=certainty,
        on_front=float(contest.p_front[pick]) if len(contest.rows) > 1 else 0.0,
        regret=_regret(drawn, pick),
        regret_metric=use.metric or "",
        next_best=None if second is None else _next_best(contest, pick, second),
        evidence=tuple(_evidence(contest, pick, score)),
        missing=command_for_more(contest, pick, certainty),
    )


def config_of(row: pd.Series) -> dict[str, Scalar]:
    """The configuration in a row of trials by dotted key, without seed and the data's place."""
    keys = (key for key in config_keys() if key not in {"seed", "data.root"})
    return {key: plain_value(row.get(f"config.{key}")) for key in keys}


def shown_settings(contest: Candidates, config: dict[str, Scalar]) -> tuple[str, ...]:
    """What is always shown, then whatever else is swept."""
    usual = (key for key in _SHOWN if config.get(key) is not None)
    return tuple(dict.fromkeys((*usual, *(key for key in contest.ground.swept if key in config))))


def _candidates(contest: Candidates, use: Use, score: Values, drawn: Values) -> Mask:
    # the most accurate of many single seeds is the luckiest, so that accuracy is chosen among confirmed ones, and among
    # others that are almost surely better than all of those
    open_to = np.isfinite(score)
    confirmed = open_to & contest.confirmed
    if use.metric != ACCURACY or not confirmed.any():
        return open_to
    better = np.mean(drawn < drawn[:, confirmed].min(axis=1, keepdims=True), axis=0)
    return np.asarray(confirmed | (open_to & (better >= CONFIDENCE)))


def _pick(contest: Candidates, use: Use, score: Values, candidates: Mask) -> int:
    """The best score; where that is not surely on the front, the best of those that are among those hardly worse (as
    the one-standard-error rule of Breiman et al. 1984 takes the simplest): first of the candidates, then of all, for
    what is just as good by one seed and costs less beats a confirmed one. Or else the candidate most surely there."""
    best = int(np.argmin(np.where(candidates, score, np.inf)))
    close = use.is_close(contest, score, best)
    for among in (candidates, np.isfinite(score)):
        sure = np.flatnonzero(among & close & (contest.p_front >= _SURELY))
        if len(sure):
            return int(sure[np.lexsort((-contest.p_front[sure], score[sure]))[0]])
    tied = np.flatnonzero(candidates & close)
    return int(tied[np.argmax(contest.p_front[tied])])


def _second(contest: Candidates, use: Use, score: Values, pick: int) -> int | None:
    others = np.where(np.arange(len(score)) == pick, np.inf, score)
    confirmed = np.where(contest.confirmed, others, np.inf)
    if use.metric == ACCURACY and np.isfinite(confirmed).any():
        others = confirmed
    return int(np.argmin(others)) if np.isfinite(others).any() else None


def _certainty(drawn: Values, pick: int) -> float:
    best = drawn.min(axis=1)
    return float(np.mean(np.isfinite(best) & (drawn[:, pick] <= best)))


def _regret(drawn: Values, pick: int) -> float:
    taken = drawn[np.isfinite(drawn[:, pick])]
    return float(np.mean(taken[:, pick] - taken.min(axis=1))) if len(taken) else 0.0


def _number(contest: Candidates, place: int) -> int:
    return int(read_numbers(contest.ground.frame, "number")[contest.rows[place]])


def _values(contest: Candidates, place: int) -> dict[str, Interval]:
    rows = contest.ground.basis_of(int(contest.rows[place]))
    found = {}
    for name in dict.fromkeys((*contest.names, "test_accuracy")):
        values = read_numbers(contest.ground.done, name)[rows]
        if np.isfinite(values).any():
            found[name] = _interval(contest, name, values)
    return found


def _interval(contest: Candidates, name: str, values: Values) -> Interval:
    scale = scale_of(name)
    if name in contest.names and not contest.belief(name).is_assumed:
        spread = contest.belief(name).spread
    else:
        spread = _confirmed_spread(contest, name)
    _, low, high, n = seed_interval(scale.forward(values), spread)
    low, high = scale.backward(np.array([low, high])).tolist()
    return Interval(float(np.nanmedian(values)), low, high, n)


def _confirmed_spread(contest: Candidates, name: str) -> Spread:
    grouping = contest.ground.grouping
    values = scale_of(name).forward(read_numbers(contest.ground.done, name))
    return pooled_spread(np.where(grouping.is_confirm, values, np.nan), grouping.members)


def _next_best(contest: Candidates, pick: int, second: int) -> NextBest:
    first, other = (config_of(contest.ground.frame.iloc[int(contest.rows[place])]) for place in (pick, second))
    differences: dict[str, Interval] = {}
    units: dict[str, str] = {}
    for name in (name for name in (ACCURACY, SECONDS, MEMORY) if name in contest.names):
        mine, theirs = (contest.values(name, contest.draws)[:, place] for place in (pick, second))
        is_ratio = scale_of(name).is_ratio
        gap = LOG.forward(mine) - LOG.forward(theirs) if is_ratio else mine - theirs
        if np.isfinite(gap).all():
            bounds = np.quantile(gap, [0.025, 0.5, 0.975])
            low, median, high = (LOG.backward(bounds) if is_ratio else bounds).tolist()
            counts = (len(contest.ground.basis_of(int(contest.rows[place]))) for place in (pick, second))
            differences[name] = Interval(median, low, high, min(counts))
            units[name] = "ratio" if scale_of(name).is_ratio else METRICS[name].unit
    changes = {key: value for key, value in other.items() if value != first[key]}
    return NextBest(_number(contest, second), changes, differences, units)


def _evidence(contest: Candidates, pick: int, score: Values) -> list[str]:
    ground = contest.ground
    numbers = read_numbers(ground.done, "number")[ground.basis_of(int(contest.rows[pick]))].astype(int).tolist()
    listed = ", ".join(str(number) for number in numbers)
    if contest.confirmed[pick]:
        basis = (
            f"{len(numbers)} confirming trials with fresh seeds: {listed}"
            if len(numbers) > 1
            else (f"one confirming trial with a fresh seed: {listed}")
        )
    else:
        basis = f"one search trial, not confirmed: {listed}"
    lines = [basis, f"chosen among {format_count(int(np.isfinite(score).sum()), 'configuration')} in question"]
    accuracy = contest.belief(ACCURACY)
    lines.append(
        "no seed was repeated, so the spread between seeds is assumed, not measured"
        if accuracy.is_assumed
        else f"spread between seeds pooled over confirmed configurations, {accuracy.spread.degrees} degrees of freedom"
    )
    return lines
