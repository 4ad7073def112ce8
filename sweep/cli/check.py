"""``sweep check``: what is wrong with a study before it runs, and what its records say against that."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports import labels
from sweep.cli.app import print_answer, print_lines
from sweep.cli.arguments import load_plugin, parse_sets
from sweep.cli.options import RUNS, AsJson, Plugin, Root, Sets, StudyFile
from sweep.config.advice import Advice, find_data_pitfalls, find_pitfalls
from sweep.config.errors import show_name
from sweep.config.metrics import METRICS, format_count
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study
from sweep.records.inputs import DataSummary

if TYPE_CHECKING:
    from sweep.analysis.findings import Finding


# What a data set holds, for people; and the progress of looking at it.

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


def check(
    study: StudyFile,
    sets: Sets = None,
    root: Root = RUNS,
    plugin: Plugin = None,
    as_json: AsJson = False,
) -> int:
    """Count the images of a study and report its known pitfalls. Each has its reason and what to do instead; nothing is
    trained, and earlier records of the study under the root add what was measured."""
    from sweep.training.data.sources import check_study_data  # with NumPy and Pillow

    load_plugin(plugin)
    spec = load_study(study, parse_sets(sets or []))
    with show_inspection() as show:
        data = check_study_data(spec, show)
    found = [*find_pitfalls(spec), *_advise_on_objectives(spec), *find_data_pitfalls(spec, data.num_train)]
    measured = _load_settled_findings(spec, root) if found else {}
    advice = [_document(item, measured.get(item.finding)) for item in found]
    lines = [*_list_advice(spec, found, measured), *format_data(data)]
    print_answer({"study": spec.name, "data": data.document(), "advice": advice}, lines, as_json=as_json)
    return 0


def _list_advice(spec: StudySpec, found: Sequence[Advice], measured: dict[str, "Finding"]) -> list[str]:
    count = "one piece" if len(found) == 1 else f"{len(found)} pieces"
    head = f"{spec.name}: {count} of advice" if found else f"{spec.name}: no known pitfall"
    return [head, *format_advice(found, measured)]


def print_advice(spec: StudySpec, command: str, num_train: int | None) -> None:
    """Prints one line on standard error for each known pitfall of the study, which has ``num_train`` training images,
    before it runs; ``command`` gives their reasons."""
    found = [*find_pitfalls(spec), *find_data_pitfalls(spec, num_train)]
    print_lines((f"advice on {item.key}: {item.statement}" for item in found), err=True)
    if found:
        print_lines([f"`{command}` gives the reasons and the remedies"], err=True)


def _advise_on_objectives(spec: StudySpec) -> list[Advice]:
    # no refusal: a study may be checked on another machine than the one that runs it
    if not any(METRICS[name].requires for name in spec.objectives):
        return []
    from sweep.executors.table import (
        ExecutorSettings,  # with psutil
        find_unmeasurable,
        list_measurable,
        suggest_remedy,
    )

    here = ExecutorSettings()
    return [
        Advice(
            "objective_not_measured",
            "objectives",
            f"{name} cannot be measured on this machine, and `sweep run` refuses the study here.",
            f"It requires {requirement.text}.",
            f"{suggest_remedy([requirement])}, or choose from {', '.join(list_measurable(spec, here))}",
        )
        for name, requirement in find_unmeasurable(spec, here).items()
    ]


def _load_settled_findings(spec: StudySpec, root: Path) -> dict[str, "Finding"]:
    """The settled findings on the study's own records by name; empty where it has none."""
    folder = root / spec.name
    if not (folder / "study.sqlite").exists():
        return {}
    from sweep.analysis.findings import UNSETTLED, evaluate_claims
    from sweep.records.loading import load_frames

    found = evaluate_claims(load_frames(folder, spec.name, evaluations=True))
    return {item.name: item for item in found if item.verdict not in UNSETTLED}


def format_advice(found: Sequence[Advice], measured: dict[str, "Finding"]) -> list[str]:
    """The advice for people, with what the records say for or against it."""
    lines = []
    for item in found:
        lines += [f"  {item.key}: {item.statement}", f"    why: {item.reason}", f"    instead: {item.remedy}"]
        if item.finding in measured:
            lines.append(f"    measured here: {_measured(measured[item.finding])}")
    return lines


def _measured(finding: "Finding") -> str:
    from reports.labels import format_effect

    effect = format_effect(finding.unit, finding.effect, finding.low, finding.high)
    return f"{finding.verdict}: {finding.statement} {effect}, n = {finding.n}."


def _document(item: Advice, measured: "Finding | None") -> dict[str, Any]:
    if measured is None:
        return {**item._asdict(), "finding": None}
    from sweep.analysis.findings import findings_document

    return {**item._asdict(), "finding": findings_document([measured])[0]}
