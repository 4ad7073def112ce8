"""The map of batch size against learning rate."""

from collections import Counter

import numpy as np
import pandas as pd

from reports.describe import format_column
from reports.evidence import Evidence, keep_finite
from reports.figure import Absent, Axis, Figure, Heat, Layer, Panel, Points
from reports.figures import marks
from reports.figures.positions import GLOBAL_BATCH
from reports.labels import OUTCOME_NAMES, format_metric, format_setting, key_label, metric_label
from sweep.analysis.statistics import read_numbers
from sweep.config.metrics import METRICS
from sweep.config.units import format_count

RATE = "optimizer.lr"
MAX_BATCHES = 14
NUM_RATES = 10
MAX_MODELS = 4
TITLE = "Batch size against learning rate"


def make_heat_map(evidence: Evidence) -> list[Figure] | Absent:
    """The median of the first quality objective by effective batch size and learning rate, a panel for each model."""
    objective = next((name for name in evidence.objectives if not METRICS[name].is_cost), evidence.objectives[0])
    ended, measured = evidence.unfinished, np.isfinite(read_numbers(evidence.search, objective))
    trials = evidence.search[measured]
    both = pd.concat([trials, ended])
    batches = _bins(read_numbers(both, GLOBAL_BATCH), MAX_BATCHES)
    rates = _bins(read_numbers(both, f"config.{RATE}"), NUM_RATES)
    if len(batches) < 3 or len(rates) < 3 or not len(keep_finite(read_numbers(trials, objective))):
        return Absent(TITLE, "requires trials at two or more batch sizes and learning rates: sweep both.")
    models = sorted(set(format_column(evidence.search, "model.name"))) if "model.name" in evidence.swept else [""]
    if len(models) > MAX_MODELS:
        models = [""]
    cells = _Cells(evidence, objective, batches, rates)
    panels = [cells.make_panel(_of(trials, model), _of(ended, model), model) for model in models]
    caption = (
        f"{marks.describe_search(len(measured))}. Color: the median "
        f"{metric_label(objective).lower()} of a cell; its hover text gives n and the best trial. Marks: cells in "
        "which no trial completed."
    )
    return [Figure(name="batch_and_rate", title=TITLE, caption=caption, panels=tuple(panels))]


def _of(frame: pd.DataFrame, model: str) -> pd.DataFrame:
    # an empty list of truths would choose columns
    return frame[np.array(format_column(frame, "model.name"), dtype=object) == model] if model else frame


def _bins(values: marks.Values, limit: int) -> marks.Values:
    """Edges of cells on a logarithmic scale, each distinct value a cell of its own where there are few."""
    found = np.unique(keep_finite(values[values > 0]))
    if not len(found):
        return found
    if len(found) > limit:
        return np.geomspace(found[0], found[-1] * (1 + 1e-9), limit + 1)
    between = np.sqrt(found[1:] * found[:-1])
    return np.concatenate([[found[0] / 2], between, [found[-1] * 2]])


