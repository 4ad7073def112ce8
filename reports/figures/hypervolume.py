"""Hypervolume of the search front over time and trials."""

import numpy as np

from reports.evidence import Evidence
from reports.figure import Absent, Axis, Figure, Layer, Lines, Panel
from reports.figures import marks
from sweep.analysis.comparable import objective_signs, objective_table
from sweep.analysis.statistics import hypervolume as volume
from sweep.analysis.statistics import non_dominated, read_numbers, read_text, reference_point
from sweep.config.units import format_count

NUM_MOMENTS = 200
TITLE = "Hypervolume over the search"


def make_hypervolume(evidence: Evidence) -> list[Figure] | Absent:
    """The share of the final search front's hypervolume that was reached, over time spent and over trials."""
    frame, objectives = evidence.search, evidence.objectives
    scaled = _scaled(evidence)
    rows = np.flatnonzero(np.isfinite(scaled).all(axis=1))
    if len(objectives) < 2 or len(rows) < 2:
        return Absent(TITLE, "requires two objectives and two search trials with both.")
    chosen, values = frame.iloc[rows], scaled[rows]
    signs = objective_signs(objectives)
    moments, share = _growth(values, np.flatnonzero(non_dominated(values, signs)), signs)
    seconds = np.nan_to_num(read_numbers(evidence.trials, "total_seconds"))
    seconds[read_text(evidence.trials, "reused_from") != ""] = 0.0
    panels = []
    for label, unit, amounts in (("Search time", "seconds", seconds), ("Search trials", "", np.ones(len(seconds)))):
        x = _spent(evidence, amounts)[read_numbers(chosen, "number").astype(np.int64)]
        path = marks.make_steps(x[moments], share)  # the volume stays until the next trial has ended
        layers: list[Layer] = [Lines(name="share reached", role="series-0", segments=(path,))]
        front = np.flatnonzero(chosen.iloc[moments]["on_search_front"].to_numpy(dtype=bool))
        members = marks.trial_numbers(chosen.iloc[moments[front]])
        layers += marks.trial_points(
            "on the final search front", "search_front", evidence, members, x[moments[front]], share[front]
        )
        x_axis, y_axis = Axis(label=label, unit=unit), Axis(label="Hypervolume reached", unit="fraction")
        view = label.lower()
        panels.append(Panel(x=x_axis, y=y_axis, layers=tuple(layers), title=f"By {view}", view=view))
    caption = (
        f"{format_count(len(rows), 'complete search trial')}; the time of all search trials counts, complete or not. "
        "Hypervolume: the space between the current front and a reference point 10 % beyond the worst values, with "
        "objectives scaled to their range on their axes. While the curve still rises, more trials improve the front."
    )
    return [Figure(name="hypervolume", title=TITLE, caption=caption, panels=tuple(panels))]


def _scaled(evidence: Evidence) -> marks.Values:
    """The objectives as their axes are drawn: logarithms where they span much; shape ``[n, m]``."""
    table = objective_table(evidence.search, evidence.objectives)
    for index, name in enumerate(evidence.objectives):
        if marks.metric_axis(name, table[:, index]).scale == "log":
            table[:, index] = np.log(table[:, index])
    complete = table[np.isfinite(table).all(axis=1)]
    if not len(complete):
        return table
    low, spread = complete.min(axis=0), np.ptp(complete, axis=0)
    return np.asarray((table - low) / np.where(spread > 0, spread, 1.0))


def _growth(values: marks.Values, front: marks.Rows, signs: list[float]) -> tuple[marks.Rows, marks.Values]:
    """Rows at which the volume is computed (shape ``[k]``), and its share of the final volume there (shape ``[k]``)."""
    reference = reference_point(values, signs)
    moments = np.union1d(np.linspace(0, len(values) - 1, NUM_MOMENTS).astype(np.int64), front[:NUM_MOMENTS])
    best, volumes, begin = values[:0], [], 0
    for moment in moments:
        best = np.concatenate([best, values[begin : moment + 1]])
        best, begin = best[non_dominated(best, signs)], moment + 1
        volumes.append(volume(best, reference, signs))
    return moments, np.array(volumes) / max(volumes[-1], np.finfo(np.float64).tiny)


def _spent(evidence: Evidence, amounts: marks.Values) -> marks.Values:
    # by trial number: the sum of ``amounts`` over the search until that trial had ended
    numbers = read_numbers(evidence.trials, "number").astype(np.int64)
    table = np.zeros(int(numbers.max(initial=0)) + 1)
    table[numbers] = np.cumsum(np.where(read_text(evidence.trials, "phase") == "search", amounts, 0.0))
    return table
