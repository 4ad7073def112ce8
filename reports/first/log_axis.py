"""A logarithmic axis of a static picture: where a value lies, and its ticks."""

import math
from dataclasses import dataclass
from itertools import pairwise

from reports.first.label_places import Box

_MANTISSAS = ((1.0,), (1.0, 2.0, 5.0), (1.0, 2.0, 3.0, 5.0, 7.0), (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0))
_LINEAR_BELOW = 2.5  # ratio of the bounds, under which even steps read better
_LEAST_SPAN = 1.25  # ratio of the bounds of an axis: a single value is not shown to a thousandth of itself
_LEAST_ERROR = 1e-5  # of an accuracy of 100 %, which has no place on an error scale


@dataclass(frozen=True, kw_only=True)
class LogAxis:
    """Values from ``low`` to ``high``, both above 0, lie between the pixels ``start`` and ``end``."""

    low: float
    high: float
    start: float
    end: float

    def place(self, value: float) -> float:
        """The pixel of ``value``; of one outside the axis the nearer end."""
        inside = min(max(value, self.low), self.high)
        share = math.log(inside / self.low) / math.log(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, least_pixels: float) -> list[float]:
        """Round values on the axis, as many as keep ``least_pixels`` between neighbors, in ascending order."""
        steps = _even_steps(self.low, self.high)
        choices = [_round_values(self.low, self.high, each) for each in _MANTISSAS]
        choices = [*steps, *choices] if self.high < _LINEAR_BELOW * self.low else choices
        fitting = [each for each in choices if self._are_apart(each, least_pixels)]
        return max(fitting, key=len, default=[])

    def _are_apart(self, values: list[float], least_pixels: float) -> bool:
        places = [self.place(value) for value in values]
        return all(abs(after - before) >= least_pixels for before, after in pairwise(places))


def make_axis(values: list[float], start: float, end: float) -> LogAxis:
    """The axis that holds all of ``values``, which are above 0, with some room at both ends."""
    low, high = min(values), max(values)
    room = max((high / low) ** 0.05, 1.01, math.sqrt(_LEAST_SPAN * low / high))
    return LogAxis(low=low / room, high=high * room, start=start, end=end)


def error_of(accuracy: float) -> float:
    """1 - ``accuracy``, above 0."""
    return max(1.0 - accuracy, _LEAST_ERROR)


def make_error_axis(errors: list[float], area: Box) -> LogAxis:
    """The axis of accuracy: the logarithm of 1 - accuracy, the least error at the top; it ends at an accuracy of 0."""
    least, most = min(errors), max(errors)
    return LogAxis(low=least * 0.9, high=min(max(most * 1.12, least * 1.3), 1.0), start=area.top, end=area.bottom)


def _round_values(low: float, high: float, mantissas: tuple[float, ...]) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    values = [round(mantissa * 10.0**power, 12) for power in powers for mantissa in mantissas]
    return [value for value in values if low <= value <= high]


def _even_steps(low: float, high: float) -> list[list[float]]:
    base = 10.0 ** math.floor(math.log10((high - low) / 2))
    found = []
    for step in (base / 5, base / 2, base, 2 * base, 5 * base):
        first, last = math.ceil(low / step), math.floor(high / step)
        found.append([round(number * step, 12) for number in range(first, last + 1)])
    return found
