"""What the memory of a step is for: estimated for what a study has trained, once nothing trains any more, so that the
report can show it beside what was measured."""

import time
from collections.abc import Callable, Container, Sequence

from sweep.config.trial_config import TrialConfig
from sweep.probing.shape import Shape, shape_of
from sweep.records.trial_record import TrialRecord
from sweep.search.forecast.probe_selection import one_a_shape

_SHARE = 0.02  # of the time that the trials took
_MOST_SECONDS = 10.0
_USUAL_SECONDS = 0.5  # of one estimate
_MAX_SHAPES = 16


def estimate_trained(
    records: Sequence[TrialRecord], known: Container[Shape], estimate: Callable[[TrialConfig], object]
) -> None:
    """Calls ``estimate`` with a configuration of each shape that completed and is not ``known``, the most telling
    first, while that takes no more than a fiftieth of the time that training took."""
    # where the micro batch was found on the way, the shape is not that of the configuration
    ran = [item for item in records if item.outcome == "complete" and item.config.batch.micro != "auto"]
    until = time.monotonic() + _allowed_seconds(records)
    for config in one_a_shape([item.config for item in ran])[:_MAX_SHAPES]:
        if time.monotonic() + _USUAL_SECONDS > until:
            return
        if shape_of(config) not in known:
            estimate(config)


def _allowed_seconds(records: Sequence[TrialRecord]) -> float:
    spent = sum(float(item.measurements.get("total_seconds", 0.0)) for item in records if not item.reused_from)
    return min(_SHARE * spent, _MOST_SECONDS)
