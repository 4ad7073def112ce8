"""Slices: every swept parameter, and the effective batch size, against every objective."""

from dataclasses import replace

import numpy as np
import pandas as pd

from reports.evidence import Evidence, keep_finite
from reports.figure import Absent, Figure, Intervals, Layer, Panel
from reports.figures import marks
from reports.figures.positions import AxisPosition, parameter_axis, swept_parameters
from reports.labels import metric_label
from sweep.analysis.statistics import Mask, read_numbers
from sweep.config.metrics import METRICS

# A slice has many panels; more marks than this in each make a page slow.
MAX_MARKS = 600


def make_slices(evidence: Evidence) -> list[Figure] | Absent:
    """A figure for each objective with a panel for each parameter."""
    keys = swept_parameters(evidence)
    figures = []
    for objective in evidence.objectives:
        panels = [panel for key in keys if (panel := _panel(evidence, key, objective))]
        if panels:
            name, title = f"slices_{objective}", f"{metric_label(objective)} by parameter"
            figures.append(Figure(name=name, title=title, caption=_caption(evidence), panels=tuple(panels)))
    return figures or Absent("Objectives by parameter", "requires a trial that measured an objective.")


def _panel(evidence: Evidence, key: str, objective: str) -> Panel | None:
    x_axis, place = parameter_axis(evidence, key)
    frame = evidence.search
    is_shown = _shown(frame)
    x, y = place(frame, is_shown), read_numbers(frame, objective)
    confirmed = marks.confirmed_marks(evidence, objective, objective)
    all_y = np.append(y, confirmed.y if confirmed else ())
    ended = evidence.unfinished
    if not len(keep_finite(np.append(all_y, marks.read_used(ended, objective)))):
        return None
    y_axis = marks.metric_axis(objective, all_y)
    layers: list[Layer] = []
    if not is_shown.all() and not x_axis.ticks and np.isfinite(x + y).any():
        layers.append(marks.make_density(x, y, x_axis.scale, y_axis.scale))
    layers += marks.search_points(evidence, frame, np.where(is_shown, x, np.nan), y)
    layers += _unfinished(evidence, ended, place, objective, all_y, y_axis.scale)
    if confirmed is not None:
        layers += _confirmed(evidence, place, objective, confirmed)
    return Panel(x=x_axis, y=y_axis, layers=tuple(layers))


def _shown(frame: pd.DataFrame) -> Mask:
    """The trials nearest to the front and the latest; shape ``[len(frame)]``."""
    detailed, rank = frame["detailed"].to_numpy(dtype=bool), frame["rank"].to_numpy()
    if len(frame) <= MAX_MARKS:
        return np.asarray(detailed, dtype=np.bool_)
    chosen = np.zeros(len(frame), dtype=np.bool_)
    chosen[np.argsort(np.where(rank < 0, np.inf, rank), kind="stable")[: MAX_MARKS // 2]] = True
    chosen[-(MAX_MARKS // 2) :] = True
    return np.asarray(chosen & detailed, dtype=np.bool_)


def _unfinished(
    evidence: Evidence,
    ended: pd.DataFrame,
    place: AxisPosition,
    objective: str,
    all_y: marks.Values,
    scale: marks.Scale,
) -> list[Layer]:
    x, used = place(ended), marks.read_used(ended, objective)
    outcomes = ended["outcome"].unique().tolist()
    edge = marks.place_edge(np.append(all_y, used), METRICS[objective].sign, scale, outcomes, step=0.04)
    rules = [marks.make_rule("y", edge)] if np.isnan(used[np.isfinite(x)]).any() else []
    return [*rules, *marks.outcome_points(evidence, ended, x, marks.fill_with_edge(used, ended, edge))]


def _confirmed(evidence: Evidence, place: AxisPosition, objective: str, layer: Intervals) -> list[Layer]:
    x = place(evidence.confirmed)[np.isfinite(read_numbers(evidence.confirmed, objective))]
    at = marks.to_floats(x)
    if not np.isfinite(x).all():
        return []
    return [replace(layer, x=at, x_low=at, x_high=at)]


def _caption(evidence: Evidence) -> str:
    text = f"{marks.describe_search(len(evidence.search))}."
    text = f"{text[:-1]}; other parameters vary too." if len(evidence.swept) > 1 else text
    if len(evidence.search) > MAX_MARKS:
        text += f" At most {MAX_MARKS} of them are drawn: those nearest to the front and the latest."
    return (
        f"{text} Trials that did not complete are at the time or memory they had used, or, where nothing was measured, "
        "beyond the thin line."
    )
