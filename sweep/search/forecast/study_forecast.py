"""The forecast of a study before it starts: trials, time with its interval, memory, how many will not fit.

The time of one trial is predicted from probes (:mod:`sweep.search.forecast.trial_cost`). That of a study is an
interval (:mod:`sweep.search.forecast.study_total`).
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
from sweep.search.forecast.study_costs import Floats, StudyCosts
from sweep.search.forecast.study_total import draw_study_seconds
from sweep.search.forecast.trial_cost import CostModel, TrialCost

_ESTIMATING_SECONDS = 10.0  # for estimates of memory, which take about half a second each
_LEVELS = (0.05, 0.5, 0.95)  # of a 90 % interval and its median

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Times are None where nothing could be probed, bytes where nothing could be predicted."""

    num_trials: int  # search trials still to be trained or reused
    num_reused: int  # of these, as far as is known
    num_confirm: int  # confirming trials at most, by their numbers or, roughly, by the time for them
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
    work: RemainingWork, cost_model: CostModel, find: Find, probe: Probe | None, memory_gate: MemoryGate
) -> Forecast:
    """Probes a few shapes of the sample for ``cost_model``, none without ``probe``; predicts the rest of the study."""
    began = time.monotonic()
    trained = [config for index, config in enumerate(work.sample) if index not in work.reused]
    num_probes = probe_sample(trained, work, cost_model, find, probe) if probe else 0
    fits = _predict_fits(work.sample, memory_gate)
    probing_seconds = time.monotonic() - began
    predictions = [cost_model.predict_peak_memory_bytes(each) or memory_gate.predicted(each) for each in trained]
    peaks = [peak for peak in predictions if peak is not None]
    costs = collect_costs(work, cost_model, fits)
    totals = None if costs is None else draw_study_seconds(costs)
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


def collect_costs(work: RemainingWork, cost_model: CostModel, fits: Mask) -> StudyCosts | None:
    """The costs of the trials to come; None where some are to come and nothing is known of any. ``fits`` of each
    configuration of the sample, shape ``[sample]``."""
    trained = [work.sample[int(index)] for index in np.flatnonzero(fits) if int(index) not in work.reused]
    costs = _predict_all(trained, cost_model, read_test=False)
    if trained and not costs:
        return None
    confirming = _predict_all(trained, cost_model, read_test=True)
    return StudyCosts(
        search_seconds=_trial_seconds(costs, work),
        confirm_seconds=_trial_seconds(confirming, work),
        num_trials=round(work.num_trials * len(trained) / max(int(fits.sum()), 1)),
        least_confirm=work.least_confirm,
        most_confirm=work.num_confirm,
        confirm_share=work.confirm_share,
        confirm_left_seconds=work.confirm_left_seconds,
        num_objectives=work.num_objectives,
        sampler=work.sampler,
        is_exact=work.is_exact,
        share_guessed=sum(cost.is_guess for cost in costs) / max(len(costs), 1),
        slots=work.slots,
        limit_seconds=work.limit_seconds,
        search_limit_seconds=work.search_limit_seconds,
        is_pruned=work.is_pruned,
        favors_speed=work.favors_speed,
        is_cap=any(cost.is_cap for cost in costs),
    )


def _predict_all(configs: Sequence[TrialConfig], cost_model: CostModel, *, read_test: bool) -> list[TrialCost]:
    costs = [cost_model.predict(config, read_test=read_test) for config in configs]
    return [cost for cost in costs if cost is not None]


def _trial_seconds(costs: Sequence[TrialCost], work: RemainingWork) -> Floats:
    return np.minimum(np.array([cost.seconds for cost in costs], dtype=np.float64), work.trial_limit_seconds)
