"""What of a study is still to be done: a sample of the configurations, and how many trials there will be."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sweep.config.metrics import METRICS
from sweep.config.space import count_grid_points
from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.records.messages import NOT_COUNTED
from sweep.records.trial_record import TrialRecord
from sweep.search.forecast.confirm_total import count_expected, count_planned
from sweep.search.samplers.table import make_sampler
from sweep.search.seed_allocation.confirmation import measure_seconds_left

_NUM_SAMPLED = 128  # points that represent those of an adaptive sampler
_MAX_EXACT = 512
_FIXED_SEQUENCES = frozenset({"qmc", "random", "grid"})


@dataclass(frozen=True)
class PlannedTrials:
    """The trials on record, which other configurations need no training, and the time limit of the rest."""

    records: Sequence[TrialRecord] = ()
    is_reusable: Callable[[TrialConfig], bool] = lambda _config: False
    limit_seconds: float = math.inf


@dataclass(frozen=True, kw_only=True)
class RemainingWork:
    """What is to be forecast: a sample of the search's configurations, and how many trials will be drawn from it."""

    sample: Sequence[TrialConfig]
    num_trials: int
    num_confirm: int  # at most
    least_confirm: int = 0
    confirm_share: float = 0.0  # of the seconds of the search
    confirm_left_seconds: float = 0.0  # of the share of the search trials on record
    is_exact: bool  # the sample is the very list of proposals
    reused: frozenset[int] = frozenset()  # positions in the sample of what needs no training
    slots: int = 1
    limit_seconds: float = math.inf
    search_limit_seconds: float = math.inf
    trial_limit_seconds: float = math.inf
    is_pruned: bool = False
    favors_speed: bool = False  # speed is an objective
    sampler: str = ""
    num_objectives: int = 3


def estimate_remaining_work(spec: StudySpec, planned: PlannedTrials, slots: int) -> RemainingWork:
    """The rest of ``spec`` on so many ``slots``."""
    # an open trial is still to be trained; open trials are the latest, so they are the first of the sample
    searched = [record for record in planned.records if record.phase == "search" and record.outcome is not None]
    num_trials = max(spec.trials - sum(record.outcome not in NOT_COUNTED for record in searched), 0)
    size = count_grid_points(spec.space)
    if size is not None:
        num_trials = min(num_trials, max(size - len(searched), 0))
    least_confirm, num_confirm = _count_confirm(spec, planned.records, num_trials)
    sample, is_exact = _draw_sample(spec, len(searched), num_trials) if num_trials + num_confirm else ([], True)
    reused = frozenset(index for index, config in enumerate(sample) if is_exact and planned.is_reusable(config))
    return RemainingWork(
        sample=sample,
        num_trials=num_trials,
        num_confirm=num_confirm,
        least_confirm=least_confirm,
        confirm_share=spec.confirm.share,
        confirm_left_seconds=measure_seconds_left(planned.records, spec),
        is_exact=is_exact,
        reused=reused,
        slots=slots,
        limit_seconds=planned.limit_seconds,
        search_limit_seconds=spec.search_timeout or math.inf,
        trial_limit_seconds=spec.trial_timeout or math.inf,
        is_pruned=spec.pruner != "none",
        sampler=spec.sampler,
        num_objectives=len(spec.objectives),
        favors_speed=any(METRICS[name].is_speed for name in spec.objectives),
    )


def _count_confirm(spec: StudySpec, records: Sequence[TrialRecord], num_trials: int) -> tuple[int, int]:
    """The confirming trials still to be done, the fewest and the most: by their numbers, and by the time for them where
    a search trial takes as long as a confirming one."""
    num_done = sum(record.phase == "confirm" and record.outcome is not None for record in records)
    least, _ = count_planned(spec)
    most = count_expected(spec, num_trials + sum(record.phase == "search" for record in records))
    if num_trials == 0 and measure_seconds_left(records, spec) <= 0:
        most = max(num_done, least)  # one configuration gets the fewest seeds however short the time is
    return max(least - num_done, 0), max(most - num_done, 0)


def _draw_sample(spec: StudySpec, first: int, count: int) -> tuple[list[TrialConfig], bool]:
    """The next proposals where they are known; Sobol points instead of those of an adaptive sampler."""
    is_exact = spec.sampler in _FIXED_SEQUENCES and 0 < count <= _MAX_EXACT
    sequence = spec if is_exact else spec.model_copy(update={"sampler": "qmc"})
    sampler, start = make_sampler(sequence, []), first if is_exact else 0
    points = (sampler.propose(start + index) for index in range(count if is_exact else _NUM_SAMPLED))
    return [spec.config(values) for values in points if values is not None], is_exact
