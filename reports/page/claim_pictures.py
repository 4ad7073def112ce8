"""A row of the forest plot of the claims: the measured effect with its interval, over the range that the claim
states."""

import math
from dataclasses import dataclass

from markupsafe import Markup

from reports.first.svg_elements import element, join, line, write
from reports.labels import describe_range, format_bound, is_too_uncertain
from sweep.analysis.findings import UNSETTLED, Finding
from sweep.config.units import find_unit

WIDTH, HEIGHT = 230.0, 38.0
_EDGE = 12.0  # pixels at both ends, beyond which an arrow marks an interval that is longer
_MIDDLE, _BAND = 13.0, 10.0  # of the row, and half the height of the claimed range
_LETTER = 6.0  # pixels
# How far the axis may go beyond the claimed range, the neutral value and the effect, in multiples of their span.
_ROOM, _ROOM_UNCERTAIN = 3.0, 0.75


@dataclass(frozen=True, kw_only=True)
class ClaimAxis:
    """Values from ``low`` to ``high`` of an effect; for ratios and numbers of samples their logarithms."""

    low: float
    high: float
    is_log: bool

    def transform(self, value: float) -> float:
        """``value`` on the scale of the axis."""
        return _transform(value, is_log=self.is_log)

    def place(self, value: float) -> float:
        """The pixel of ``value``; of one outside the axis the nearer end."""
        inside = min(max(self.transform(value), self.low), self.high)
        return _EDGE + (inside - self.low) / (self.high - self.low) * (WIDTH - 2 * _EDGE)

    def is_beyond(self, value: float) -> bool:
        """Whether ``value`` lies outside the axis."""
        room = 1e-9 * (self.high - self.low)
        return not self.low - room <= self.transform(value) <= self.high + room


def draw_claim(found: Finding, text: str) -> Markup:
    """The row of a tested claim; ``text`` is the measured effect in words."""
    axis, is_stated = make_claim_axis(found), is_effect_stated(found)
    parts = [_draw_claimed(found, axis), *_draw_numbers(found, axis), *_draw_interval(found, axis)]
    if is_stated:
        kind = "open-dot" if found.verdict in UNSETTLED else "dot"
        parts.append(element("circle", cx=axis.place(found.effect), cy=_MIDDLE, r=4.5, class_=kind))
    name = f"Claimed: {describe_range(found.unit, *found.claimed)}. Measured: {text}. {found.verdict.capitalize()}."
    return element(
        "svg", join([element("title", name), *parts]), viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        class_=f"claim-picture {found.verdict}", role="img", aria_label=name, font_size=10,
    )  # fmt: skip


def is_effect_stated(found: Finding) -> bool:
    """Whether the effect of a tested claim is known well enough to print it."""
    return math.isfinite(found.effect) and not is_too_uncertain(found.unit, found.low, found.high)


def make_claim_axis(found: Finding) -> ClaimAxis:
    """The axis holds the claimed range, the neutral value and the effect, and of the interval what is not too wide for
    the distance between the ends of the range and the neutral value."""
    is_log, is_stated = find_unit(found.unit).scale == "log", is_effect_stated(found)
    own = [_transform(value, is_log=is_log) for value in (*found.claimed, *_neutral(found.unit))]
    own = [at for at in own if math.isfinite(at)]
    span = max(own, default=0.0) - min(own, default=0.0)
    if not is_stated:
        room = _ROOM_UNCERTAIN * (span or 1.0)
        return ClaimAxis(low=min(own, default=0.0) - room, high=max(own, default=0.0) + room, is_log=is_log)
    effect, low, high = (_transform(value, is_log=is_log) for value in (found.effect, found.low, found.high))
    first, last = min(*own, effect), max(*own, effect)
    room = _ROOM * span or math.inf
    start, end = min(first, max(low, first - room)), max(last, min(high, last + room))
    return ClaimAxis(low=start, high=end, is_log=is_log) if end > start else _widen(start, is_log=is_log)


def _widen(middle: float, *, is_log: bool) -> ClaimAxis:
    return ClaimAxis(low=middle - 1.0, high=middle + 1.0, is_log=is_log)


def _transform(value: float, *, is_log: bool) -> float:
    if not is_log:
        return value
    return math.log(value) if value > 0 else -math.inf


def _neutral(unit: str) -> tuple[float, ...]:
    # the effect that is none; a number of samples has none
    if unit == "ratio":
        return (1.0,)
    return () if find_unit(unit).scale == "log" else (0.0,)


def _draw_claimed(found: Finding, axis: ClaimAxis) -> Markup:
    low, high = found.claimed
    left = axis.place(low) if math.isfinite(axis.transform(low)) else 0.0
    right = axis.place(high) if math.isfinite(high) else WIDTH
    return element("rect", x=left, y=_MIDDLE - _BAND, width=max(right - left, 1.0), height=2 * _BAND, class_="claimed")


def _draw_numbers(found: Finding, axis: ClaimAxis) -> list[Markup]:
    """A line and a number at each end of the claimed range and at the neutral value; numbers do not overlap."""
    bounds = [bound for bound in found.claimed if math.isfinite(axis.transform(bound))]
    neutral = [value for value in _neutral(found.unit) if value not in bounds]
    parts, taken = [], [-math.inf]
    for value in (*bounds, *neutral):
        x, text = axis.place(value), format_bound(found.unit, value)
        kind = "neutral" if value in _neutral(found.unit) else "bound"
        parts.append(line(x, _MIDDLE - _BAND, x, _MIDDLE + _BAND, kind))
        half = _LETTER * len(text) / 2
        at = min(max(x, half), WIDTH - half)
        if all(abs(at - other) > 2 * half for other in taken):
            parts.append(write(text, at, HEIGHT - 3, "tick", "middle"))
            taken.append(at)
    return parts


def _draw_interval(found: Finding, axis: ClaimAxis) -> list[Markup]:
    parts, ends = [], []
    for bound, edge, inward in ((found.low, 2.0, 5.0), (found.high, WIDTH - 2.0, -5.0)):
        is_cut = not math.isfinite(bound) or axis.is_beyond(bound)
        ends.append(edge if is_cut else axis.place(bound))
        if is_cut:
            path = f"M{edge + inward:g},{_MIDDLE - 4:g}L{edge:g},{_MIDDLE:g}L{edge + inward:g},{_MIDDLE + 4:g}"
            parts.append(element("path", d=path, class_="arrow"))
    kind = "interval" if is_effect_stated(found) else "interval uncertain"
    return [line(ends[0], _MIDDLE, ends[1], _MIDDLE, kind), *parts]
