"""Memory breakdown of a step: estimates by part, with measurements."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from reports.evidence import Evidence, keep_finite
from reports.figure import Absent, Axis, Figure, Layer, Panel, Points
from reports.figures.marks import Rows, Values, device_limits, stack_bars, to_floats
from reports.labels import format_value
from sweep.analysis.costs import parse_shapes
from sweep.analysis.statistics import read_numbers, read_text
from sweep.config.units import format_count
from sweep.records.probe_record import MEMORY_LABELS, MEMORY_PARTS

TITLE = "Memory breakdown"
MAX_PANELS = 6
MAX_ROWS = 16
_NEAR = 20  # times what is drawn: a limit beyond that would press everything against the axis


@dataclass(frozen=True, kw_only=True)
class _Estimates:
    """Every shape whose memory was estimated: its facts, ``parts`` in bytes (shape ``[n, 6]``), the peak that was
    ``measured`` (NaN where nothing of it ran) and the number of its trial in ``trials`` (-1 where there is none)."""

    facts: list[dict[str, Any]]
    parts: Values
    measured: Values
    trials: Rows

    @property
    def errors(self) -> Values:
        """How far each estimate is off, as a share of what was measured; only of what ran."""
        return keep_finite(np.abs(self.parts.sum(axis=1) / self.measured - 1))


def make_memory_breakdown(evidence: Evidence) -> list[Figure] | Absent:
    """A panel for each model with a bar for each micro batch, the device's limit, and how far the estimates are off."""
    found = _estimates(evidence)
    if not found.facts:
        return Absent(
            TITLE,
            "requires memory estimates, which a run adds at its end where training took a minute or longer: run the "
            "study again. sweep estimate shows them without a study.",
        )
    limits = read_numbers(evidence.frames.environments, "device_memory_bytes")
    limits = np.unique(limits[limits > 0])  # a processor has none of its own
    panels = [_panel(found, rows, name, limits) for name, rows in _groups(found.facts)]
    return [Figure(name="memory_parts", title=TITLE, caption=_caption(found, limits), panels=tuple(panels))]


def _estimates(evidence: Evidence) -> _Estimates:
    probes = evidence.frames.probes
    every = np.stack([read_numbers(probes, f"forecast_{part}_bytes") for part in MEMORY_PARTS], axis=1)
    rows = np.flatnonzero(np.isfinite(every).all(axis=1))
    probes = probes.iloc[rows]
    complete = evidence.trials[(evidence.trials["outcome"] == "complete").to_numpy(dtype=bool)]
    peaks, numbers = read_numbers(complete, "peak_memory_bytes"), complete["number"].to_numpy(dtype=np.int64)
    places = dict(zip(_shapes_on_devices(probes), range(len(rows)), strict=True))
    of_shape = np.array([places.get(each, -1) for each in _shapes_on_devices(complete)], dtype=np.int64)
    of_shape[~np.isfinite(peaks)] = -1
    measured, owners = read_numbers(probes, "peak_memory_bytes"), np.full(len(rows), -1, dtype=np.int64)
    for row in np.unique(of_shape[of_shape >= 0]):
        at = np.flatnonzero(of_shape == row)
        measured[row], owners[row] = np.median(peaks[at]), numbers[at[0]]
    return _Estimates(facts=parse_shapes(probes), parts=every[rows], measured=measured, trials=owners)


def _shapes_on_devices(rows: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(read_text(rows, "shape_digest"), read_text(rows, "device"), strict=True))


def _groups(facts: Sequence[dict[str, Any]]) -> list[tuple[str, list[int]]]:
    """The shapes of each model that differ in nothing but the size of a step: those that are most."""
    kinds = [_without_size(each) for each in facts]
    counts = Counter(kinds)
    chosen: dict[str, tuple[tuple[str, Any], ...]] = {}
    for kind in sorted(counts, key=lambda kind: (-counts[kind], repr(kind))):
        chosen.setdefault(str(dict(kind).get("model.name", "")), kind)
    made = []
    for name, kind in sorted(chosen.items())[:MAX_PANELS]:
        rows = [row for row, each in enumerate(kinds) if each == kind]
        made.append((name, sorted(rows, key=lambda row: _size(facts[row]))[:MAX_ROWS]))
    return made


def _without_size(facts: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple((key, value) for key, value in facts.items() if key not in ("batch.micro", "batch.accumulation"))


def _size(facts: dict[str, Any]) -> tuple[int, int]:
    return int(facts.get("batch.micro", 0)), int(facts.get("batch.accumulation", 1))


def _panel(found: _Estimates, rows: list[int], name: str, limits: Values) -> Panel:
    labels = [_label(found.facts[row]) for row in rows]
    stacked = []
    for part, lengths, every in zip(MEMORY_PARTS, found.parts[rows].T, found.parts.T, strict=True):
        if every.max() > 0:  # used by any model, so that the legend has one order
            shown = [f"{MEMORY_LABELS[part]} {format_value('bytes', length)}" for length in lengths]
            texts = [f"{name}, micro batch {label}: {text}" for label, text in zip(labels, shown, strict=True)]
            stacked.append((MEMORY_LABELS[part], part, lengths, texts))
    near = limits[limits < _NEAR * found.parts[rows].sum(axis=1).max()]
    layers: list[Layer] = [*stack_bars(stacked), *_measured(found, rows, labels), *device_limits("x", near)]
    axis = Axis(label="", ticks=tuple((float(place), label) for place, label in enumerate(labels)))
    x_axis = Axis(label="Memory of a step", unit="bytes")
    return Panel(x=x_axis, y=axis, layers=tuple(layers), title=f"{name}, by micro batch")


def _label(facts: dict[str, Any]) -> str:
    micro, several = _size(facts)
    return f"{micro}, accumulated" if several > 1 else str(micro)


def _measured(found: _Estimates, rows: list[int], labels: list[str]) -> list[Points]:
    places = [place for place, row in enumerate(rows) if np.isfinite(found.measured[row])]
    if not places:
        return []
    peaks = [float(found.measured[rows[place]]) for place in places]
    texts = (
        f"Micro batch {labels[place]}: measured {format_value('bytes', peak)}, estimated "
        f"{format_value('bytes', float(found.parts[rows[place]].sum()))}"
        for place, peak in zip(places, peaks, strict=True)
    )
    owners = tuple(int(found.trials[rows[place]]) for place in places)
    trials, up = owners if min(owners) >= 0 else (), to_floats(places)
    return [Points(name="measured peak", role="measured", x=tuple(peaks), y=up, texts=tuple(texts), trials=trials)]


def _caption(found: _Estimates, limits: Values) -> str:
    num_shapes = format_count(len(found.facts), "shape")
    text = f"Bars: estimates without training for {num_shapes} (model, micro batch, precision, optimizer); diamonds: "
    text += "the measured peak. "
    errors = found.errors
    if len(errors):
        worst, middle = (f"{100 * float(each):.1f} %" for each in (errors.max(), np.median(errors)))
        trained = format_count(len(errors), "trained shape")
        text += f"Relative error {middle} (median), {worst} (maximum) over {trained}. "
    else:
        text += "None of them was trained, so the error of the estimates is unknown. "
    if len(limits):
        text += f"The device has {' or '.join(format_value('bytes', float(limit)) for limit in limits)}. "
    return f"{text}Each model is shown with its most frequent settings; learning rate and seed do not affect memory."
