"""Learning rate over the budget, as a factor of the peak."""

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple, final

from sweep.config.sections import ScheduleSection, Unit, parse_durations
from sweep.config.tables import SCHEDULES, find_entry, resolve


class Span(NamedTuple):
    """How long a training is in each unit of a duration; ``steps`` may be nominal, then the others are too."""

    steps: int
    steps_per_epoch: float
    samples_per_epoch: int

    def to_steps(self, value: float, unit: Unit) -> int:
        steps_per_unit = {
            "fraction": float(self.steps),
            "steps": 1.0,
            "epochs": self.steps_per_epoch,
            "samples": self.steps_per_epoch / self.samples_per_epoch,
        }
        return round(value * steps_per_unit[unit])


# Each: the factor of the highest rate at a share in [0, 1) of the budget after the warm-up (of wsd: of its decay), for
# the factor at the end.
def constant(_share: float, _final: float) -> float:
    return 1.0


def cosine(share: float, final: float) -> float:
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * share))


def linear(share: float, final: float) -> float:
    return 1.0 - (1.0 - final) * share


def root(share: float, final: float) -> float:
    """The decay "1 - sqrt" of Hägele et al. 2024 (arXiv:2405.18392), section 3."""
    return 1.0 - (1.0 - final) * math.sqrt(share)


@final
class RateSchedule:
    """The factor of the peak at each step of ``span``: a linear rise to 1, then the schedule that ``section`` names.

    The rise begins above 0, so that no step is wasted. ``triangular`` rises until ``schedule.peak`` instead. ``wsd``
    stays at 1 until the last ``schedule.decay_share`` of the span, however long the rise is. The milestones are of the
    whole budget, and none comes before the first step. ``rules.warmup`` is not applied here.
    """

    def __init__(self, section: ScheduleSection, span: Span) -> None:
        entry = find_entry("schedule", section.name, SCHEDULES)
        self.num_warmup_steps = span.to_steps(section.warmup, section.warmup_unit)
        if entry.has_peak:
            self.num_warmup_steps = span.to_steps(section.peak, "fraction")
        begin = float(self.num_warmup_steps)
        if entry.is_stable_first:
            begin = max(begin, span.steps * (1.0 - section.decay_share))
        self._begin, self._length = begin, max(span.steps - begin, 1.0)
        self._shape: Callable[[float, float], float] = resolve(entry.factor)
        self._final, self._gamma = section.final, section.gamma
        self._milestones: list[int] = []
        if entry.has_milestones:
            values, unit = parse_durations(section.milestones)
            self._milestones = [max(1, span.to_steps(value, unit)) for value in values]

    def factor(self, step: float) -> float:
        drops = self._gamma ** bisect_right(self._milestones, step)
        if step < self.num_warmup_steps:
            return drops * min(1.0, (step + 1) / self.num_warmup_steps)
        share = (step - self._begin) / self._length
        return drops * self._shape(min(max(share, 0.0), 1.0), self._final)
