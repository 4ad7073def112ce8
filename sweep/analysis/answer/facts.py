"""The figures beside the answer: what fits, where throughput saturates, what a minute buys, how large is too large."""

import json

import numpy as np
import pandas as pd

from sweep.analysis.answer.answer import Fact
from sweep.analysis.answer.candidates import ACCURACY, SECONDS, Candidates
from sweep.analysis.answer.commands import Called, confirm_more, probe, run_more, run_variant
from sweep.analysis.batch_curve import build_batch_curve
from sweep.analysis.statistics.estimates import SIGNIFICANT, correct_holm
from sweep.analysis.statistics.frame_columns import read_numbers, read_text
from sweep.analysis.statistics.intervals import median_interval
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.student import t_upper_tail

# The knee is the smallest micro batch this close to the best throughput.
KNEE_SHARE = 0.95
_DID_NOT_FIT = ("out_of_memory", "not_fitting")


def measure_facts(contest: Candidates, probes: pd.DataFrame, model: str) -> dict[str, Fact]:
    """Every fact by its name, for one model; NaN and a command where the records do not tell."""
    every = (
        largest_micro_batch(contest, probes, model),
        throughput_knee(contest, model),
        accuracy_per_minute(contest, model),
        critical_batch(contest, model),
        largest_batch_without_loss(contest, model),
    )
    return {fact.name: fact for fact in every}


def unknown_facts(study: Called, trials: int) -> dict[str, Fact]:
    """The facts of a study without a complete trial."""
    return {name: _unknown(name, run_more(study, trials)) for name in _STATEMENTS}


_READ = (
    "outcome", "config.batch.micro", "micro_batch_size", "images_per_second", "noise_scale", "val_accuracy",
)  # fmt: skip
_STATEMENTS = {
    "largest_micro_batch": ("Largest micro batch that ran", "samples"),
    "throughput_knee": ("Throughput knee: the smallest micro batch within 5 % of the best throughput", "samples"),
    "accuracy_per_minute": ("Best accuracy per minute of training, among configurations of a useful accuracy",
                            "fraction/minute"),
    "critical_batch": ("Critical batch from the gradient noise scale: beyond it a larger batch saves few steps",
                       "samples"),
    "largest_batch_without_loss": ("Largest global batch without a significant loss of accuracy", "samples"),
}  # fmt: skip


def largest_micro_batch(contest: Candidates, probes: pd.DataFrame, model: str) -> Fact:
    """The largest that a trial or a probe ran, and the smallest that did not fit."""
    trials = _of_model(contest.ground.trials, model)
    sizes, outcomes = _micro(trials), read_text(trials, "outcome")
    probes = probes[_probes_of(probes, model, set(read_text(contest.ground.done, "device")))]
    probed, probe_outcomes = read_numbers(probes, "micro_batch"), read_text(probes, "outcome")
    ran = np.concatenate([sizes[outcomes == "complete"], probed[probe_outcomes == "complete"]])
    failed = np.concatenate([sizes[np.isin(outcomes, _DID_NOT_FIT)], probed[np.isin(probe_outcomes, _DID_NOT_FIT)]])
    ran, failed = ran[np.isfinite(ran)], failed[np.isfinite(failed)]
    if not len(ran):
        return _unknown("largest_micro_batch", probe(contest.ground.called))
    largest = float(ran.max())
    beyond = failed[failed > largest]
    detail = f"{model}; {int(beyond.min())} did not fit" if len(beyond) else f"{model}; nothing larger was tried"
    return _fact("largest_micro_batch", largest, np.nan, np.nan, int(np.sum(ran == largest)), detail)


def throughput_knee(contest: Candidates, model: str) -> Fact:
    """By the median throughput at each micro batch."""
    trials = _of_model(contest.ground.done, model)
    sizes, rates = _micro(trials), read_numbers(trials, "images_per_second")
    known = np.isfinite(sizes) & np.isfinite(rates)
    levels = np.unique(sizes[known])
    if len(levels) < 2:
        return _unknown("throughput_knee", run_more(contest.ground.called, _more(contest)))
    medians = np.array([np.median(rates[known & (sizes == level)]) for level in levels])
    near = levels[medians >= KNEE_SHARE * medians.max()]
    knee = float(near.min())
    best = levels[int(np.argmax(medians))]
    detail = f"{model}; the best throughput was at {int(best)}"
    if knee == levels[-1]:
        detail += ", the largest that ran: the knee may lie beyond"
    return _fact("throughput_knee", knee, np.nan, np.nan, int(np.sum(known)), detail)


