"""Where in the space the trials ended how."""

import numpy as np
import pandas as pd

from reports.evidence import Evidence
from reports.figure import Absent, Axis, Figure, Layer, Panel
from reports.figures import marks
from reports.figures.positions import parameter_axis, swept_parameters
from reports.labels import OUTCOME_NAMES
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.config.units import format_count

TITLE = "Outcomes over the search space"
MAX_COMPLETE = 300


def make_outcome_map(evidence: Evidence) -> list[Figure] | Absent:
    """A panel for each parameter with a row for each outcome; only where a trial ended in another way than complete."""
    complete = evidence.detailed[(evidence.detailed["outcome"] == "complete").to_numpy(dtype=bool)]
    frame = pd.concat([evidence.unfinished, complete.tail(MAX_COMPLETE)])
    present = [name for name in OUTCOME_NAMES if name and (frame["outcome"] == name).any()]
    if not set(present) - {"complete"}:
        return Absent(TITLE, "has nothing to show: every trial that ended is complete.")
    axis = Axis(label="", ticks=tuple((float(row), OUTCOME_NAMES[name]) for row, name in enumerate(present)))
    # a fixed spread by trial number, so that equal settings do not hide each other; not that of the choices along x
    spread = (read_numbers(frame, "number") * 0.7548777 % 1.0 - 0.5) * 0.5
    rows = np.array([present.index(name) for name in frame["outcome"]], dtype=np.float64) + spread
    panels = []
    for key in swept_parameters(evidence):
        x_axis, place = parameter_axis(evidence, key)
        layers: list[Layer] = list(marks.outcome_points(evidence, frame, place(frame), rows))
        if layers:
            panels.append(Panel(x=x_axis, y=axis, layers=tuple(layers)))
    if not panels:
        return Absent(TITLE, "requires a swept parameter.")
    caption = f"{format_count(len(frame), 'trial')}, by outcome and parameter value. {_shares(evidence)}"
    return [Figure(name="where_outcomes", title=TITLE, caption=caption, panels=tuple(panels))]


def _shares(evidence: Evidence) -> str:
    ended = {name: count for name, count in evidence.outcomes().items() if name}
    total = sum(ended.values())
    return f"{ended.get('complete', 0) / total:.0%} of all {total:,} that ended are complete."
