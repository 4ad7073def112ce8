"""What of a study is still to be done: a sample of the configurations, and how many trials there will be."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweep.config.metrics import METRICS
from sweep.config.space import grid_size
from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.records.messages import NOT_COUNTED
from sweep.records.trial_record import TrialRecord
from sweep.search.samplers.table import make_sampler
from sweep.search.seed_allocation.confirmation import confirmations

_SAMPLE = 128  # points that stand for those an adaptive sampler will propose
_MAX_EXACT = 512
_FIXED_SEQUENCES = frozenset({"qmc", "random", "grid"})


@dataclass(frozen=True)
class PlannedTrials:
    """What of a study is still to be done, and what of that is known to need no training."""

    records: Sequence[TrialRecord] = ()
    is_known: Callable[[TrialConfig], bool] = lambda _config: False
    limit_seconds: float = math.inf


@dataclass(frozen=True)
class RemainingWork:
    """What is to be forecast: a sample of the search's configurations, and how many trials will be drawn from it.

    ``is_exact``: the sample is the very list of proposals. ``reused``: of the sample, what needs no training.
    ``pays_for_speed``: a quicker trial is a better one.
    """

    sample: Sequence[TrialConfig]
    num_trials: int
    num_confirm: int
    is_exact: bool
    reused: frozenset[int] = frozenset()  # positions in the sample
    slots: int = 1
    limit_seconds: float = float("inf")
    trial_limit_seconds: float = float("inf")
    is_pruned: bool = False
    pays_for_speed: bool = False


def outlook_of(spec: StudySpec, ahead: PlannedTrials, slots: int) -> RemainingWork:
    """The rest of ``spec``, of which ``ahead`` is known, on ``slots`` devices at once."""
    # an open trial is still to be trained; those are the latest, so that they head the sample
    searched = [record for record in ahead.records if record.phase == "search" and record.outcome is not None]
    num_trials = max(spec.trials - sum(record.outcome not in NOT_COUNTED for record in searched), 0)
    first = sum(record.outcome != "cancelled" for record in searched)
    size = grid_size(spec.space)
    if size is not None:
        num_trials = min(num_trials, max(size - first, 0))
    num_confirm = _num_confirm(spec, ahead.records, num_trials)
    sample, is_exact = _sample(spec, first, num_trials) if num_trials + num_confirm else ([], True)
    reused = frozenset(index for index, config in enumerate(sample) if is_exact and ahead.is_known(config))
    return RemainingWork(
        sample,
        num_trials,
        num_confirm,
        is_exact,
        reused,
        slots,
        ahead.limit_seconds,
        spec.trial_timeout or math.inf,
        spec.pruner != "none",
        any(METRICS[name].unit in ("seconds", "images/second") for name in spec.objectives),
    )


def _num_confirm(spec: StudySpec, records: Sequence[TrialRecord], num_trials: int) -> int:
    """Confirming trials that are still to be done: at most so many while the front is not known, then just these."""
    if num_trials == 0:
        return len(confirmations(list(records), spec))
    done = sum(record.phase == "confirm" and record.outcome != "cancelled" for record in records)
    return max(spec.confirm.max_configurations * spec.confirm.seeds - done, 0)


def _sample(spec: StudySpec, first: int, count: int) -> tuple[list[TrialConfig], bool]:
    """The next proposals where they are known; Sobol points in the place of those that an adaptive sampler makes."""
    is_exact = spec.sampler in _FIXED_SEQUENCES and 0 < count <= _MAX_EXACT
    sequence = spec if is_exact else spec.model_copy(update={"sampler": "qmc"})
    sampler, start = make_sampler(sequence, []), first if is_exact else 0
    points = (sampler.propose(start + index) for index in range(count if is_exact else _SAMPLE))
    return [spec.config(values) for values in points if values is not None], is_exact
