"""What a data set holds, for people; and the progress of looking at it."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from sweep.records.data_summary import SPLITS, DataSummary

_MAX_CLASSES = 20  # with more, the smallest and the largest are listed
_MAX_KINDS = 4  # sizes or modes in one line
_WORDS = {"train": "training", "val": "validation", "test": "test"}


def format_data(data: DataSummary) -> list[str]:
    """The images by split and class, where they come from, and what is not used and why."""
    lines = [f"data: {data.name}{f' in {data.root}' if data.root else ''}: {data.counts()}"]
    if data.classes:
        lines += [f"  {line}" for line in _format_classes(data)]
    if data.held_out:
        lines.append(f"  {data.held_out}")
    if data.sizes:
        lines.append(f"  sizes: {_format_kinds(data.sizes)}; modes: {_format_kinds(data.modes)}")
    for item in data.ignored:
        examples = f": {', '.join(item.examples)}" if item.examples else ""
        more = " ..." if item.examples and item.num_files > len(item.examples) else ""
        lines.append(f"  not used: {item.num_files:,}, {item.reason}{examples}{more}")
    lines += [f"  note: {note}" for note in data.notes]
    return [*lines, f"  digest {data.digest[:12]}"] if data.digest else lines


def _format_classes(data: DataSummary) -> list[str]:
    totals = {name: sum(counts.values()) for name, counts in data.classes.items()}
    order = list(totals)
    head = f"{len(order)} classes"
    if len(order) > _MAX_CLASSES:
        by_size = sorted(order, key=lambda name: totals[name])
        order, head = [*by_size[:5], *by_size[-5:]], f"{head}, of which the five smallest and the five largest"
    width = max(map(len, (*order, "class")))
    rows = [f"{'class':{width}}" + "".join(f"{_WORDS[split]:>12}" for split in SPLITS)]
    rows += [
        f"{name:{width}}" + "".join(f"{data.classes[name].get(split, 0):>12,}" for split in SPLITS) for name in order
    ]
    fewest, most = min(order, key=lambda name: totals[name]), max(order, key=lambda name: totals[name])
    return [f"{head}; fewest {totals[fewest]:,} ({fewest}), most {totals[most]:,} ({most}) images", *rows]


def _format_kinds(counts: Mapping[str, int]) -> str:
    shown = [f"{name} ({count:,})" if len(counts) > 1 else name for name, count in list(counts.items())[:_MAX_KINDS]]
    rest = len(counts) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")


@contextmanager
def show_inspection() -> Iterator[Callable[[int, int], None]]:
    """A callback that shows the progress of decoding images on standard error; nothing where all is known already."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

    columns = (TextColumn("decoding every image once"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())
    bars: list[TaskID] = []

    def show(num_done: int, num_images: int) -> None:
        if not bars:
            progress.start()
            bars.append(progress.add_task("", total=num_images))
        progress.update(bars[0], completed=num_done)
        if num_done == num_images:
            progress.stop()  # the study draws on the terminal from here on

    try:
        yield show
    finally:
        progress.stop()
