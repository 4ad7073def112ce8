"""Further results: what fits, where throughput saturates, how noisy the gradient is."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from sweep.analysis.answer.answer import Fact
from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.comparable_trials import ACCURACY, find_main_recipe
from sweep.analysis.costs import find_longest_curve, parse_shapes
from sweep.analysis.noise_scales import read_noise_scales
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.intervals import Interval
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.config.units import format_count

_DID_NOT_FIT = ("out_of_memory", "not_fitting")
_READ = (
    "outcome", "config.model.name", "config.model.norm", "config.precision.dtype", "config.optimizer.name",
    "config.batch.micro", "micro_batch_size", "images_per_second",
)  # fmt: skip
_NOT_CRITICAL = (
    "it is not the critical batch, which follows from steps to a target, but was of its order in McCandlish et al. 2018"
)
# The value of a fact with what it holds for, or the command that would add what is missing.
_Measured = tuple[Interval, str] | str


def measure_facts(candidates: Candidates, model: str) -> dict[str, Fact]:
    """Every fact about the model ``model`` by its name; NaN and a command where the records do not suffice."""
    return {name: _fact(name, measure(candidates, model)) for name, (measure, _, _) in _FACTS.items()}


def unknown_facts(missing: str | None) -> dict[str, Fact]:
    """The facts of a study without a usable trial, which the command ``missing`` would add, where there is one."""
    return {name: _fact(name, missing or "") for name in _FACTS}


def _largest_micro_batch(candidates: Candidates, model: str) -> _Measured:
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
        return records.commands.probe_shapes()
    beyond = failed[failed > ran.max()]
    detail = f"{model}; {int(beyond.min())} did not fit" if len(beyond) else f"{model}; nothing larger was tried"
    return _value(ran.max(), int(np.sum(ran == ran.max()))), detail


def _throughput_knee(candidates: Candidates, model: str) -> _Measured:
    # by the median throughput at each micro batch
    trials = _of_model(candidates.records.done, model)
    curve = find_longest_curve(trials, _micro_batches(trials), read_numbers(trials, "images_per_second"))
    if curve is None or len(curve.sizes) < 2:
        return candidates.records.command_for_more
    detail = f"{curve.name}; the best throughput was at {int(curve.sizes[np.argmax(curve.rates)])}"
    if curve.knee == len(curve.sizes) - 1:
        detail += ", the largest that ran, so the knee may be larger"
    if curve.num_others:
        others = format_count(curve.num_others, "other combination")
        detail += f"; {others} of normalization, precision and optimizer left out"
    return _value(curve.sizes[curve.knee], curve.num_trials), detail


def _noise_scale(candidates: Candidates, model: str) -> _Measured:
    # B_simple is an average over each training; configurations differ, so that their median has no interval
    records = candidates.records
    frame, scales = records.frame, read_noise_scales(records)
    useful = records.grouping.medians(read_numbers(records.done, ACCURACY))[0] >= candidates.floor
    is_of_model = np.asarray(read_text(frame, "config.model.name") == model, dtype=np.bool_)
    chosen, recipe = find_main_recipe(frame, is_of_model & useful & (scales.values > 0))
    if not chosen.any():
        return records.commands.run_variant("noise", {"diagnostics.noise_scale": True})
    known, missing = scales.values[chosen], scales.describe_missing(is_of_model & useful)
    detail = f"{recipe}: median over {format_count(len(known), 'configuration')} of a useful accuracy"
    detail += f", {known.min():,.0f} to {known.max():,.0f}" if len(known) > 1 else ""
    detail += f"; {missing}" if missing else ""
    return _value(float(np.median(known)), len(known)), f"{detail}; {_NOT_CRITICAL}"


def _of_model(trials: pd.DataFrame, model: str) -> pd.DataFrame:
    chosen = np.asarray(read_text(trials, "config.model.name") == model, dtype=np.bool_)
    return trials.loc[chosen, [name for name in _READ if name in trials.columns]]


def _probes_of(probes: pd.DataFrame, model: str, devices: set[str]) -> Mask:
    is_of_model = [shape.get("model.name", model) == model for shape in parse_shapes(probes)]
    is_here = [not device or device in devices for device in read_text(probes, "device")]
    return np.array(is_of_model, dtype=np.bool_) & np.array(is_here, dtype=np.bool_)


def _micro_batches(trials: pd.DataFrame) -> Values:
    # the measured column holds what batch.micro = "auto" chose last
    chosen = read_numbers(trials, "config.batch.micro")
    return np.where(np.isfinite(chosen), chosen, read_numbers(trials, "micro_batch_size"))


def _value(value: float, n: int) -> Interval:
    return Interval(float(value), np.nan, np.nan, n)


def _fact(name: str, found: _Measured) -> Fact:
    missing = found or None if isinstance(found, str) else None
    (value, low, high, n), detail = (_value(np.nan, 0), "") if isinstance(found, str) else found
    _, statement, unit = _FACTS[name]
    return Fact(
        name=name, statement=statement, value=value, low=low, high=high, unit=unit, n=n, detail=detail, missing=missing
    )


# How each fact is measured, its statement and unit.
_FACTS: dict[str, tuple[Callable[[Candidates, str], _Measured], str, str]] = {
    "largest_micro_batch": (_largest_micro_batch, "Largest micro batch that ran", "samples"),
    "throughput_knee": (
        _throughput_knee, "Throughput knee: the smallest micro batch within 5 % of the best throughput", "samples"
    ),
    "noise_scale": (
        _noise_scale,
        "Gradient noise scale B_simple = tr(S) / |G|^2: variance of the gradient over its squared norm, both averaged "
        "over the training",
        "samples",
    ),
}  # fmt: skip
