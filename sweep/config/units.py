"""Units of metrics and of effects, declared once: what a unit measures, and how a reader sees its numbers."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

NoiseScale = Literal["linear", "log", "angle"]
_MINUTE, _HOUR = 60.0, 3600.0


class DisplayUnit(NamedTuple):
    """One way to show a unit: shown number = value * factor, followed by ``suffix``; for magnitudes ``below``."""

    factor: float
    suffix: str
    below: float = math.inf


@dataclass(frozen=True, kw_only=True)
class MetricUnit:
    """Properties of all quantities of one unit; the defaults are those of an unknown one."""

    shown: tuple[DisplayUnit, ...] = (DisplayUnit(1.0, ""),)  # by ascending ``below``
    # Time, speed, memory and hardware quantities depend on the device and on its load.
    measures: Literal["time", "rate", "memory", "hardware", ""] = ""
    scale: NoiseScale = "linear"  # on which the noise of a value is even
    is_whole: bool = False
    is_share: bool = False
    assumed_sd: float = 0.05  # on the scale of the metric, where no seed was repeated
    worst: float = 1e9  # stands for a quantity to be minimized that was never measured; above every possible value

    def display(self, values: Iterable[float]) -> DisplayUnit:
        """The way in which all of ``values`` are readable; what is not finite is left out."""
        largest = max(map(abs, filter(math.isfinite, values)), default=0.0)
        return next((shown for shown in self.shown if largest < shown.below), self.shown[-1])


_TIMES = (
    DisplayUnit(1e6, "µs", 1e-3), DisplayUnit(1e3, "ms", 1.0), DisplayUnit(1.0, "s", 10 * _MINUTE),
    DisplayUnit(1 / _MINUTE, "min", 2 * _HOUR), DisplayUnit(1 / _HOUR, "h"),
)  # fmt: skip
_BYTES = (
    DisplayUnit(1.0, "B", 2.0**10), DisplayUnit(2.0**-10, "KiB", 2.0**20), DisplayUnit(2.0**-20, "MiB", 2.0**30),
    DisplayUnit(2.0**-30, "GiB", 2.0**40), DisplayUnit(2.0**-40, "TiB"),
)  # fmt: skip


def _plain(suffix: str, factor: float = 1.0) -> tuple[DisplayUnit]:
    return (DisplayUnit(factor, suffix),)


UNITS: dict[str, MetricUnit] = {
    # sin(angle)^2 is the share: the angle's slope is at least 1, and about 2 at an accuracy of 90 %
    "fraction": MetricUnit(shown=_plain("%", 100.0), is_share=True, assumed_sd=0.02, worst=1.0),
    "fraction difference": MetricUnit(shown=_plain("points", 100.0), is_share=True, assumed_sd=0.02, worst=1.0),
    "nats": MetricUnit(shown=_plain("nats"), worst=100.0),
    "seconds": MetricUnit(shown=_TIMES, measures="time", scale="log", worst=86_400.0),
    "bytes": MetricUnit(shown=_BYTES, measures="memory", scale="log", is_whole=True, assumed_sd=0.001, worst=2.0**40),
    "images/second": MetricUnit(shown=_plain("images/s"), measures="rate", scale="log"),
    "count": MetricUnit(scale="log", is_whole=True, worst=1e12),
    "epochs": MetricUnit(scale="log", worst=1e6),
    "number": MetricUnit(),
    "samples": MetricUnit(shown=_plain("samples"), scale="log"),
    "joules": MetricUnit(shown=(DisplayUnit(1.0, "J", 1e4), DisplayUnit(1e-3, "kJ")), measures="hardware", worst=1e12),
    "watts": MetricUnit(shown=_plain("W"), measures="hardware", worst=1e5),
    "celsius": MetricUnit(shown=_plain("°C"), measures="hardware"),
    "hertz": MetricUnit(shown=(DisplayUnit(1e-6, "MHz", 1e9), DisplayUnit(1e-9, "GHz")), measures="hardware"),
    "percent": MetricUnit(shown=_plain("%")),
    "nats/weight^2": MetricUnit(shown=_plain("nats/weight²")),
    # of effects
    "ratio": MetricUnit(shown=_plain("times"), scale="log"),
    "exponent": MetricUnit(),
    "fraction/doubling": MetricUnit(shown=_plain("points per doubling", 100.0)),
}


_UNKNOWN = MetricUnit()


def find_unit(name: str) -> MetricUnit:
    """The unit called ``name``; one that shows numbers as they are for a text that is no unit."""
    return UNITS.get(name, _UNKNOWN)


def format_share(share: float) -> str:
    """0.05 as "5 %", for limits and tolerances."""
    return f"{100 * share:.3g} %"


def join_words(words: Sequence[str]) -> str:
    """ "time", "time and memory", "accuracy, time and memory"."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def format_count(count: int, noun: str, plural: str = "") -> str:
    """ "1 trial", "2,000 trials"."""
    return f"{count:,} {noun if count == 1 else plural or f'{noun}s'}"
