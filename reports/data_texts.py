"""A look at a data set in words and rows, the same on the page and in the terminal."""

from collections.abc import Mapping
from typing import NamedTuple

from sweep.config.errors import show_name
from sweep.records.data_summary import SPLITS, DataSummary

MAX_CLASSES = 20  # with more, the smallest and the largest are listed
_MAX_EXAMPLES = 5  # files of one reason; the JSON documents have more
_MAX_KINDS = 4  # sizes or modes in one line
NOT_COUNTED = (
    "The data were not counted: nothing is on record about the images that these trials read. The records are those of "
    "an earlier version, or were not made by sweep run."
)
SPLIT_WORDS = ("training", "validation", "test")  # in the order of SPLITS


class ClassTable(NamedTuple):
    """Images by class and split."""

    caption: str
    rows: tuple[tuple[str, tuple[int, ...]], ...]  # name of a class, its images in the order of SPLITS


def describe_set(data: DataSummary) -> str:
    """The set and the images of each split, in one line."""
    place = f" in {show_name(data.root)}" if data.root else ""
    return f"{show_name(data.name)}{place}: {data.counts()}"


def list_classes(data: DataSummary) -> ClassTable | None:
    """All classes, or of many the five smallest and the five largest; None where they were not counted."""
    if not data.classes:
        return None
    totals = {name: sum(counts.values()) for name, counts in data.classes.items()}
    by_size = sorted(totals, key=lambda name: totals[name])
    shown, head = list(totals), f"{len(totals)} classes"
    if len(totals) > MAX_CLASSES:
        shown, head = [*by_size[:5], *by_size[-5:]], f"{head}, of which the five smallest and the five largest"
    fewest, most = (f"{totals[name]:,} ({show_name(name)})" for name in (by_size[0], by_size[-1]))
    rows = tuple((show_name(name), tuple(data.classes[name].get(split, 0) for split in SPLITS)) for name in shown)
    return ClassTable(f"{head}; fewest {fewest}, most {most} images", rows)


def describe_sizes(data: DataSummary) -> str:
    """The sizes of the images, most frequent first; "" where they are not known."""
    return _describe_kinds(data.sizes, "sizes")


def describe_modes(data: DataSummary) -> str:
    """The color modes of the images, most frequent first; "" where they are not known."""
    return _describe_kinds(data.modes, "modes")


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


def _describe_kinds(counts: Mapping[str, int], kinds: str) -> str:
    shown = list(counts.items())[:_MAX_KINDS]
    rest = sum(counts.values()) - sum(count for _, count in shown)
    words = ", ".join(f"{show_name(name)} ({count:,})" if len(counts) > 1 else show_name(name) for name, count in shown)
    return words + (f", other {kinds} ({rest:,})" if rest else "")
