"""Figures beside the answer: what fits, where throughput saturates, what a minute buys, how large is too large."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.answer.answer import Fact
from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.batch_curve import BatchCurve, fit_batch_curve
from sweep.analysis.comparable_trials import ACCURACY, SECONDS, ComparableTrials
from sweep.analysis.statistics.estimates import SIGNIFICANT, correct_holm
from sweep.analysis.statistics.frame_columns import read_numbers, read_text
from sweep.analysis.statistics.intervals import median_interval, t_upper_tail
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.trial_shapes import parse_shapes

# The knee is the smallest micro batch this close to the best throughput.
KNEE_SHARE = 0.95
_DID_NOT_FIT = ("out_of_memory", "not_fitting")
_READ = (
    "outcome", "config.batch.micro", "micro_batch_size", "images_per_second", "noise_scale", "val_accuracy",
)  # fmt: skip


class _Measured(NamedTuple):
    value: float
    n: int
    detail: str
    low: float = np.nan
    high: float = np.nan


class _Question(NamedTuple):
    """``measure`` gives None where the records do not tell, and ``missing`` the command that would."""

    name: str
    statement: str
    unit: str
    measure: Callable[[Candidates, str], _Measured | None]
    missing: Callable[[ComparableTrials, str], str]


def measure_facts(candidates: Candidates, model: str) -> dict[str, Fact]:
    """Every fact about the model ``model`` by its name; NaN and a command where the records do not tell."""
    facts = (_measure(question, candidates, model) for question in _QUESTIONS)
    return {fact.name: fact for fact in facts}


def unknown_facts(missing: str) -> dict[str, Fact]:
    """The facts of a study without a complete trial, for which the command ``missing`` is to be run."""
    return {question.name: _fact(question, _NOT_KNOWN, missing) for question in _QUESTIONS}


def _measure(question: _Question, candidates: Candidates, model: str) -> Fact:
    measured = question.measure(candidates, model)
    if measured is None:
        return _fact(question, _NOT_KNOWN, question.missing(candidates.records, model))
    return _fact(question, measured._replace(detail=f"{model}; {measured.detail}"), None)


def _fact(question: _Question, measured: _Measured, missing: str | None) -> Fact:
    return Fact(
        name=question.name, statement=question.statement, unit=question.unit, missing=missing, **measured._asdict()
    )


_NOT_KNOWN = _Measured(np.nan, 0, "")


def _largest_micro_batch(candidates: Candidates, model: str) -> _Measured | None:
    # the largest that a trial or a probe ran, and the smallest that did not fit
    records = candidates.records
    trials = _of_model(records.trials, model)
    sizes, outcomes = _micro_batches(trials), read_text(trials, "outcome")
    probes = records.frames.probes
    probes = probes[_probes_of(probes, model, set(read_text(records.done, "device")))]
    probed, probe_outcomes = read_numbers(probes, "micro_batch"), read_text(probes, "outcome")
    ran = np.concatenate([sizes[outcomes == "complete"], probed[probe_outcomes == "complete"]])
    failed = np.concatenate([sizes[np.isin(outcomes, _DID_NOT_FIT)], probed[np.isin(probe_outcomes, _DID_NOT_FIT)]])
    ran, failed = ran[np.isfinite(ran)], failed[np.isfinite(failed)]
    if not len(ran):
        return None
    largest = float(ran.max())
    beyond = failed[failed > largest]
    detail = f"{int(beyond.min())} did not fit" if len(beyond) else "nothing larger was tried"
    return _Measured(largest, int(np.sum(ran == largest)), detail)


def _throughput_knee(candidates: Candidates, model: str) -> _Measured | None:
    # by the median throughput at each micro batch
    trials = _of_model(candidates.records.done, model)
    sizes, rates = _micro_batches(trials), read_numbers(trials, "images_per_second")
    known = np.isfinite(sizes) & np.isfinite(rates)
    levels = np.unique(sizes[known])
    if len(levels) < 2:
        return None
    medians = np.array([np.median(rates[known & (sizes == level)]) for level in levels])
    knee = float(levels[medians >= KNEE_SHARE * medians.max()].min())
    detail = f"the best throughput was at {int(levels[np.argmax(medians)])}"
    if knee == levels[-1]:
        detail += ", the largest that ran: the knee may be beyond"
    return _Measured(knee, int(np.sum(known)), detail)


def _accuracy_per_minute(candidates: Candidates, model: str) -> _Measured | None:
    # the interval by the plausible true values of the best configuration
    useful = candidates.values(ACCURACY) >= candidates.floor
    useful &= read_text(candidates.records.frame, "config.model.name")[candidates.rows] == model
    minutes = candidates.values(SECONDS) / 60
    rates = np.where(useful & (minutes > 0), candidates.values(ACCURACY) / minutes, -np.inf)
    if not np.isfinite(rates).any():
        return None
    best = int(np.argmax(rates))
    accuracies, seconds = (candidates.values(name, candidates.draws)[:, best] for name in (ACCURACY, SECONDS))
    low, high = np.quantile(accuracies / seconds * 60, [0.025, 0.975]).tolist()
    detail = f"trial {candidates.number(best)}"
    return _Measured(float(rates[best]), len(candidates.basis_of(best)), detail, low, high)


def _critical_batch(candidates: Candidates, model: str) -> _Measured | None:
    # the median of the noise scale at the end of trials (McCandlish et al. 2018, arXiv:1812.06162)
    trials = _of_model(candidates.records.done, model)
    scales = read_numbers(trials, "noise_scale")[read_numbers(trials, ACCURACY) >= candidates.floor]
    scales = scales[np.isfinite(scales) & (scales > 0)]
    if not len(scales):
        return None
    median, low, high, n = median_interval(scales)
    return _Measured(median, n, "median over trials of a useful accuracy", low, high)


def _largest_batch_without_loss(candidates: Candidates, model: str) -> _Measured | None:
    # the best configuration of each batch size against the best of all: one-sided tests by the spread between seeds
    curve, posterior = _curve_of_model(candidates.records, model), candidates.posterior(ACCURACY)
    if len(curve.batches) < 2 or posterior.is_assumed:
        return None
    top = int(np.argmax(curve.centers))
    others = np.arange(len(curve.batches)) != top
    gaps, widths = curve.centers[top] - curve.centers, np.hypot(curve.errors[top], curve.errors)
    p_values = np.ones(len(gaps))
    tails = t_upper_tail(gaps[others] / np.maximum(widths[others], 1e-12), posterior.spread.degrees)
    p_values[others] = correct_holm(tails)
    largest = int(np.flatnonzero(p_values > SIGNIFICANT)[-1])
    loss = 100 * (curve.accuracies[top] - curve.accuracies[largest])
    detail = "the best accuracy of all batches"
    if largest != top:
        detail = f"the best accuracy was at {int(curve.batches[top])}, {loss:.2f} points above this one's"
    return _Measured(float(curve.batches[largest]), len(curve.batches), detail)


def _command_for_loss(records: ComparableTrials, model: str) -> str:
    curve = _curve_of_model(records, model)
    if len(curve.batches) < 2:
        return _more_trials(records, model)
    return records.commands.confirm_more(len(curve.batches), 3)


def _curve_of_model(records: ComparableTrials, model: str) -> BatchCurve:
    return fit_batch_curve(records, np.asarray(read_text(records.frame, "config.model.name") == model, dtype=np.bool_))


def _of_model(trials: pd.DataFrame, model: str) -> pd.DataFrame:
    chosen = np.asarray(read_text(trials, "config.model.name") == model, dtype=np.bool_)
    return trials.loc[chosen, [name for name in _READ if name in trials.columns]]


def _probes_of(probes: pd.DataFrame, model: str, devices: set[str]) -> Mask:
    models = [shape.get("model.name", model) for shape in parse_shapes(probes)]
    here = [not device or device in devices for device in read_text(probes, "device")]
    return np.array([name == model for name in models], dtype=np.bool_) & np.array(here, dtype=np.bool_)


def _micro_batches(trials: pd.DataFrame) -> Values:
    # the measured column holds what batch.micro = "auto" chose last
    chosen = read_numbers(trials, "config.batch.micro")
    return np.where(np.isfinite(chosen), chosen, read_numbers(trials, "micro_batch_size"))


def _more_trials(records: ComparableTrials, _model: str) -> str:
    return records.commands.run_more(2 * records.planned_trials)


_QUESTIONS = (
    _Question(
        "largest_micro_batch", "Largest micro batch that ran", "samples",
        _largest_micro_batch, lambda records, _: records.commands.probe_shapes(),
    ),
    _Question(
        "throughput_knee", "Throughput knee: the smallest micro batch within 5 % of the best throughput", "samples",
        _throughput_knee, _more_trials,
    ),
    _Question(
        "accuracy_per_minute", "Best accuracy per minute of training, among configurations of a useful accuracy",
        "fraction/minute", _accuracy_per_minute, _more_trials,
    ),
    _Question(
        "critical_batch", "Critical batch from the gradient noise scale: beyond it a larger batch saves few steps",
        "samples", _critical_batch,
        lambda records, _: records.commands.run_variant("noise", {"diagnostics.noise_scale": True}),
    ),
    _Question(
        "largest_batch_without_loss", "Largest effective batch size without a significant loss of accuracy", "samples",
        _largest_batch_without_loss, _command_for_loss,
    ),
)  # fmt: skip
