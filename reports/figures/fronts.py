"""The fronts: every pair of objectives against each other."""

from itertools import combinations

import numpy as np

from reports.evidence import Evidence, keep_finite
from reports.figure import Absent, Figure, Layer, Panel
from reports.figures import marks
from reports.labels import metric_label
from sweep.analysis.statistics import read_numbers, read_text
from sweep.config.metrics import METRICS
from sweep.config.units import format_count

TITLE = "Pareto fronts"


def make_fronts(evidence: Evidence) -> list[Figure] | Absent:
    """One figure with a panel for each pair of objectives; none with a single objective or nothing complete."""
    if len(evidence.objectives) < 2:
        return Absent(TITLE, "requires at least two objectives; the study has one.")
    panels = [panel for pair in combinations(evidence.objectives, 2) if (panel := _panel(evidence, *pair))]
    if not panels:
        return Absent(TITLE, "requires a completed search trial.")
    return [Figure(name="fronts", title=TITLE, caption=_caption(evidence), panels=tuple(panels))]


def _panel(evidence: Evidence, y_name: str, x_name: str) -> Panel | None:
    frame = evidence.search
    x, y = read_numbers(frame, x_name), read_numbers(frame, y_name)
    confirmed = marks.confirmed_marks(evidence, x_name, y_name)
    all_x = np.append(x, confirmed.x if confirmed else ())
    all_y = np.append(y, confirmed.y if confirmed else ())
    if not len(keep_finite(all_x + all_y)):
        return None
    x_axis, y_axis = marks.metric_axis(x_name, all_x), marks.metric_axis(y_name, all_y)
    signs = (METRICS[x_name].sign, METRICS[y_name].sign)
    layers: list[Layer] = []
    detailed = frame["detailed"].to_numpy(dtype=bool)
    if not detailed.all():
        layers.append(marks.make_density(x, y, x_axis.scale, y_axis.scale))
    layers += marks.search_points(evidence, frame[detailed], x[detailed], y[detailed])
    layers += marks.front_line("search front of the pair", "search_front", x, y, signs, marks.SEARCH_NAMES)
    layers += _unfinished(evidence, x_name, y_name, (all_x, all_y), (x_axis.scale, y_axis.scale))
    if confirmed is not None:
        places = np.array(confirmed.x), np.array(confirmed.y)
        layers += marks.front_line("confirmed front of the pair", "confirmed", *places, signs, (confirmed.name,))
        layers.append(confirmed)
    title = f"{metric_label(y_name)} against {metric_label(x_name).lower()}"
    return Panel(x=x_axis, y=y_axis, layers=tuple(layers), title=title)


def _unfinished(
    evidence: Evidence,
    x_name: str,
    y_name: str,
    values: tuple[marks.Values, marks.Values],
    scales: tuple[marks.Scale, marks.Scale],
) -> list[Layer]:
    frame = evidence.unfinished
    if not len(frame):
        return []
    outcomes = frame["outcome"].unique().tolist()
    drawn, rules = [], []
    # places side by side along x only: one step in both would make a diagonal
    for which, name, complete, scale, step in zip(
        ("x", "y"), (x_name, y_name), values, scales, (0.05, 0.0), strict=True
    ):
        spent = marks.read_used(frame, name)
        edge = marks.place_edge(np.append(complete, spent), METRICS[name].sign, scale, outcomes, step)
        drawn.append(marks.fill_with_edge(spent, frame, edge))
        rules += [marks.make_rule("x" if which == "x" else "y", edge)] if np.isnan(spent).any() else []
    return [*rules, *marks.outcome_points(evidence, frame, *drawn)]


def _caption(evidence: Evidence) -> str:
    num_search = len(evidence.search)
    parts = marks.describe_search(num_search)
    num_detailed = int(evidence.search["detailed"].sum())
    if num_search > num_detailed:
        parts += f" ({num_detailed:,} of them as single points, all as the density behind)"
    if evidence.num_confirmed:
        parts += f"; {format_count(evidence.num_confirmed, 'configuration')} trained again with fresh seeds"
    else:
        parts += "; nothing is confirmed with fresh seeds"
    parts += _quality_warnings(evidence)
    return (
        f"{parts}. Lines are the Pareto fronts of the two objectives shown. Trials that did not "
        "complete are at the time and memory they had used, or, where nothing was measured, beyond the thin line."
    )


def _quality_warnings(evidence: Evidence) -> str:
    num = int(np.sum(read_text(evidence.search, "quality_flags") != ""))
    if not num:
        return ""
    return f". {format_count(num, 'search trial')} with quality warnings, which their hover texts name"
