"""The configurations that could win a use: their estimates and draws of their plausible true values."""

import math
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import pandas as pd
from threadpoolctl import ThreadpoolController

from sweep.analysis.answer import ConfigurationEstimate, Limits, NextBest, Recommendation
from sweep.analysis.comparable import ACCURACY, MEMORY, SECONDS, ComparableTrials
from sweep.analysis.costs import read_own
from sweep.analysis.rate_powers import scaled_learning_rates
from sweep.analysis.response import Untried, draw_response, draw_rivals
from sweep.analysis.statistics import (
    LOG,
    Interval,
    Mask,
    Numbers,
    Values,
    front_probabilities,
    non_dominated,
    plain_value,
    read_numbers,
    read_text,
    scale_of,
    seed_interval,
)
from sweep.config.metrics import METRICS, format_count
from sweep.config.study import FEWEST_SEEDS, AnswerRules
from sweep.config.trial import Scalar, config_keys

# A use that is not about accuracy still requires a useful one: this close to the best, unless a limit is given.
ACCURACY_MARGIN = 0.02
_NUM_DRAWS = 1000
_SEED, _RESPONSE_SEED = 0, 1
# More candidates than this cannot be told apart anyway; those left out are behind several fronts.
_MAX_CANDIDATES = 300
# Draws are rounded to what a page can contain exactly: accuracies to 16-bit multiples of 0.002 points, times and memory
# to 32-bit floats.
_ACCURACY_STEPS = 50_000
_MEASURED = ("test_accuracy",)  # medians over a configuration's own trials, because no use is decided by them
QUANTILES = (0.025, 0.5, 0.975)  # of the draws, for an interval
_COMPROMISE_TOLERANCE = 0.2  # of the distance to the ideal point: which compromise is the best is a matter of taste
_SHOWN = (
    "batch.micro", "batch.accumulation", "batch.global", "optimizer.name", "optimizer.lr", "optimizer.weight_decay",
    "schedule.warmup",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """``rows`` are the candidates among the configurations (shape ``[k]``); ``draws`` plausible true values of
    ``names``, shape ``[draws, k, m]``, ``estimates`` the most plausible ones, shape ``[k, m]``; ``num_seeds``
    the fresh seeds that each was trained with, shape ``[k]``. ``untried`` is what else the space holds, and ``rivals``
    are draws of it, shape ``[draws, u, m]``: one with the time and memory of each candidate of its model at its batch
    size that no other there undercuts in both or, where there is none, at the next batch sizes; beyond the largest
    batch size by ideal scaling."""

    records: ComparableTrials
    limits: Limits
    names: tuple[str, ...]
    rows: Numbers
    draws: Values
    estimates: Values
    num_seeds: Numbers
    untried: Untried
    rivals: Values

    @property
    def rules(self) -> AnswerRules:
        """The study's tolerance and confidence; the defaults where it is not on record."""
        return self.records.spec.answer if self.records.spec else AnswerRules()

    @property
    def quality(self) -> str:
        """The name of the quality's column."""
        return self.records.quality.column

    @property
    def tolerance(self) -> float:
        """The difference of the quality that does not matter."""
        return self.records.tolerance

    @property
    def required(self) -> float | None:
        """The least gain that the limits allow; None without such a limit."""
        limit = self.limits.min_accuracy if self.limits.limit_quality is None else self.limits.limit_quality
        return None if limit is None else self.records.quality.sign * limit

    @cached_property
    def p_front(self) -> Values:
        """The probability that a candidate is on the Pareto front of all candidates, by the study's objectives; shape
        ``[k]``."""
        is_objective = np.isin(self.names, self.records.objectives)
        signs = np.array([self.records.sign_of(name) for name in self.names])
        return front_probabilities(self.draws[..., is_objective], signs[is_objective])

    @property
    def nameable(self) -> Mask:
        """Which candidates have enough fresh seeds to be named; shape ``[k]``."""
        return np.asarray(self.num_seeds >= FEWEST_SEEDS)

    @property
    def num_failed_seeds(self) -> Numbers:
        """The fresh seeds of each candidate that did not complete; shape ``[k]``."""
        return self.records.num_failed_seeds[self.rows]

    def leave_out_untried(self) -> "Candidates":
        """The same as if the space held nothing but the candidates."""
        nothing = Untried(self.untried.models[:0], self.untried.batches[:0], self.untried.accuracies[:, :0])
        return replace(self, untried=nothing, rivals=self.rivals[:, :0])

    def values(self, name: str, table: Values | None = None) -> Values:
        """One metric of ``table`` (by default the estimates), shape ``[..., k]``; NaN where it was not measured."""
        whole = self.estimates if table is None else table
        if name not in self.names:
            return np.full(whole.shape[:-1], np.nan)
        return np.asarray(whole[..., self.names.index(name)])

    def number(self, candidate: int) -> int:
        """The number of a candidate's first trial."""
        return int(self.records.frame["number"].iloc[self.rows[candidate]])

    def basis_of(self, candidate: int) -> Numbers:
        """The rows of complete trials that a candidate's values rest on; shape ``[seeds]``."""
        return self.records.grouping.basis_of(int(self.rows[candidate]))

    def is_time_doubtful(self, candidate: int) -> bool:
        """Whether the candidate has a time, and no trial of equal cost has one that can be used for certain."""
        return SECONDS in self.names and bool(self.records.has_doubtful_time[self.rows[candidate]])

    def least_useful(self, accuracies: Values, margin: float | None = None) -> Values:
        """The accuracy from which on a configuration is useful when ``accuracies`` (shape ``[..., k]``) are true; shape
        ``[..., 1]``: the limit, otherwise ``margin`` (by default ACCURACY_MARGIN) below the best."""
        if self.required is not None:
            return np.full((*accuracies.shape[:-1], 1), self.required)
        margin = self.records.resize(ACCURACY_MARGIN) if margin is None else margin
        return np.asarray(np.nanmax(accuracies, axis=-1, keepdims=True) - margin)

    @property
    def floor(self) -> float:
        """The least useful accuracy by the estimates."""
        return float(self.least_useful(self.values(self.quality))[0])

    def within_limits(self, table: Values | None = None) -> Mask:
        """Which candidates keep to the limits; shape ``[..., k]``."""
        inside = np.ones((self.estimates if table is None else table).shape[:-1], dtype=np.bool_)
        if self.required is not None:
            inside &= self.values(self.quality, table) >= self.required
        if self.limits.max_seconds is not None:
            inside &= self.values(SECONDS, table) <= self.limits.max_seconds
        if self.limits.max_memory_bytes is not None:
            inside &= self.values(MEMORY, table) <= self.limits.max_memory_bytes
        return inside


def select_candidates(records: ComparableTrials, limits: Limits) -> Candidates | None:
    """The candidates of ``records``; None where no complete trial has a quality."""
    quality = records.quality.column
    posteriors = [records.posterior(name) for name in dict.fromkeys((*records.objectives, quality, SECONDS, MEMORY))]
    posteriors = [posterior for posterior in posteriors if np.isfinite(posterior.centers).any()]
    names = tuple(posterior.name for posterior in posteriors)
    if quality not in names:
        return None
    estimates = np.stack([posterior.estimates for posterior in posteriors], axis=1)
    signs = np.array([records.sign_of(name) for name in names])
    is_objective, accuracy = np.isin(names, records.objectives), names.index(quality)
    costs = estimates * signs
    rows = _select_rows(costs[:, is_objective], costs[:, accuracy], records.grouping.confirmed)
    generator, of_response = np.random.default_rng(_SEED), np.random.default_rng(_RESPONSE_SEED)
    with _find_threads().limit(limits=1):  # several wait for each other longer than one takes
        draws = np.stack([posterior.draw(rows, _NUM_DRAWS, generator) for posterior in posteriors], axis=2)
        # of trainings until a target the time depends on all settings, and the quality on none
        judged, sign = (records.judge_by_time(), -1.0) if records.until_target else (records, 1.0)
        columns = [names.index(name) for name in records.judged if name in names]
        drawn, means, untried = draw_response(
            judged, rows, sign * draws[..., columns[0]], sign * estimates[rows, columns[0]], of_response
        )
        for column in columns:
            draws[..., column], estimates[rows, column] = sign * drawn, sign * means
    _round_draws(draws, names, quality if records.quality.unit == "fraction" else "")
    if records.until_target:
        draws[..., accuracy] = estimates[rows, accuracy] = records.target
    costs = estimates[rows][:, np.isin(names, (SECONDS, MEMORY))]
    untried, rivals = draw_rivals(records, rows, draws, costs, names, untried)
    return Candidates(
        records=records,
        limits=limits,
        names=names,
        rows=rows,
        draws=draws,
        estimates=estimates[rows],
        num_seeds=records.num_seeds[rows],
        untried=untried,
        rivals=rivals,
    )


@cache
def _find_threads() -> ThreadpoolController:
    return ThreadpoolController()  # it searches all loaded libraries


def _round_draws(draws: Values, names: tuple[str, ...], share: str) -> None:
    single = np.finfo(np.float32)
    for index, name in enumerate(names):
        if name == share:
            draws[..., index] = np.rint(draws[..., index] * _ACCURACY_STEPS) / _ACCURACY_STEPS
        elif name in (SECONDS, MEMORY):
            draws[..., index] = np.clip(draws[..., index], single.tiny, single.max).astype(np.float32)


def _select_rows(costs: Values, misses: Values, confirmed: Mask) -> Numbers:
    # all that were confirmed, the most accurate, and fronts behind fronts until there are enough
    usable = np.isfinite(misses)
    chosen = confirmed & usable
    best = np.argsort(np.where(usable, misses, np.inf), kind="stable")[: _MAX_CANDIDATES // 3]
    chosen[best[usable[best]]] = True
    rest = np.where((usable & ~chosen)[:, None], costs, np.nan)
    while chosen.sum() < _MAX_CANDIDATES:
        layer = np.flatnonzero(non_dominated(rest))
        if not len(layer):
            break
        layer = layer[np.linspace(0, len(layer) - 1, min(len(layer), _MAX_CANDIDATES)).astype(np.int64)]
        chosen[layer] = True
        rest[chosen] = np.nan
    return np.flatnonzero(chosen)


def list_estimates(candidates: Candidates) -> tuple[ConfigurationEstimate, ...]:
    """The values of every candidate, in the order of their first trials."""
    return tuple(
        ConfigurationEstimate(
            number=candidates.number(candidate),
            num_seeds=int(candidates.num_seeds[candidate]),
            values={
                name: value for name in candidates.names if (value := estimate_value(candidates, candidate, name)).n
            },
            measured=_measure_values(candidates, candidate),
            front_probability=0.0 if len(candidates.rows) == 1 else float(candidates.p_front[candidate]),
        )
        for candidate in range(len(candidates.rows))
    )


def estimate_value(candidates: Candidates, candidate: int, name: str) -> Interval:
    """The metric ``name`` of a ``candidate``, in its unit; NaN with ``n`` = 0 where it was not measured.

    Times and memory are from all trials of equal cost where these are pooled, and ``n`` is their number. Everything
    else has the median and the quantiles of the draws that the probabilities are counted in, so that the interval
    holds after the configuration was picked; ``n`` is the number of the configuration's own trials.
    """
    if name not in candidates.names:
        return Interval(np.nan, np.nan, np.nan, 0)
    pooled = candidates.records.posterior(name).pooled_interval(int(candidates.rows[candidate]))
    if pooled is not None and name not in candidates.records.judged:
        return pooled
    drawn = candidates.values(name, candidates.draws)[:, candidate]
    if not np.isfinite(drawn).all():
        return Interval(np.nan, np.nan, np.nan, 0)
    low, middle, high = np.quantile(drawn, QUANTILES).tolist()
    n = int(np.isfinite(_own_values(candidates, candidate, name)).sum())
    return candidates.records.show(name, Interval(middle, low, high, n))


def _measure_values(candidates: Candidates, candidate: int) -> dict[str, Interval]:
    """The metrics of :data:`_MEASURED` that are no candidate's estimate: the median over the configuration's own
    trials, with an interval by the spread between seeds and the number of images."""
    measured, records = {}, candidates.records
    for name in (name for name in _MEASURED if name not in candidates.names):
        values, scale = _own_values(candidates, candidate, name), scale_of(name)
        if not np.isfinite(values).any():
            continue
        spread = records.grouping.seed_spread(scale.forward(read_numbers(records.done, name)))
        num_images = records.images.num_test
        # of the error that the images leave on new ones; 0 where their number is not known
        variance = 1.0 / (4.0 * num_images) if num_images else 0.0
        _, low, high, n = seed_interval(scale.forward(values), spread, known_variance=variance)
        low, high = scale.backward(np.array([low, high])).tolist()
        measured[name] = Interval(float(np.nanmedian(values)), low, high, n)
    return measured


def _own_values(candidates: Candidates, candidate: int, name: str) -> Values:
    records = candidates.records
    return read_own(name, records.done, records.grouping)[candidates.basis_of(candidate)]


@dataclass(frozen=True)
class Use:
    """``metric`` is the one that is optimized, None for a compromise; ACCURACY stands for the study's quality. Where it
    is another one, the quality may be ``margin`` of an accuracy below the best; None is the study's tolerance.
    ``requires`` names the settings of those that take part: pretrained ``weights``, several ``ranks``, "" for all."""

    metric: str | None
    margin: float | None = ACCURACY_MARGIN
    requires: str = ""

    def takes_part(self, candidates: Candidates) -> Mask:
        """Which candidates have what is required; shape ``[k]``."""
        frame, rows = candidates.records.frame, candidates.rows
        if self.requires == "weights":
            return np.asarray(read_text(frame, "config.model.weights")[rows] != "", dtype=np.bool_)
        if self.requires == "ranks":
            return read_numbers(frame, "config.distributed.world_size")[rows] > 1
        return np.ones(len(rows), dtype=np.bool_)

    def score(self, candidates: Candidates, table: Values) -> Values:
        """Of a table of values, shape ``[..., k, m] -> [..., k]``, smaller is better."""
        if self.metric is None:
            return _compromise(candidates, table)
        name = self.name_metric(candidates)
        return candidates.records.sign_of(name) * candidates.values(name, table)

    def name_metric(self, candidates: Candidates) -> str:
        """What is optimized in these records; "" for a compromise."""
        return candidates.quality if self.metric == ACCURACY else self.metric or ""


# The headline: which batch size to use.
BATCH_SIZE = Use(SECONDS, margin=None)
USE_TABLE = {
    "accuracy": Use(ACCURACY),
    "speed": Use(SECONDS),
    "memory": Use(MEMORY),
    "balanced": Use(None),
    "fine_tune": Use(ACCURACY, requires="weights"),
    "distributed": Use(SECONDS, requires="ranks"),
}


@dataclass(frozen=True)
class BatchGroups:
    """The effective batch sizes of each model, tried or not: in which draws each is ``right`` for the headline, shape
    ``[draws, g]``; ``of_candidates``, the group of each candidate, and the ``probabilities`` that the candidate itself
    is right, shapes ``[k]``."""

    right: Mask
    of_candidates: Numbers
    probabilities: Values


def find_right_batches(candidates: Candidates) -> BatchGroups:
    """Which batch sizes are the one to use, whatever the other settings: some configuration with it, tried or not, is
    right."""
    frame, untried = candidates.records.frame.iloc[candidates.rows], candidates.untried
    sizes = np.nan_to_num(read_numbers(frame, "global_batch_size")).astype(np.int64)
    names = [*zip(read_text(frame, "config.model.name"), sizes.tolist(), strict=True)]
    names += zip(untried.models, untried.batches.tolist(), strict=True)
    members = np.asarray(pd.factorize(pd.MultiIndex.from_tuples(names))[0], dtype=np.int64)
    right, k = _find_right(candidates, BATCH_SIZE), len(sizes)
    of_groups = [right[:, members == group].any(axis=1) for group in range(members.max() + 1)]
    return BatchGroups(np.stack(of_groups, axis=1), members[:k], right[:, :k].mean(axis=0))


def find_right(candidates: Candidates, use: Use) -> Mask:
    """Which candidates the use may name, in each of the draws; shape ``[draws, k]``: those that are eligible and within
    the tolerance of the best of the space.

    A rival whose accuracy is only just enough does not make another one wrong: rivals must lose less by half the
    tolerance of accuracy (an indifference zone, without which a rival at the edge could never be decided about).
    """
    return _find_right(candidates, use)[:, : len(candidates.rows)]


def _find_right(candidates: Candidates, use: Use) -> Mask:
    # with what was not tried; shape [draws, k + u]
    own = _score_space(candidates, use)
    best = _score_space(candidates, use, candidates.tolerance / 2).min(axis=1, keepdims=True)
    return np.asarray(np.isfinite(own) & (own <= _widen_best(candidates, use, best)))


def _score_space(candidates: Candidates, use: Use, stricter: float = 0.0) -> Values:
    # the scores, in each draw, of the candidates and of what was not tried; shape [draws, k + u]
    whole = np.concatenate([candidates.draws, candidates.rivals], axis=1)
    takes_part = np.append(use.takes_part(candidates), np.full(candidates.rivals.shape[1], not use.requires))
    return _score(candidates, use, whole, takes_part, stricter)


def _score(candidates: Candidates, use: Use, table: Values, takes_part: Mask, stricter: float = 0.0) -> Values:
    # the use's scores when ``table`` (shape [..., k, m]) is true, infinite for those that may not win; shape [..., k];
    # the accuracy that is required is higher by ``stricter``
    score, inside = use.score(candidates, table), candidates.within_limits(table) & takes_part
    if use.metric != ACCURACY:
        margin = candidates.tolerance if use.margin is None else candidates.records.resize(use.margin)
        inside = _are_useful(candidates, table, inside, margin - min(stricter, margin / 2))
    return np.where(inside & np.isfinite(score), score, np.inf)


def _widen_best(candidates: Candidates, use: Use, best: Values) -> Values:
    """The score that is no worse than ``best`` by more than the tolerance; of its shape."""
    tolerance = candidates.rules.tolerance
    if use.metric is None:
        return best + _COMPROMISE_TOLERANCE
    if use.metric == ACCURACY:
        return best + candidates.tolerance
    return best * (1.0 + (tolerance.memory if METRICS[use.metric].is_memory else tolerance.time))


def _are_useful(candidates: Candidates, table: Values, inside: Mask, margin: float) -> Mask:
    # accurate enough compared with the best of those ``inside``
    accuracies = candidates.values(candidates.quality, table)
    return np.asarray(inside & (accuracies >= candidates.least_useful(np.where(inside, accuracies, -np.inf), margin)))


def _compromise(candidates: Candidates, table: Values) -> Values:
    # distance to the ideal point, each metric over its range on the useful front; time and memory by their logarithm
    names = [name for name in (candidates.quality, SECONDS, MEMORY) if name in candidates.names]
    costs = _costs(candidates, candidates.estimates, names)
    inside = candidates.within_limits()
    front = _are_useful(candidates, candidates.estimates, inside, candidates.records.resize(ACCURACY_MARGIN))
    front &= non_dominated(np.where(front[:, None], costs, np.nan))
    if not front.any():
        return np.full(table.shape[:-1], np.nan)
    ideal, worst = costs[front].min(axis=0), costs[front].max(axis=0)
    scaled = (_costs(candidates, table, names) - ideal) / np.where(worst > ideal, worst - ideal, 1.0)
    return np.asarray(np.linalg.norm(np.maximum(scaled, 0.0), axis=-1))


def _costs(candidates: Candidates, table: Values, names: list[str]) -> Values:
    values = ((name, candidates.values(name, table)) for name in names)
    return np.stack([-value if name == candidates.quality else LOG.forward(value) for name, value in values], axis=-1)


def choose_for(candidates: Candidates, use: Use, name: str) -> Recommendation:
    """The recommendation for ``use``, which is called ``name``: of the configurations with enough fresh seeds the one
    that is most probably right (:func:`pick_surest`)."""
    frame = candidates.records.frame
    score = _score(candidates, use, candidates.estimates, use.takes_part(candidates))
    probabilities = find_right(candidates, use).mean(axis=0)
    pick, _ = pick_for(candidates, use, candidates.nameable)
    if pick is None:
        return Recommendation(use=name, missing=_command_for_none(candidates, use, name, score))
    second = _pick_second(candidates, score, pick)
    row, is_alone = int(candidates.rows[pick]), len(candidates.rows) == 1
    probability = 0.0 if is_alone else float(probabilities[pick])
    config = config_of(frame.iloc[row])
    learning_rate = float(scaled_learning_rates(frame.iloc[[row]])[0])
    num_epochs = float(read_numbers(frame.iloc[[row]], "num_epochs")[0])
    return Recommendation(
        use=name,
        number=candidates.number(pick),
        config=config,
        settings=select_shown(candidates, config),
        global_batch_size=int(frame["global_batch_size"].iloc[row]),
        learning_rate=learning_rate if math.isfinite(learning_rate) else None,
        num_epochs=num_epochs if math.isfinite(num_epochs) else None,
        values={name: value for name in candidates.names if (value := estimate_value(candidates, pick, name)).n},
        measured=_measure_values(candidates, pick),
        probability=probability,
        is_settled=probability >= candidates.rules.confidence,
        on_front=0.0 if is_alone else float(candidates.p_front[pick]),
        regret=_expect_regret(candidates, use, pick),
        regret_metric=use.name_metric(candidates),
        next_best=None if second is None else _next_best(candidates, pick, second),
        evidence=tuple(_evidence(candidates, pick, score)),
        missing=None if probability >= candidates.rules.confidence else candidates.records.command_for_more_seeds,
    )


def config_of(row: pd.Series) -> dict[str, Scalar]:
    """The configuration in a row of trials by dotted key, without seed and the data's candidate."""
    keys = (key for key in config_keys() if key not in {"seed", "data.root"})
    return {key: plain_value(row.get(f"config.{key}")) for key in keys}


def select_shown(candidates: Candidates, config: dict[str, Scalar]) -> tuple[str, ...]:
    """The keys of ``config`` that describe a configuration: the usual ones, then whatever else is swept."""
    usual = (key for key in _SHOWN if config.get(key) is not None)
    return tuple(dict.fromkeys((*usual, *(key for key in candidates.records.swept if key in config))))


def pick_surest(candidates: Candidates, use: Use, probabilities: Values, eligible: Mask) -> int | None:
    """The candidate among the ``eligible`` (shape ``[k]``) with the highest of the ``probabilities`` (shape ``[k]``) of
    being right for ``use``. Of several that are right with the study's confidence, the best by the estimates; of those
    within the tolerance of it, the one most probably on the front. None where there is none, or only such as are surely
    wrong."""
    score = use.score(candidates, candidates.estimates)
    usable = eligible & use.takes_part(candidates) & (probabilities > 1.0 - candidates.rules.confidence)
    usable &= np.isfinite(score)  # what is optimized was measured
    if not usable.any():
        return None
    enough = min(candidates.rules.confidence, float(probabilities[usable].max()))
    sure = usable & (probabilities >= enough)
    score = np.where(sure, score, np.inf)
    close = np.flatnonzero(score <= _widen_best(candidates, use, score.min(keepdims=True)))
    if len(close) == 1:  # the front takes long to count
        return int(close[0])
    return int(close[np.lexsort((-probabilities[close], -candidates.p_front[close]))[0]])


def pick_of_batch(candidates: Candidates, groups: BatchGroups, group: int, eligible: Mask) -> int:
    """The candidate among the ``eligible`` (shape ``[k]``) that stands for a batch size: the one that is most probably
    right, then the most accurate; -1 where there is none."""
    places = np.flatnonzero((groups.of_candidates == group) & eligible)
    order = np.lexsort((candidates.values(candidates.quality)[places], groups.probabilities[places]))
    return int(places[order[-1]]) if len(places) else -1


def pick_for(candidates: Candidates, use: Use, eligible: Mask) -> tuple[int | None, Values]:
    """The candidate among the ``eligible`` (shape ``[k]``) to name for ``use``, the surest of those that were tried,
    None where there is none; and the probability of each candidate of being right in the whole space, shape ``[k]``;
    for the headline, of its batch size being right."""
    tried = candidates.leave_out_untried()
    if use is not BATCH_SIZE:
        pick = pick_surest(candidates, use, find_right(tried, use).mean(axis=0), eligible)
        return pick, find_right(candidates, use).mean(axis=0)
    groups, whole = find_right_batches(tried), find_right_batches(candidates)
    rows = [pick_of_batch(candidates, groups, group, eligible) for group in range(groups.right.shape[1])]
    stands = np.isin(np.arange(len(candidates.rows)), rows)
    pick = pick_surest(candidates, use, groups.right.mean(axis=0)[groups.of_candidates], stands)
    return pick, whole.right.mean(axis=0)[whole.of_candidates]


def _pick_second(candidates: Candidates, score: Values, pick: int) -> int | None:
    others = np.where(np.arange(len(score)) == pick, np.inf, score)
    named = np.where(candidates.nameable, others, np.inf)
    if np.isfinite(named).any():
        others = named
    return int(np.argmin(others)) if np.isfinite(others).any() else None


def _expect_regret(candidates: Candidates, use: Use, pick: int) -> float:
    scores = _score_space(candidates, use)
    known = scores[np.isfinite(scores[:, pick])]
    return float((known[:, pick] - known.min(axis=1)).mean()) if len(known) else 0.0


def _next_best(candidates: Candidates, pick: int, second: int) -> NextBest:
    frame = candidates.records.frame
    first, other = (config_of(frame.iloc[int(candidates.rows[candidate])]) for candidate in (pick, second))
    differences = compare_candidates(candidates, pick, second)
    return NextBest(
        number=candidates.number(second),
        changes={key: value for key, value in other.items() if value != first[key]},
        differences=differences,
        units={name: candidates.records.name_unit(name) for name in differences},
    )


def compare_candidates(candidates: Candidates, first: int, second: int) -> dict[str, Interval]:
    """The quality of the candidate ``first`` minus the quality of ``second``, and the ratios of their times and
    memory, by metric; without what was not measured."""
    n = min(len(candidates.basis_of(candidate)) for candidate in (first, second))
    differences: dict[str, Interval] = {}
    compared = (SECONDS, MEMORY) if candidates.records.until_target else (candidates.quality, SECONDS, MEMORY)
    for name in (name for name in compared if name in candidates.names):
        is_ratio, drawn = name != candidates.quality, candidates.values(name, candidates.draws)[:, [first, second]]
        drawn = LOG.forward(drawn) if is_ratio else drawn
        gap = drawn[:, 0] - drawn[:, 1]
        if np.isfinite(gap).all():
            bounds = np.quantile(gap, QUANTILES)
            low, median, high = (LOG.backward(bounds) if is_ratio else bounds).tolist()
            differences[name] = candidates.records.show(name, Interval(median, low, high, n))
    return differences


def _evidence(candidates: Candidates, pick: int, score: Values) -> list[str]:
    numbers = read_numbers(candidates.records.done, "number")[candidates.basis_of(pick)].astype(int).tolist()
    is_eligible = np.isfinite(score)
    rivals = (
        f"compared with all {format_count(int(is_eligible.sum()), 'eligible configuration')}, "
        f"{int(np.sum(candidates.nameable & is_eligible))} of them with {FEWEST_SEEDS} fresh seeds or more"
    )
    return [
        f"{len(numbers)} trials with fresh seeds: {', '.join(map(str, numbers))}",
        "the only eligible configuration" if is_eligible.sum() == 1 else rivals,
        "standard deviation between seeds pooled over all confirmed configurations, with "
        f"{candidates.records.posterior(candidates.records.judged[0]).spread.degrees} degrees of freedom",
    ]


def _command_for_none(candidates: Candidates, use: Use, name: str, score: Values) -> str | None:
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
        best = records.frame.iloc[int(candidates.rows[np.argmax(candidates.values(candidates.quality))])]
        model = {"model.name": best["config.model.name"]} if "model.name" in records.swept else {}
        tuned = commands.run_variant("fine_tune", {**model, "model.weights": weights})
        return tuned if commands.is_foreign else f"{commands.train_and_save(weights, model)} && {tuned}"
    if name == "distributed":
        return commands.run_variant("distributed", {"distributed.world_size": 2})
    metric = use.name_metric(candidates)
    if commands.is_foreign and not np.isfinite(candidates.values(metric)).any():
        return commands.state_elsewhere(f"{metric} and device of each run, in columns that the map names")
    return records.command_for_more
