"""Learning rate over the budget, as a factor of the peak."""

import math
from bisect import bisect_right
from collections.abc import Callable
from typing import NamedTuple

from sweep.config.durations import Unit, parse_durations
from sweep.config.errors import InputError, unknown_name
from sweep.config.sections import ScheduleSection


class Span(NamedTuple):
    """How long a training is in each unit of a duration; ``steps`` may be nominal, then the others are too."""

    steps: int
    steps_per_epoch: float
    samples_per_epoch: int

    def to_steps(self, value: float, unit: Unit) -> int:
        """A duration in whole steps."""
        steps_per_unit = {
            "fraction": float(self.steps),
            "steps": 1.0,
            "epochs": self.steps_per_epoch,
            "samples": self.steps_per_epoch / self.samples_per_epoch,
        }
        return round(value * steps_per_unit[unit])


SCHEDULES: dict[str, Callable[[float, float], float]] = {
    # the factor at the share of the budget after the warm-up, in [0, 1), for the factor at the end
    "constant": lambda _share, _final: 1.0,
    "cosine": lambda share, final: final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * share)),
    "linear": lambda share, final: 1.0 - (1.0 - final) * share,
    # its way up is the warm-up
    "triangular": lambda share, final: 1.0 - (1.0 - final) * share,
    # its falls are at milestones of the whole budget, see _falls
    "step": lambda _share, _final: 1.0,
}


def lr_factor(section: ScheduleSection, step: float, span: Span) -> float:
    """The factor of step ``step`` (from 0) of ``span``: a linear rise to 1, then the named schedule.

    The rise begins above 0, so that no step is wasted. ``triangular`` rises until ``schedule.peak`` instead.

    Raises:
        InputError: for an unknown name.
    """
    if section.name not in SCHEDULES:
        raise InputError(unknown_name("schedule", section.name, SCHEDULES))
    warmup_steps = _warmup_steps(section, span)
    falls = _falls(section, step, span)
    if step < warmup_steps:
        return falls * min(1.0, (step + 1) / warmup_steps)
    share = (step - warmup_steps) / max(span.steps - warmup_steps, 1)
    return falls * SCHEDULES[section.name](min(share, 1.0), section.final)


def _warmup_steps(section: ScheduleSection, span: Span) -> int:
    if section.name == "triangular":
        return span.to_steps(section.peak, "fraction")
    return span.to_steps(section.warmup, section.warmup_unit)


def _falls(section: ScheduleSection, step: float, span: Span) -> float:
    # by gamma at each milestone, none of which comes before the first step
    if section.name != "step":
        return 1.0
    values, unit = parse_durations(section.milestones)
    return section.gamma ** bisect_right([max(1, span.to_steps(value, unit)) for value in values], step)