class _Cells:
    """The cells of one figure: batches along x, rates along y."""

    def __init__(self, evidence: Evidence, objective: str, batches: marks.Values, rates: marks.Values) -> None:
        self.evidence, self.objective = evidence, objective
        self.batches, self.rates = batches, rates
        reached = keep_finite(read_numbers(evidence.search, objective))
        self.span = (float(reached.min()), float(reached.max()))  # of single trials, so at least that of the medians

    def make_panel(self, trials: pd.DataFrame, ended: pd.DataFrame, title: str) -> Panel:
        """The panel of the complete ``trials`` and of those that ``ended`` otherwise."""
        cells = self._members(trials)
        layers: list[Layer] = [self._heat(cells, trials)] if cells else []
        layers += self._failures(self._members(ended), ended, set(cells))
        every = self.evidence.trials
        x_ticks = _ticks(self.batches, read_numbers(every, GLOBAL_BATCH))
        y_ticks = _ticks(self.rates, read_numbers(every, f"config.{RATE}"))
        x_axis, y_axis = Axis(label=key_label(GLOBAL_BATCH), ticks=x_ticks), Axis(label=key_label(RATE), ticks=y_ticks)
        return Panel(x=x_axis, y=y_axis, layers=tuple(layers), title=title)

    def _members(self, frame: pd.DataFrame) -> dict[tuple[int, int], list[int]]:
        """Rows of ``frame`` by their cell (row, column)."""
        at = np.searchsorted(self.batches, read_numbers(frame, GLOBAL_BATCH), side="right") - 1
        up = np.searchsorted(self.rates, read_numbers(frame, f"config.{RATE}"), side="right") - 1
        inside = (at >= 0) & (at < len(self.batches) - 1) & (up >= 0) & (up < len(self.rates) - 1)
        members: dict[tuple[int, int], list[int]] = {}
        for row in np.flatnonzero(inside):
            members.setdefault((int(up[row]), int(at[row])), []).append(int(row))
        return members

    def _heat(self, cells: dict[tuple[int, int], list[int]], trials: pd.DataFrame) -> Heat:
        shape = (len(self.rates) - 1, len(self.batches) - 1)
        values = np.full(shape, None, dtype=object)
        texts, numbers = np.full(shape, "", dtype=object), np.full(shape, -1, dtype=object)
        y, names = read_numbers(trials, self.objective), marks.trial_numbers(trials)
        for cell, rows in cells.items():
            best = min(rows, key=lambda row: (METRICS[self.objective].sign * y[row], row))
            values[cell], numbers[cell] = float(np.nanmedian(y[rows])), names[best]
            shown = [format_metric(self.objective, value) for value in (values[cell], y[best])]
            texts[cell] = f"{format_count(len(rows), 'trial')}, median {shown[0]}\nbest {shown[1]}: trial {names[best]}"
        tables = {"values": values, "texts": texts, "trials": numbers}
        members = ((names[row], *cell) for cell, rows in cells.items() for row in rows)
        return Heat(
            name=f"median {metric_label(self.objective).lower()}",
            role="heat",
            unit=METRICS[self.objective].unit,
            members=tuple(member for member in members if member[0] in self.evidence.texts),
            span=self.span,
            **{name: tuple(map(tuple, table)) for name, table in tables.items()},
        )

    def _failures(
        self, cells: dict[tuple[int, int], list[int]], ended: pd.DataFrame, complete: set[tuple[int, int]]
    ) -> list[Points]:
        worst: dict[str, list[tuple[int, int, int]]] = {}
        outcome, names = ended["outcome"].tolist(), marks.trial_numbers(ended)
        for (row, at), rows in sorted(cells.items()):
            if (row, at) not in complete:
                usual = Counter(outcome[each] for each in rows).most_common(1)[0][0]
                worst.setdefault(usual, []).append((at, row, names[rows[-1]]))
        return [
            Points(
                name=f"{OUTCOME_NAMES[name]}, none complete", role=name, x=marks.to_floats([at for at, _, _ in places]),
                y=marks.to_floats([row for _, row, _ in places]),
                texts=tuple(self.evidence.texts[number] for _, _, number in places),
                trials=tuple(number for _, _, number in places),
            )
            for name, places in worst.items()
        ]  # fmt: skip


def _ticks(edges_of: marks.Values, values: marks.Values) -> tuple[tuple[float, str], ...]:
    inside = np.unique(keep_finite(values[values > 0]))
    few = len(inside) == len(edges_of) - 1
    middles = inside if few else np.sqrt(edges_of[1:] * edges_of[:-1])
    step = 1 if len(middles) <= 12 else 2
    return tuple(
        (float(i), format_setting(float(f"{v:.2g}" if v < 1 else f"{v:.4g}")))
        for i, v in list(enumerate(middles))[::step]
    )
