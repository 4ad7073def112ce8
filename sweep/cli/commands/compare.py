"""``sweep compare``: two studies side by side, such as two devices, two versions or two recipes."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweep.cli.arguments import load_records
from sweep.cli.options import RUNS, AnyRecords, AsJson, Root
from sweep.cli.output import print_answer
from sweep.config.errors import InputError
from sweep.config.units import format_count

if TYPE_CHECKING:
    from sweep.analysis.comparison import Comparison, Difference, PaceDifference
    from sweep.records.data_summary import DataSummary
    from sweep.records.frames.study_frames import Frames


_MAX_LINES = 20


def compare(
    run_a: AnyRecords,
    run_b: Annotated[str, typer.Argument(help="The study to compare with it.")],
    columns_a: Annotated[
        Path | None,
        typer.Option("--columns-a", help="Map (TOML) of the columns of the first, if it is of another program."),
    ] = None,
    columns_b: Annotated[
        Path | None,
        typer.Option("--columns-b", help="Map (TOML) of the columns of the second, if it is of another program."),
    ] = None,
    root: Root = RUNS,
    as_json: AsJson = False,
) -> int:
    """Compare two studies. Shows configurations that both have, their Pareto fronts, and what changed in settings and
    environment."""
    from sweep.analysis.comparison import compare_studies

    given = ((run_a, columns_a), (run_b, columns_b))
    a, b = (load_records(place, root, columns, evaluations=False) for place, columns in given)
    for place, frames in ((run_a, a), (run_b, b)):
        _require_data_name(place, frames)
    found = compare_studies(a, b)
    sources = {"a": a.source, "b": b.source}
    document = _document(found)
    document["source"] = {side: source.to_document() if source else None for side, source in sources.items()}
    origin = [f"{side.upper()}: {line}" for side, source in sources.items() if source for line in source.describe()]
    print_answer(document, chain(origin, _lines(found)), as_json=as_json)
    return 0


def _require_data_name(place: str, frames: "Frames") -> None:
    from sweep.analysis.statistics import read_text

    # without it the fronts of two data sets would be compared
    if frames.source is not None and not any(read_text(frames.trials, "config.data.name")):
        raise InputError(
            f"{place}: its data set is not stated, and results on different data are never compared; map a column as "
            'data.name, or add "data.name" = "..." to [constants].'
        )


def _document(found: "Comparison") -> dict[str, Any]:
    return {
        "a": found.study_a,
        "b": found.study_b,
        "data": {"a": _data(found.data_a), "b": _data(found.data_b), "differ": found.data_differ},
        "num_aligned": len(found.aligned),
        "overall": {name: _difference(value) for name, value in found.overall.items()},
        "times": _times(found),
        "units": found.units,
        "aligned": [
            {
                "number_a": item.number_a,
                "number_b": item.number_b,
                "config": item.config,
                "num_paired_seeds": item.num_paired,
                **{name: _difference(value) for name, value in item.differences.items()},
            }
            for item in found.aligned
        ],
        "front_a": asdict(found.front_a),
        "front_b": asdict(found.front_b),
        "changed": {name: {"a": a, "b": b} for name, (a, b) in found.changed.items()},
    }


def _data(data: "DataSummary | None") -> dict[str, str | int | None] | None:
    names = ("name", "num_train", "num_val", "num_test", "digest")
    return {name: getattr(data, name) for name in names} if data else None


def _difference(item: "Difference") -> dict[str, float | int | str | None]:
    return {key: _finite(part) for key, part in item.interval._asdict().items()} | {"verdict": item.verdict}


def _times(found: "Comparison") -> dict[str, Any]:
    pace = found.pace
    return {
        "reference_ratio": _finite(pace.ratio),
        "log_error": _finite(pace.error),
        "num_references": {"a": pace.num_references[0], "b": pace.num_references[1]},
        "num_probes": pace.num_probes,
        "num_without": found.num_without_time,
        "reason": pace.reason,
        "commands": list(found.commands) if pace.reason else [],
    }


def _finite(value: float) -> float | None:
    return None if isinstance(value, float) and math.isnan(value) else value


def _lines(found: "Comparison") -> Iterator[str]:
    from reports.labels import format_difference, format_setting, key_label, metric_label

    yield f"A: {found.study_a}   B: {found.study_b}"
    yield from _describe_basis(found)
    for name, value in found.overall.items():
        difference = format_difference(found.units[name], *value.interval[:3])
        n = format_count(value.interval.n, "configuration")
        yield f"  {metric_label(name)}: {difference}, n = {n}{_describe_verdict(name, value)}"
    yield from _describe_times(found)
    for item in found.aligned[:_MAX_LINES]:
        settings = ", ".join(f"{key_label(key)} {format_setting(value)}" for key, value in item.config.items())
        yield f"  A's trial {item.number_a}, B's trial {item.number_b} ({settings})"
        for name, value in item.differences.items():
            difference = format_difference(found.units[name], *value.interval[:3])
            yield f"    {metric_label(name)}: {difference}{_describe_verdict(name, value)}"
    if len(found.aligned) > _MAX_LINES:
        yield f"  and {len(found.aligned) - _MAX_LINES} more: --json has all"
    if _budgets_differ(found) and not found.data_differ:
        yield "The budgets differ (see below), so that each volume is what a study reached with its own budget:"
    for label, front in (("A", found.front_a), ("B", found.front_b)):
        numbers = ", ".join(map(str, front.numbers[:_MAX_LINES])) or "none"
        volume = "" if front.volume is None else f"{front.volume:.1%} of the volume behind both; "
        yield f"Front of {label}: {volume}trials {numbers}"
    yield "Changed:" if found.changed else "Settings and environment are equal."
    for name, (a, b) in found.changed.items():
        yield f"  {name}: {a} -> {b}"


def _describe_verdict(name: str, item: "Difference") -> str:
    from sweep.config.metrics import METRICS

    if item.verdict == "undecided":
        return ": no difference beyond chance"
    if item.verdict == "not_known":
        return ": not known"
    if not METRICS[name].is_speed:
        return f": {item.verdict} in B"
    is_better = (item.verdict == "higher") == (METRICS[name].direction == "maximize")
    return f": B is {'faster' if is_better else 'slower'}"


def _describe_times(found: "Comparison") -> Iterator[str]:
    names = {"train_seconds", "images_per_second"} & found.overall.keys()
    pace = found.pace
    if found.num_without_time:
        n = format_count(found.num_without_time, "configuration")
        yield f"  {n} without a time of its own that can be used: disturbed, or of a reused trial"
    if not names:
        return
    if pace.reason:
        yield f"  Whether the code makes times differ is not known: {pace.reason}."
        for command in found.commands:
            yield f"    to settle it: {command}"
        return
    yield f"  The machine: {_describe_pace(pace)}. The intervals of times contain this."


def _describe_pace(pace: "PaceDifference") -> str:
    counts = " and ".join(map(str, pace.num_references))
    reference = f"the reference work took {pace.ratio:.3g} times as long in B as in A (timed {counts} times)"
    probes = f"{format_count(pace.num_probes, 'shape')} probed for each of them"
    parts = [reference] * all(pace.num_references) + [probes] * bool(pace.num_probes)
    return f"{', '.join(parts)}; times of equal code may differ by +-{pace.half_width:.1%} (95 % interval)"


def _describe_basis(found: "Comparison") -> Iterator[str]:
    if found.data_differ:
        yield "The data differ, so that no results are compared:"
        for label, data in (("A", found.data_a), ("B", found.data_b)):
            yield f"  {label}: {data.describe() if data else 'not counted; see data.name below'}"
        return
    yield f"{len(found.aligned)} configurations in both; differences are B - A, ratios B / A"
    if not found.aligned and _budgets_differ(found):
        yield "  the budgets differ (see below), and a configuration of another budget is another configuration"


def _budgets_differ(found: "Comparison") -> bool:
    return any(name.startswith("budget.") for name in found.changed)
