"""Numbers, names and data sets as a reader sees them. Records hold base units; only here do they become %, MiB or
minutes."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from sweep.config.errors import show_name
from sweep.config.metrics import IMAGES, DisplayUnit, Quality, find_metric, find_unit, format_count
from sweep.records.inputs import SPLITS, DataSummary

if TYPE_CHECKING:
    from sweep.config.study import StudySpec

_MINUTE = 60.0
_MAX_FACTOR = 10.0  # between the bounds of an interval by one or two seeds
TOO_UNCERTAIN = "too uncertain to state"
# Between the bounds of an effect that is stated: their factor; the difference of powers, whose factor over a tenfold
# batch is the same; and the difference of shares.
_MAX_RATIO, _MAX_POWER, _MAX_SHARE = 100.0, 2.0, 1.0
OUTCOME_NAMES = {
    "complete": "complete",
    "pruned": "pruned",
    "out_of_memory": "out of memory",
    "not_fitting": "not fitting (skipped)",
    "diverged": "diverged",
    "timed_out": "timed out",
    "target_missed": "target missed",
    "crashed": "crashed",
    "cancelled": "cancelled",
    "": "unfinished",  # it runs, or was interrupted
}

_MAX_CLASSES = 20  # with more, the smallest and the largest are listed
_MAX_EXAMPLES = 5  # files of one reason; the JSON documents have more
_MAX_KINDS = 4  # sizes or modes in one line
SPLIT_WORDS = ("training", "validation", "test")  # in the order of SPLITS


def explain_uncounted(spec: "StudySpec | None") -> str:
    """Why there is no count of the data of a study."""
    if spec and spec.script:
        return f"The data were not counted: {spec.script.name} reads its own."
    return (
        "The data were not counted: nothing is on record about what these trials read. The records are by scripts, by "
        "an earlier version, or were not made by sweep run."
    )


def metric_label(name: str, quality: Quality = IMAGES) -> str:
    """The metric in words, without its unit."""
    return find_metric(name, quality).label


def choose_unit(unit: str, values: Iterable[float]) -> DisplayUnit:
    """The display unit in which all of ``values`` are readable; a unit that is not known is shown as it is."""
    return find_unit(unit).display(values)


def format_value(unit: str, value: float | None) -> str:
    """``0.972`` as "97.20 %", ``3.6e7`` bytes as "34.3 MiB", 245 seconds as "4 min 05 s"; a dash where nothing was
    measured."""
    if value is None or not math.isfinite(value):
        return "–"
    if unit == "number":  # a setting: three digits would show a beta2 of 0.9999 as 1
        return f"{value:.6g}"
    if find_unit(unit).measures == "time" and abs(value) >= _MINUTE:
        minutes, rest = divmod(round(value), 60)
        hours, minutes = divmod(minutes, 60)
        return f"{hours:,} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"
    return _in_unit(unit, [value], choose_unit(unit, [value]))


def explain_no_interval(unit: str, low: float, high: float, num_seeds: int) -> str:
    """Words in place of an interval that rests on ``num_seeds`` seeds and cannot be stated; "" for every other one, and
    for one that does not rest on seeds (``num_seeds`` is 0).

    With one or two seeds, Student's t distribution gives bounds that differ by orders of magnitude. Too wide is half of
    the range of a share, and of other quantities a factor of 10, or a bound that is not above 0.
    """
    if num_seeds not in (1, 2):
        return ""
    seeds = format_count(num_seeds, "seed")
    if not math.isfinite(low + high):
        return f"no interval: {seeds}"
    is_wide = high - low >= 0.5 if find_unit(unit).is_share else low <= 0 or high > _MAX_FACTOR * low
    return f"{seeds}: interval too wide to state" if is_wide else ""


def format_interval(unit: str, low: float, high: float, value: float, num_seeds: int = 0) -> str:
    """The bounds in the unit in which ``value`` between them is shown, or :func:`explain_no_interval`; "" where there
    is no interval, or nothing but the value itself."""
    if format_value(unit, low) == format_value(unit, value) == format_value(unit, high):
        return ""
    words = explain_no_interval(unit, low, high, num_seeds)
    if words or not math.isfinite(low + high):
        return words
    if find_unit(unit).measures == "time" and abs(value) >= _MINUTE:
        return f"{format_value(unit, low)} to {format_value(unit, high)}"
    return _in_unit(unit, [low, high], choose_unit(unit, [value]))


def format_estimate(
    name: str, value: float, low: float, high: float, n: int, quality: Quality = IMAGES
) -> tuple[str, str]:
    """A metric and its :func:`format_interval` as texts, the same wherever they are shown."""
    unit, shown = find_metric(name, quality).unit, format_metric(name, value, quality)
    if not _is_plain(name, quality):
        return shown, name_samples(format_interval(unit, low, high, value, n), quality)
    ends = [quality.format_value(bound) for bound in (low, high)]
    is_known = math.isfinite(low + high) and {*ends} != {shown}
    return shown, explain_no_interval(unit, low, high, n) or (f"{low:.4g} to {ends[1]}" if is_known else "")


def format_price(amount: float, currency: str) -> str:
    """``amount`` with three digits and the text of its currency, "" for none: "0.0125 EUR"."""
    return f"{_digits(amount)} {currency}".strip() if math.isfinite(amount) else "–"


def describe_price(median: float, low: float, high: float, currency: str) -> str:
    """A price with its interval: "0.0125 EUR (0.0120 to 0.0130)"; the value alone where there is no interval."""
    shown = format_price(median, currency)
    bounds = (format_price(low, ""), format_price(high, ""))
    is_known = math.isfinite(low + high) and {*bounds} != {format_price(median, "")}
    return f"{shown} ({bounds[0]} to {bounds[1]})" if is_known else shown


def format_metric(name: str, value: float | None, quality: Quality = IMAGES) -> str:
    """:func:`format_value` with the metric's own unit."""
    if value is not None and math.isfinite(value) and _is_plain(name, quality):
        return quality.format_value(value)
    return name_samples(format_value(find_metric(name, quality).unit, value), quality)


