"""The forecast of a study before it starts: trials, time with its interval, memory, how many will not fit.

The time of one trial is predicted from probes (:mod:`sweep.search.forecast.trial_cost`). That of a study is an
interval: which configurations an adaptive sampler proposes, which are confirmed and where a trial ends early is not
known beforehand.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sweep.config.trial_config import TrialConfig
from sweep.search.forecast.memory_gate import MemoryGate
from sweep.search.forecast.probe_selection import Find, Probe, probe_sample
from sweep.search.forecast.remaining_work import RemainingWork
from sweep.search.forecast.trial_cost import CostModel, TrialCost

_ESTIMATING_SECONDS = 10.0  # for estimates of memory, which take about half a second each
_LEVELS = (0.05, 0.5, 0.95)  # of a 90 % interval and its median
_NUM_DRAWS = 4000
# How far predictions may be off for all trials alike, as the standard deviation of the logarithm: by the speed of the
# machine and between the probed sizes; where another model was probed, by nearly a factor of two.
_SPREAD = 0.1
_GUESS_SPREAD = 0.6
_MIN_UNPRUNED = 0.4  # of the time of the search, where trials are pruned
_MIN_CONFIRMED = 0.5  # of the confirming trials: fewer candidates or seeds may do, but mostly do not
_MIN_TO_TARGET = 0.05  # of a training until a target accuracy, as a share of its cap
_SEED = 20_260_101

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Times are None where nothing could be probed, bytes where nothing could be predicted."""

    num_trials: int  # search trials still to be trained or reused
    num_reused: int  # of these, as far as is known
    num_confirm: int  # confirming trials, at most
    num_not_fitting: int  # proposals of the search that will not be launched
    expected_total_seconds: float | None
    expected_total_seconds_low: float | None
    expected_total_seconds_high: float | None
    peak_memory_bytes_low: int | None
    peak_memory_bytes_high: int | None
    memory_limit_bytes: int
    num_probes: int  # made for this forecast
    probing_seconds: float
    is_cut_by_timeout: bool = False

    def document(self) -> dict[str, Any]:
        """As ``sweep run --dry-run --json`` prints it."""
        return dict(vars(self))


def make_forecast(
    work: RemainingWork, cost_model: CostModel, find: Find, probe: Probe, memory_gate: MemoryGate
) -> Forecast:
    """Probes a few shapes of the sample for ``cost_model`` and predicts the rest of the study."""
    began = time.monotonic()
    trained = [config for index, config in enumerate(work.sample) if index not in work.reused]
    num_probes = probe_sample(trained, work, cost_model, find, probe)
    fits = _predict_fits(work.sample, memory_gate)
    probing_seconds = time.monotonic() - began
    predictions = [cost_model.predict_peak_memory_bytes(each) or memory_gate.predicted(each) for each in trained]
    peaks = [peak for peak in predictions if peak is not None]
    totals = _draw_study_seconds(work, cost_model, fits)
    low, median, high = (None, None, None) if totals is None else map(float, np.quantile(totals, _LEVELS))
    return Forecast(
        num_trials=work.num_trials,
        num_reused=_scale_to_study(len(work.reused), len(work.sample), work),
        num_confirm=work.num_confirm,
        # a refused proposal is not a trial, so another one is made in its place
        num_not_fitting=_scale_to_study(int((~fits).sum()), int(fits.sum()), work),
        expected_total_seconds=median,
        expected_total_seconds_low=low,
        expected_total_seconds_high=high,
        peak_memory_bytes_low=min(peaks, default=None),
        peak_memory_bytes_high=max(peaks, default=None),
        memory_limit_bytes=memory_gate.limit_bytes,
        num_probes=num_probes,
        probing_seconds=probing_seconds,
        is_cut_by_timeout=totals is not None and bool((totals >= work.limit_seconds).any()),
    )


