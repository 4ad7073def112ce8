"""Learning rate over the budget, as a factor of the peak."""

import math
from bisect import bisect_right
from typing import NamedTuple

from sweep.config.durations import Unit, parse_durations
from sweep.config.recipe_sections import ScheduleSection
from sweep.config.tables.entries import find_entry, resolve
from sweep.config.tables.recipes import SCHEDULES


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


def compute_lr_factor(section: ScheduleSection, step: float, span: Span) -> float:
    """The factor of step ``step`` (from 0) of ``span``: a linear rise to 1, then the named schedule.

    The rise begins above 0, so that no step is wasted. ``triangular`` rises until ``schedule.peak`` instead. ``wsd``
    stays at 1 until the last ``schedule.decay_share`` of the span, however long the rise is.

    Raises:
        InputError: for an unknown name.
    """
    entry = find_entry("schedule", section.name, SCHEDULES)
    num_warmup = _count_warmup_steps(section, span)
    drops = _milestone_factor(section, step, span) if entry.has_milestones else 1.0
    if step < num_warmup:
        return drops * min(1.0, (step + 1) / num_warmup)
    start = max(num_warmup, span.steps * (1.0 - section.decay_share)) if entry.is_stable_first else num_warmup
    share = (step - start) / max(span.steps - start, 1.0)
    factor: float = resolve(entry.factor)(min(max(share, 0.0), 1.0), section.final)
    return drops * factor


def _count_warmup_steps(section: ScheduleSection, span: Span) -> int:
    """The steps of ``span`` over which the rate rises; ``schedule.warmup_rule`` is not applied here."""
    if find_entry("schedule", section.name, SCHEDULES).has_peak:
        return span.to_steps(section.peak, "fraction")
    return span.to_steps(section.warmup, section.warmup_unit)


def _milestone_factor(section: ScheduleSection, step: float, span: Span) -> float:
    # gamma at each milestone of the whole budget, none of which comes before the first step
    values, unit = parse_durations(section.milestones)
    return section.gamma ** bisect_right([max(1, span.to_steps(value, unit)) for value in values], step)