def name_samples(text: str, quality: Quality) -> str:
    """``text`` with images/s as the rate of the study's samples."""
    return text.replace("images/s", f"{quality.sample}/s")


def _is_plain(name: str, quality: Quality) -> bool:
    # what a script reports has more digits than another number, because its tolerance may be a small part of it
    return name == quality.column and quality.unit != "fraction"


def is_too_uncertain(unit: str, low: float, high: float) -> bool:
    """Whether the interval of an effect leaves its size unknown: a bound is not finite, or the bounds differ by a
    factor of more than 100, by a power of more than 2, or by more than 100 points."""
    if not math.isfinite(low + high):
        return True
    if find_unit(unit).scale == "log":
        return low <= 0 or high > _MAX_RATIO * low
    return high - low > (_MAX_POWER if unit == "exponent" else _MAX_SHARE)


def format_bound(unit: str, value: float) -> str:
    """The end of a claimed range as it stands at an axis: "1.5", "0.5 %"."""
    shown = choose_unit(unit, [value])
    return f"{value * shown.factor:.4g}{' %' if shown.suffix == '%' else ''}"


def format_margin(unit: str, margin: float) -> str:
    """A difference that matters: "0.50 points", of a unit whose ratios are compared "a factor of 1.1"."""
    return f"a factor of {margin:g}" if find_unit(unit).scale == "log" else format_value(unit, margin)


def describe_range(unit: str, low: float, high: float) -> str:
    """A claimed range in words: "1.5 to 2 times", "0.5 % or more"."""
    shown = choose_unit(unit, [low, high])
    ends = [f"{bound * shown.factor:.4g}" for bound in (low, high)]
    is_open_below = low <= 0 if find_unit(unit).scale == "log" else math.isinf(low)
    text = ends[1] if is_open_below else ends[0] if math.isinf(high) else f"{ends[0]} to {ends[1]}"
    beyond = " or less" if is_open_below else " or more" if math.isinf(high) else ""
    return f"{text} {shown.suffix}".strip() + beyond


def format_effect(unit: str, value: float, low: float = math.nan, high: float = math.nan, num_seeds: int = 0) -> str:
    """A value with its confidence interval, where there is one: "1.50 times (1.25 to 1.75 times)"."""
    if not math.isfinite(value):
        return "unknown"
    interval = format_interval(unit, low, high, value, num_seeds)
    return f"{format_value(unit, value)} ({interval})" if interval else format_value(unit, value)


