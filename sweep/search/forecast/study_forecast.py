"""What a study will cost, said before it starts: trials, time with its interval, memory, how many will not fit.

The time of one trial is predicted from probes (:mod:`sweep.search.forecast.trial_cost`). That of a study is not a
number but an interval: which configurations an adaptive sampler proposes, which are confirmed and where a trial ends
early is not known beforehand.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sweep.config.trial_config import TrialConfig
from sweep.search.forecast.memory_gate import MemoryGate
from sweep.search.forecast.probe_selection import Find, Probe, probe_some
from sweep.search.forecast.remaining_work import RemainingWork
from sweep.search.forecast.study_time import study_seconds
from sweep.search.forecast.trial_cost import CostModel

_ASKING_SECONDS = 10.0  # for estimates of memory, which take about half a second each
_LEVELS = (0.05, 0.5, 0.95)  # of a 90 % interval and its middle


@dataclass(frozen=True)
class Forecast:
    """Times are None where nothing could be probed, bytes where nothing could be predicted."""

    num_trials: int  # search trials still to be trained or taken from records
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


def make_forecast(outlook: RemainingWork, costs: CostModel, find: Find, probe: Probe, gate: MemoryGate) -> Forecast:
    """Looks at the sample, probes a few of its shapes into ``costs`` and says what is to be expected."""
    began = time.monotonic()
    wanted = [config for index, config in enumerate(outlook.sample) if index not in outlook.reused]
    num_probes = probe_some(wanted, outlook, costs, find, probe)
    fits = _fits(outlook.sample, gate)
    probing_seconds = time.monotonic() - began
    peaks = _peaks(wanted, costs, gate)
    totals = study_seconds(outlook, costs, fits)
    low, middle, high = (None, None, None) if totals is None else map(float, np.quantile(totals, _LEVELS))
    return Forecast(
        num_trials=outlook.num_trials,
        num_reused=_scaled(len(outlook.reused), outlook),
        num_confirm=outlook.num_confirm,
        num_not_fitting=_num_refused(fits, outlook),
        expected_total_seconds=middle,
        expected_total_seconds_low=low,
        expected_total_seconds_high=high,
        peak_memory_bytes_low=min(peaks, default=None),
        peak_memory_bytes_high=max(peaks, default=None),
        memory_limit_bytes=gate.limit_bytes,
        num_probes=num_probes,
        probing_seconds=probing_seconds,
        is_cut_by_timeout=totals is not None and bool((totals >= outlook.limit_seconds).any()),
    )


def _fits(sample: Sequence[TrialConfig], gate: MemoryGate) -> npt.NDArray[np.bool_]:
    # what there is no time to ask for is taken to fit; the gate asks before it is launched
    until = time.monotonic() + _ASKING_SECONDS
    fits = [gate.check(config, may_ask=time.monotonic() < until) is None for config in sample]
    return np.array(fits, dtype=bool)


def _scaled(count: int, outlook: RemainingWork) -> int:
    return count if outlook.is_exact else round(outlook.num_trials * count / max(len(outlook.sample), 1))


def _num_refused(fits: npt.NDArray[np.bool_], outlook: RemainingWork) -> int:
    # a refused proposal is no trial, so another is made in its place
    refused = int((~fits).sum())
    if outlook.is_exact or not refused:
        return refused
    return round(outlook.num_trials * refused / max(int(fits.sum()), 1))


def _peaks(sample: Sequence[TrialConfig], costs: CostModel, gate: MemoryGate) -> list[int]:
    known = [costs.predict_peak_memory_bytes(config) or gate.predicted(config) for config in sample]
    return [peak for peak in known if peak is not None]
