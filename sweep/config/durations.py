"""Durations by the clock, and those within a training, in any one of four units."""

import re
from math import ceil
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BeforeValidator, Field

from sweep.config.errors import shorten_text

_CLOCK = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_seconds(value: object) -> object:
    """``90``, ``"90s"``, ``"10m"``, ``"2h"``, ``"1d"`` in seconds; other values are left for validation."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", value)):
        return float(match[1]) * _CLOCK[match[2] or "s"]
    if isinstance(value, str):
        raise ValueError("give a number of seconds or a duration like '90s', '10m', '2h'")
    return value


def round_up_duration(seconds: float) -> str:
    """The shortest duration of at least ``seconds`` that is a round number of its unit, as options take it."""
    if seconds < 2 * _CLOCK["m"]:
        return f"{10 * ceil(seconds / 10)}s"
    return f"{ceil(seconds / _CLOCK['m'])}m" if seconds < 3 * _CLOCK["h"] else f"{ceil(seconds / _CLOCK['h'])}h"


Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)]

Unit = Literal["fraction", "steps", "epochs", "samples"]
_UNITS: dict[str, Unit] = {
    "": "fraction", "fraction": "fraction", "step": "steps", "steps": "steps",
    "epoch": "epochs", "epochs": "epochs", "sample": "samples", "samples": "samples",
}  # fmt: skip
_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_TEXT = re.compile(rf"\s*({_NUMBER}(?:[\s,]+{_NUMBER})*)\s*([a-z]*)\s*", re.IGNORECASE)


class Durations(NamedTuple):
    """Moments of a training, all in one unit; a fraction is one of the budget."""

    values: tuple[float, ...]
    unit: Unit


def parse_durations(text: str) -> Durations:
    """``"0.5, 0.75"``, ``"30, 60 epochs"``, ``"500 steps"``, ``"10000 samples"``; a bare number is a fraction.

    Raises:
        ValueError: saying what is wrong with the text.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{shorten_text(repr(text))} is no duration; write '0.5', '500 steps', '30, 60 epochs' or '10000 samples'"
        )
    values = tuple(float(number) for number in match[1].replace(",", " ").split())
    return Durations(values, _check(values, _unit(match[2], text)))


def _unit(word: str, text: str) -> Unit:
    if word.lower() not in _UNITS:
        raise ValueError(f"{shorten_text(repr(text))}: unknown unit {word!r}; known: {', '.join(get_args(Unit))}")
    return _UNITS[word.lower()]


def _check(values: tuple[float, ...], unit: Unit) -> Unit:
    if unit == "fraction" and max(values) > 1:
        raise ValueError(
            f"{max(values):g} is no fraction of the budget; give a unit: '{max(values):g} steps' or epochs"
        )
    if list(values) != sorted(set(values)):
        raise ValueError(f"{shorten_text(', '.join(map('{:g}'.format, values)))}: give them in rising order, each once")
    return unit