def accuracy_per_minute(contest: Candidates, model: str) -> Fact:
    """Accuracy over minutes of training, its interval by the plausible true values of the best configuration."""
    useful = contest.values(ACCURACY) >= contest.floor
    useful &= read_text(contest.ground.frame, "config.model.name")[contest.rows] == model
    minutes = contest.values(SECONDS) / 60
    rates = np.where(useful & (minutes > 0), contest.values(ACCURACY) / minutes, -np.inf)
    if not np.isfinite(rates).any():
        return _unknown("accuracy_per_minute", run_more(contest.ground.called, _more(contest)))
    best = int(np.argmax(rates))
    drawn = contest.values(ACCURACY, contest.draws)[:, best] / contest.values(SECONDS, contest.draws)[:, best] * 60
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    number = int(read_numbers(contest.ground.frame, "number")[contest.rows[best]])
    n = len(contest.ground.basis_of(int(contest.rows[best])))
    return _fact("accuracy_per_minute", float(rates[best]), low, high, n, f"{model}; trial {number}")


def critical_batch(contest: Candidates, model: str) -> Fact:
    """The median of the noise scale at the end of trials (McCandlish et al. 2018, arXiv:1812.06162)."""
    trials = _of_model(contest.ground.done, model)
    accurate = read_numbers(trials, ACCURACY) >= contest.floor
    scales = read_numbers(trials, "noise_scale")[accurate]
    scales = scales[np.isfinite(scales) & (scales > 0)]
    if not len(scales):
        return _unknown(
            "critical_batch", run_variant(contest.ground.called, "noise", {"diagnostics.noise_scale": True})
        )
    median, low, high, n = median_interval(scales)
    return _fact("critical_batch", median, low, high, n, f"{model}; median over trials of a useful accuracy")


def largest_batch_without_loss(contest: Candidates, model: str) -> Fact:
    """The best configuration of each global batch against the best of all: one-sided tests by the spread between
    seeds, corrected for their number (Holm 1979)."""
    ground, belief = contest.ground, contest.belief(ACCURACY)
    name = "largest_batch_without_loss"
    best = build_batch_curve(ground, np.asarray(read_text(ground.frame, "config.model.name") == model, dtype=np.bool_))
    if len(best.batches) < 2:
        return _unknown(name, run_more(ground.called, _more(contest)))
    if belief.is_assumed:
        return _unknown(name, confirm_more(ground.called, len(best.batches), 3))
    top = int(np.argmax(best.centres))
    others = np.arange(len(best.batches)) != top
    gaps, widths = best.centres[top] - best.centres, np.hypot(best.errors[top], best.errors)
    p_values = np.ones(len(gaps))
    p_values[others] = correct_holm(
        t_upper_tail(gaps[others] / np.maximum(widths[others], 1e-12), belief.spread.degrees)
    )
    largest = int(np.flatnonzero(p_values > SIGNIFICANT)[-1])
    loss = best.accuracies[top] - best.accuracies[largest]
    detail = f"{model}; the best accuracy of all batches"
    if largest != top:
        detail = f"{model}; the best accuracy was at {int(best.batches[top])}, {100 * loss:.2f} points above this one's"
    return _fact(name, float(best.batches[largest]), np.nan, np.nan, len(best.batches), detail)


def _of_model(trials: pd.DataFrame, model: str) -> pd.DataFrame:
    chosen = np.asarray(read_text(trials, "config.model.name") == model, dtype=np.bool_)
    return trials.loc[chosen, [name for name in _READ if name in trials.columns]]


def _probes_of(probes: pd.DataFrame, model: str, devices: set[str]) -> Mask:
    # a probe's shape is JSON
    models = [json.loads(shape or "{}").get("model.name", model) for shape in read_text(probes, "shape")]
    here = [not device or device in devices for device in read_text(probes, "device")]
    return np.array([name == model for name in models], dtype=np.bool_) & np.array(here, dtype=np.bool_)


def _micro(trials: pd.DataFrame) -> Values:
    # what batch.micro = "auto" chose last stands in the measured column
    chosen = read_numbers(trials, "config.batch.micro")
    return np.where(np.isfinite(chosen), chosen, read_numbers(trials, "micro_batch_size"))


def _more(contest: Candidates) -> int:
    spec = contest.ground.spec
    return 2 * (spec.trials if spec else max(10, len(contest.ground.trials)))


def _fact(name: str, value: float, low: float, high: float, n: int, detail: str) -> Fact:
    statement, unit = _STATEMENTS[name]
    return Fact(name, statement, value, low, high, unit, n, detail)


def _unknown(name: str, command: str) -> Fact:
    statement, unit = _STATEMENTS[name]
    return Fact(name, statement, np.nan, np.nan, np.nan, unit, 0, missing=command)