def _predict_fits(sample: Sequence[TrialConfig], memory_gate: MemoryGate) -> Mask:
    # what there is no time to predict is taken to fit; the gate predicts it before it is launched
    until = time.monotonic() + _ESTIMATING_SECONDS
    fits = [memory_gate.check(config, may_predict=time.monotonic() < until) is None for config in sample]
    return np.array(fits, dtype=bool)


def _scale_to_study(count: int, num_sampled: int, work: RemainingWork) -> int:
    return count if work.is_exact else round(work.num_trials * count / max(num_sampled, 1))


def _draw_study_seconds(work: RemainingWork, cost_model: CostModel, fits: Mask) -> Floats | None:
    """Seconds of the whole study in each of many random cases, shape ``[draws]``; None where nothing is known.
    ``fits`` of each configuration of the sample, shape ``[sample]``."""
    trained = [int(index) for index in np.flatnonzero(fits) if index not in work.reused]
    costs = [cost for index in trained if (cost := cost_model.predict(work.sample[index])) is not None]
    if not costs:
        return np.zeros(1) if not trained else None
    rng = np.random.default_rng(_SEED)
    num_trials = round(work.num_trials * (len(trained) / max(int(fits.sum()), 1)))
    seconds = _trial_seconds(costs, work)
    if work.is_exact:
        search = np.full(_NUM_DRAWS, seconds.sum() * num_trials / max(len(seconds), 1))
    else:
        search = _draw_sums(seconds, num_trials, work, rng)
    confirming = [cost_model.predict(work.sample[index], reads_test=True) for index in trained]
    confirm = _draw_sums(_trial_seconds([cost for cost in confirming if cost], work), work.num_confirm, work, rng)
    share_guessed = sum(cost.is_guess for cost in costs) / len(costs)
    spread = _SPREAD + (_GUESS_SPREAD - _SPREAD) * share_guessed
    if work.is_pruned:
        search *= rng.uniform(_MIN_UNPRUNED, 1.0, _NUM_DRAWS)
    confirm *= _MIN_CONFIRMED + (1 - _MIN_CONFIRMED) * np.sqrt(rng.uniform(size=_NUM_DRAWS))
    totals = (search + confirm) * np.exp(rng.normal(0.0, spread, _NUM_DRAWS)) / work.slots
    if any(cost.is_cap for cost in costs):
        totals *= rng.uniform(_MIN_TO_TARGET, 1.0, _NUM_DRAWS)
    clipped: Floats = np.minimum(totals, work.limit_seconds)
    return clipped


def _trial_seconds(costs: Sequence[TrialCost], work: RemainingWork) -> Floats:
    return np.minimum([cost.seconds for cost in costs], work.trial_limit_seconds)


def _draw_sums(seconds: Floats, count: int, work: RemainingWork, rng: np.random.Generator) -> Floats:
    """Sums of the seconds of ``count`` trials that an adaptive sampler picks, shape ``[draws]``; ``seconds`` of each
    configuration of the sample, shape ``[sample]``.

    The sampler prefers fast or slow trials to an unknown degree t: the trial at rank u in [0, 1] of slowness has the
    weight exp(t u), with t uniform in [-2, 2], so that at the ends more than half of the trials are of the fastest, or
    of the slowest, third. Where speed is an objective, t is uniform in [-4, 2].
    """
    if count == 0 or len(seconds) == 0:
        return np.zeros(_NUM_DRAWS)
    ordered = np.sort(seconds)
    ranks = np.linspace(0.0, 1.0, len(ordered)) if len(ordered) > 1 else np.zeros(1)
    weights = np.exp(rng.uniform(-4.0 if work.favors_speed else -2.0, 2.0, _NUM_DRAWS)[:, None] * ranks)
    weights /= weights.sum(axis=1, keepdims=True)
    mean = weights @ ordered
    variance = np.maximum(weights @ ordered**2 - mean**2, 0.0)
    sums = count * mean + np.sqrt(count * variance) * rng.normal(size=_NUM_DRAWS)
    clipped: Floats = np.maximum(sums, count * ordered[0])
    return clipped
