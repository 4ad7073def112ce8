"""What a data set holds, for people; and the progress of looking at it."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from reports import labels
from sweep.config.errors import show_name
from sweep.config.units import format_count
from sweep.records.data_summary import DataSummary

_FEWEST_VALIDATION = 8  # images: of fewer the tolerance of sweep ask, two standard errors, exceeds 10 points
_FEWEST_OF_CLASS = 5  # images of a class, in all splits
_MOST_NAMED = 10  # classes in one warning


def format_data(data: DataSummary) -> list[str]:
    """The images by split and class, where they come from, and what is not used and why."""
    lines = list(_warn_of_few_images(data))
    lines += [f"data: {labels.describe_set(data)}", *(f"  {line}" for line in _format_classes(data))]
    if data.held_out:
        lines.append(f"  {show_name(data.held_out, shorten=False)}")
    if data.sizes:
        sizes, modes = labels.describe_kinds(data.sizes, "sizes"), labels.describe_kinds(data.modes, "modes")
        lines.append(f"  sizes: {sizes}; modes: {modes}")
    lines += [f"  not used: {line}" for line in labels.list_unused(data)]
    lines += [f"  note: {note}" for note in labels.list_notes(data)]
    return [*lines, f"  digest {data.digest[:12]}"] if data.digest else lines


def _warn_of_few_images(data: DataSummary) -> Iterator[str]:
    # with so few the noise of a single accuracy is larger than any difference between batch sizes
    if data.num_val is not None and data.num_val < _FEWEST_VALIDATION:
        yield (
            f"WARNING: no answer is possible with {format_count(data.num_val, 'validation image')}: two equally good "
            "configurations differ by more than 10 points by chance; add images"
        )
    small = {name: sum(counts.values()) for name, counts in data.classes.items()}
    small = {name: count for name, count in small.items() if count < _FEWEST_OF_CLASS}
    if not small:
        return
    named = ", ".join(f"{show_name(name)} ({count})" for name, count in list(small.items())[:_MOST_NAMED])
    head = f"{format_count(len(small), 'class', 'classes')} of {len(data.classes)} with fewer than {_FEWEST_OF_CLASS}"
    lacks = "no answer is possible with" if len(data.classes) - len(small) < 2 else "accuracy means nothing for"
    yield f"WARNING: {lacks} {head} images: {named}; add images, or remove the class"


def _format_classes(data: DataSummary) -> list[str]:
    table = labels.list_classes(data)
    if table is None:
        return []
    width = max(len(name) for name in ("class", *(name for name, _ in table.rows)))
    rows = [f"{name:{width}}" + "".join(f"{count:>12,}" for count in counts) for name, counts in table.rows]
    return [table.caption, f"{'class':{width}}" + "".join(f"{word:>12}" for word in labels.SPLIT_WORDS), *rows]


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