def format_difference(unit: str, value: float, low: float, high: float, num_seeds: int = 0) -> str:
    """How much more, or how many times, something is, with its confidence interval: "+1.20 (+0.40 to +2.00) points",
    "0.83 (0.80 to 0.86) times"."""
    is_share = find_unit(unit).is_share
    factor, suffix = (100.0, "points") if is_share else choose_unit(unit, [value])[:2]
    form = "+.2f" if is_share else ".3g" if unit == "ratio" else "+.3g"
    middle, *bounds = (format(number * factor, form) for number in (value, low, high))
    words = explain_no_interval(unit, low, high, num_seeds)
    if words:
        return f"{middle} {suffix}".strip() + f" ({words})"
    if unit == "ratio" and {middle, *bounds} == {"1"}:
        return "the same"
    is_known = math.isfinite(low + high) and {*bounds} != {middle}
    interval = f" ({bounds[0]} to {bounds[1]})" if is_known else ""
    return f"{middle}{interval} {suffix}".strip()


def format_setting(value: object) -> str:
    """A configuration value: short, and 0.1 stays 0.1."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else f"{value:.3g}"
    return "none" if value is None else str(value)


def _in_unit(unit: str, values: Sequence[float], shown: DisplayUnit) -> str:
    declared = find_unit(unit)
    is_countable = (declared.is_whole or unit == "samples") and shown.factor == 1.0
    is_counted = is_countable and all(map(float.is_integer, map(float, values)))
    digits = "{:.2f}".format if declared.is_share else "{:,.0f}".format if is_counted else _digits
    return f"{' to '.join(digits(value * shown.factor) for value in values)} {shown.suffix}".strip()


def _digits(value: float) -> str:
    if value == 0 or not 1e-3 <= abs(value) < 1e12:
        return f"{value:.3g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.3g}")))))
    return f"{value:,.{decimals}f}"


class _ClassTable(NamedTuple):
    """Images by class and split."""

    caption: str
    rows: tuple[tuple[str, tuple[int, ...]], ...]  # name of a class, its images in the order of SPLITS


def describe_set(data: DataSummary) -> str:
    """The set and the images of each split, in one line."""
    folder = f" in {show_name(data.root)}" if data.root else ""
    return f"{show_name(data.name)}{folder}: {data.counts()}"


def list_classes(data: DataSummary) -> _ClassTable | None:
    """All classes, or of many the five smallest and the five largest; None where they were not counted."""
    if not data.classes:
        return None
    totals = {name: sum(counts.values()) for name, counts in data.classes.items()}
    by_size = sorted(totals, key=lambda name: totals[name])
    shown, head = list(totals), f"{len(totals)} classes"
    if len(totals) > _MAX_CLASSES:
        shown, head = [*by_size[:5], *by_size[-5:]], f"{head}: the five smallest and the five largest"
    fewest, most = (f"{totals[name]:,} ({show_name(name)})" for name in (by_size[0], by_size[-1]))
    rows = tuple((show_name(name), tuple(data.classes[name].get(split, 0) for split in SPLITS)) for name in shown)
    return _ClassTable(f"{head}; fewest {fewest}, most {most} images", rows)


def describe_kinds(counts: Mapping[str, int], kinds: str) -> str:
    """The "sizes" or "modes" of images, most frequent first; "" where they are not known."""
    shown = list(counts.items())[:_MAX_KINDS]
    rest = sum(counts.values()) - sum(count for _, count in shown)
    words = ", ".join(f"{show_name(name)} ({count:,})" if len(counts) > 1 else show_name(name) for name, count in shown)
    return words + (f", other {kinds} ({rest:,})" if rest else "")


def list_unused(data: DataSummary) -> list[str]:
    """What no trial uses: how many, why, and examples."""
    lines = []
    for item in data.ignored:
        examples = f": {', '.join(map(show_name, item.examples[:_MAX_EXAMPLES]))}" if item.examples else ""
        more = " ..." if item.examples and item.num_files > _MAX_EXAMPLES else ""
        lines.append(f"{item.num_files:,}, {show_name(item.reason)}{examples}{more}")
    return lines


def list_notes(data: DataSummary) -> list[str]:
    """What a reader must know to trust results on this data."""
    return [show_name(note, shorten=False) for note in data.notes]


def describe_decoding(data: DataSummary) -> list[str]:
    """What decoding the images took and takes, where they are kept decoded."""
    if data.stored_side is None:
        return []
    seconds, size = format_value("seconds", data.decode_seconds), format_value("bytes", data.stored_bytes)
    return [f"decoded once in {seconds}: {size} at {data.stored_side} x {data.stored_side} pixels, for all trials"]
