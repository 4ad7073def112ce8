"""The training times that a sampler and a pruner learn, by the one estimator, from records instead of frames."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from sweep.analysis.costs import (
    FREE_KEYS,
    LEARNED_SCHEDULES,
    SWITCHES,
    ClockedTrials,
    estimate_times,
    list_references,
    predict_alone,
    scale_with_time,
)
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.records.probe_record import ProbeRecord
from sweep.records.quality_flags import LOADS_BESIDE, SLOWED_BY_OTHERS, find_time_doubts
from sweep.records.trial_record import TrialRecord


def estimate_record_times(
    records: Sequence[TrialRecord], spec: StudySpec, probes: Iterable[ProbeRecord]
) -> list[TrialRecord]:
    """``records`` of one study with the training times to use. A time that cannot be used for certain stays as
    measured, with its standard error in ``errors``."""
    rows = [row for row, each in enumerate(records) if each.outcome == "complete"]
    times = estimate_times(_clock([records[row] for row in rows], spec), list_references(probes))
    estimated = list(records)
    for row, seconds, error in zip(rows, times.seconds.tolist(), times.errors.tolist(), strict=True):
        record = records[row]
        measured = record.measurements.get("train_seconds")
        if error:
            speeds = {name: value for name, value in record.measurements.items() if METRICS[name].is_speed}
            errors = {name: error * float(value) for name, value in speeds.items()}
            estimated[row] = replace(record, errors=record.errors | errors)
        elif measured and seconds != measured:
            estimated[row] = replace(record, measurements=scale_with_time(record.measurements, seconds / measured))
    return estimated


def is_disturbed(record: TrialRecord) -> bool:
    """Whether the measured training time of ``record`` may not be the one to use."""
    return bool(find_time_doubts(record.quality_flags) or LOADS_BESIDE & set(record.quality_flags))


def requires_reference(record: TrialRecord) -> bool:
    """Whether a solo probe of its shape can change the training time to use of ``record``."""
    flags = set(record.quality_flags)
    doubts = find_time_doubts(flags)
    has_windows = doubts == {SLOWED_BY_OTHERS} and "slowdown_by_others" in record.measurements
    return bool(doubts and not has_windows) or bool(not doubts and LOADS_BESIDE & flags)


def has_reference(record: TrialRecord, probes: Iterable[ProbeRecord]) -> bool:
    """Whether one of ``probes`` states the training time of ``record`` alone on its device."""
    return bool(np.isfinite(predict_alone(_clock([record]), list_references(probes)))[0])


def _clock(records: Sequence[TrialRecord], spec: StudySpec | None = None) -> ClockedTrials:
    varies = any(
        each.values.get("budget.target_accuracy") is not None or each.values.get("batch.schedule") in LEARNED_SCHEDULES
        for each in records
    )
    # within a study only the keys of its space vary
    keys = [key for key in spec.space if varies or key not in FREE_KEYS] if spec else []
    switches = frozenset() if varies else SWITCHES
    costs = [tuple(bool(r.values[key]) if key in switches else r.values[key] for key in keys) for r in records]
    numbers: dict[tuple[object, ...], int] = {}
    names = ("train_seconds", "slowdown_by_others", "step_time_error", "num_steps", "images_per_second")
    columns = np.array([[each.measurements.get(name, np.nan) for name in names] for each in records], dtype=np.float64)
    seconds, slowdown, errors, num_steps, rates = columns.reshape(-1, len(names)).T
    return ClockedTrials(
        seconds=seconds,
        slowdown=slowdown,
        errors=errors,
        num_steps=num_steps,
        num_images=rates * seconds,
        groups=np.array([numbers.setdefault(cost, len(numbers)) for cost in costs], dtype=np.int64),
        devices=np.array([each.device for each in records], dtype=object),
        shapes=np.array([each.shape_digest for each in records], dtype=object),
        flags=np.array([",".join(each.quality_flags) for each in records], dtype=object),
        is_fixed=np.array([each.values.get("budget.seconds") is not None for each in records], dtype=np.bool_),
        varies=varies,
    )
