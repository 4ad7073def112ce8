"""The training times of ended trials against those of solo probes of their shapes.

Here it is decided, once, what the recorded time of a trial is: as measured, or where that is no evidence, that of its
undisturbed steps or of solo probes.
"""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import final

from sweep.config.data_sections import BudgetSection
from sweep.config.metrics import list_following
from sweep.config.trial_config import TrialConfig
from sweep.probing.shape import Shape, derive_shape, find_largest_accumulation
from sweep.records.messages import Ending
from sweep.records.probe_record import ProbeRecord
from sweep.records.quality_flags import (
    BATCH_CHANGED,
    FEW_STEPS,
    LOADS_BESIDE,
    MAX_SLOWDOWN,
    PACKED,
    PROBED_TIME,
    SIGNS_OF_DISTURBANCE,
    SLOWER_THAN_ALONE,
    UNDISTURBED_TIME,
    is_time_evidence,
)
from sweep.search.forecast.prober import Prober
from sweep.search.forecast.trial_cost import CostModel
from sweep.search.forecast.undisturbed_time import is_replaceable, replace_time, take_undisturbed_time

_TIMED_SECONDS = 1.5  # several readings of a monitor
_MAX_TRIES = 2  # probes of one shape
_MAX_SHARE = 0.1  # of the time of the trials that is spent on probes
_USUAL_SECONDS = 2.0  # of a probe
_MIN_RATIOS = 3
_MOST_PROBED = 2  # micro batches in a probe's step


@final
class SoloTimes:
    """Replaces times that are no evidence by those of the trial's undisturbed steps or of the probes of ``prober``.

    Only trials that another load ran beside are compared with probes. With ``can_probe`` a shape without a probe whose
    time is evidence is then probed; these probes take a tenth of the time of the trials at most. A short probe is often
    faster than a training: the usual ratio of the two, over the undisturbed trials so far, is applied.
    """

    def __init__(self, prober: Prober, device_class: str, *, can_probe: bool) -> None:
        self._prober, self._device_class, self._can_probe = prober, device_class, can_probe
        self._model = CostModel(filter(_is_alone, prober.list_valid()))
        self._num_tries: Counter[Shape] = Counter()
        self._trial_seconds, self._probe_seconds = 0.0, 0.0
        self._ratios: list[float] = []  # of undisturbed trials, measured seconds to those of probes

    def judge(self, config: TrialConfig, ending: Ending, *, is_idle: bool) -> Ending:
        """The ending of a trial of ``config`` with the time that is recorded. ``is_idle``: no trial is running, so that
        a probe would run alone and would disturb none."""
        self._trial_seconds += float(ending.measurements.get("total_seconds", 0.0))
        ending = take_undisturbed_time(config, ending)
        if UNDISTURBED_TIME in ending.quality_flags or not self._is_comparable(config, ending):
            return ending
        if LOADS_BESIDE.isdisjoint(ending.quality_flags):  # then a probe is no better than the measured time
            self._note_ratio(config, ending)
            return ending
        probe = self._find_probe(config, ending)
        if probe is None and is_idle and self._may_probe(config):
            self._make_probe(config)
            probe = self._find_probe(config, ending)
        if probe is None:
            return ending
        return compare_with_probe(config, ending, probe, self._predict_seconds(config, ending))

    def _is_comparable(self, config: TrialConfig, ending: Ending) -> bool:
        # a probe is of one rank and of one size of steps
        is_one_shape = config.batch.schedule == "constant" and not config.batch.is_auto
        return (
            ending.outcome == "complete"
            and ending.device == self._device_class
            and config.distributed.world_size == 1
            and is_one_shape
            and {PACKED, BATCH_CHANGED}.isdisjoint(ending.quality_flags)
            and "train_seconds" in ending.measurements
            and ending.measurements.get("num_steps", 0) > 0
        )

    def _note_ratio(self, config: TrialConfig, ending: Ending) -> None:
        probe = self._prober.find(config)
        if probe is not None and _is_alone(probe) and is_time_evidence(ending.quality_flags):
            self._ratios.append(ending.measurements["train_seconds"] / self._predict_probed(config, ending))

    def _find_probe(self, config: TrialConfig, ending: Ending) -> ProbeRecord | None:
        probe = self._prober.find(config)
        if probe is None or not _is_alone(probe):
            return None
        # a trial is not faster than alone: that probe was disturbed throughout
        is_slow = self._predict_seconds(config, ending) > (1 + MAX_SLOWDOWN) * ending.measurements["train_seconds"]
        return None if is_slow else probe

    def _predict_seconds(self, config: TrialConfig, ending: Ending) -> float:
        usual = median(self._ratios) if len(self._ratios) >= _MIN_RATIOS else 1.0
        return usual * self._predict_probed(config, ending)

    def _predict_probed(self, config: TrialConfig, ending: Ending) -> float:
        # by steps, because a folder may have had another number of images when its shape was probed
        budget = BudgetSection(steps=int(ending.measurements["num_steps"]))
        cost = self._model.predict(config.model_copy(update={"budget": budget}))
        assert cost is not None, "there is a probe of the shape"
        return cost.train_seconds

    def _may_probe(self, config: TrialConfig) -> bool:
        is_affordable = self._probe_seconds + _USUAL_SECONDS <= _MAX_SHARE * self._trial_seconds
        return self._can_probe and is_affordable and self._num_tries[derive_shape(config)] < _MAX_TRIES

    def _make_probe(self, config: TrialConfig) -> None:
        self._num_tries[derive_shape(config)] += 1
        began = time.monotonic()
        probe = self._prober.probe(config, _TIMED_SECONDS)
        self._probe_seconds += time.monotonic() - began
        if _is_alone(probe):
            self._model.add(probe)


def _is_alone(probe: ProbeRecord) -> bool:
    # a steady load beside a probe leaves its time certain, and too long
    return probe.is_time_evidence and SIGNS_OF_DISTURBANCE.isdisjoint(probe.quality_flags)


def compare_with_probe(config: TrialConfig, ending: Ending, probe: ProbeRecord, seconds: float) -> Ending:
    """``ending`` with ``slower_than_alone`` where it trained for clearly longer than ``seconds``, those by solo probes,
    and with them in place of a measured time that is no evidence."""
    measured, flags = ending.measurements, ending.quality_flags
    is_slower = measured["train_seconds"] > (1 + MAX_SLOWDOWN) * seconds
    if is_slower and FEW_STEPS not in flags:  # so few steps have no mean
        flags = (*flags, SLOWER_THAN_ALONE)
    ending = replace(ending, quality_flags=flags)
    if is_time_evidence(flags) or not is_replaceable(config, ending):
        return ending
    return replace_time(ending, seconds, _replace_steps(config, measured, probe, seconds), PROBED_TIME)


def _replace_steps(
    config: TrialConfig, measured: Mapping[str, float | int], probe: ProbeRecord, seconds: float
) -> dict[str, float | int]:
    step = seconds / measured["num_steps"]
    is_probed = find_largest_accumulation(config) <= _MOST_PROBED
    scale = 1.0 if is_probed else step / (probe.step_seconds_mean or step)
    found = {name: getattr(probe, name) for name in list_following("probe")}
    values: dict[str, float | int] = {name: scale * value for name, value in found.items() if value is not None}
    if probe.step_time_error is not None:
        values["step_time_error"] = probe.step_time_error
    return values
