"""The first three objectives in space."""

import numpy as np

from reports.evidence import Evidence
from reports.figure import Absent, Cloud, Figure, Panel
from reports.figures import marks
from reports.labels import metric_label
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.config.units import format_count

TITLE = "Three objectives in one space"


def make_cloud(evidence: Evidence) -> list[Figure] | Absent:
    """Search trials and confirmed medians by the first three objectives."""
    names = evidence.objectives[:3]
    frame = evidence.search[evidence.search["detailed"].to_numpy(dtype=bool)]
    if len(names) < 3 or not len(frame):
        return Absent(TITLE, "requires three objectives and a search trial that completed.")
    y, x, z = (read_numbers(frame, name) for name in names)
    front = frame["on_search_front"].to_numpy(dtype=bool)
    layers = []
    for name, role, chosen in (
        ("search trial (one seed)", "search", ~front), ("on the search front (one seed)", "search_front", front)
    ):  # fmt: skip
        rows = np.flatnonzero(chosen & np.isfinite(x) & np.isfinite(y) & np.isfinite(z))
        if len(rows):
            part = frame.iloc[rows]
            at, up, deep = (marks.to_floats(values[rows]) for values in (x, y, z))
            texts, trials = marks.mark_texts(part, evidence), marks.trial_numbers(part)
            layers.append(Cloud(name=name, role=role, x=at, y=up, z=deep, texts=texts, trials=trials))
    layers += _confirmed(evidence, names)
    if not layers:
        return Absent(TITLE, "requires a trial that measured all three objectives.")
    y_axis, x_axis, z_axis = (marks.metric_axis(name, read_numbers(evidence.search, name)) for name in names)
    caption = (
        f"{format_count(sum(len(layer.x) for layer in layers), 'point')}: search trials with one seed each"
        f"{', confirmed medians' if evidence.num_confirmed else ''}. "
        f"Axes: {', '.join(metric_label(name).lower() for name in names)}. On the page, drag to turn it."
    )
    panel = Panel(x=x_axis, y=y_axis, layers=tuple(layers), z=z_axis)
    return [Figure(name="cloud", title=TITLE, caption=caption, panels=(panel,))]


def _confirmed(evidence: Evidence, names: tuple[str, ...]) -> list[Cloud]:
    y_name, x_name, z_name = names
    pair, depth = marks.confirmed_marks(evidence, x_name, y_name), marks.confirmed_marks(evidence, z_name, z_name)
    if pair is None or depth is None or pair.trials != depth.trials:
        return []
    name, owners = "confirmed: median", pair.trials
    return [Cloud(name=name, role="confirmed", x=pair.x, y=pair.y, z=depth.x, texts=pair.texts, trials=owners)]
