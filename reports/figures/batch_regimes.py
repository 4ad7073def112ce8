"""Steps and samples to a target against the batch, with the critical batch in two ways on the same axis."""

import math

import numpy as np

from reports.evidence import Evidence
from reports.figure import Absent, Axis, Figure, Floats, Intervals, Layer, Lines, Panel, Points, Rule
from reports.figures import marks
from reports.figures.positions import GLOBAL_BATCH
from reports.labels import TOO_UNCERTAIN, is_too_uncertain, key_label
from sweep.analysis.critical_batch import (
    CriticalBatch,
    CriticalBatches,
    Regimes,
    StepsEstimate,
    estimate_critical_batches,
    refit_steps,
)
from sweep.analysis.statistics import Values
from sweep.config.units import format_count

TITLE = "Critical batch size"
_NAMES = {
    "steps": "critical batch by steps to the target",
    "noise": "gradient noise scale over the training",
}
_ROLES = {"steps": "series-1", "noise": "series-2"}
_BEYOND = 4.0  # times the drawn batches, where an interval is cut


def make_batch_regimes(evidence: Evidence) -> list[Figure] | Absent:
    """Steps and samples to the target with the law and its regimes; without it, the other estimates alone."""
    if evidence.candidates is None:
        return Absent(TITLE, "requires a complete trial.")
    found = estimate_critical_batches(evidence.candidates.records)
    known = {name: _batch_of(each) for name, each in found._asdict().items() if not isinstance(each, str)}
    if not known:
        return Absent(TITLE, f"requires one of two measurements. {_list_missing(found)}")
    panels = _draw_law(found.steps, known) if isinstance(found.steps, StepsEstimate) else (_draw_rows(known),)
    caption = " ".join([*(_describe(name, batch) for name, batch in known.items()), _list_missing(found)])
    if isinstance(found.steps, StepsEstimate):
        caption += (
            "Line: the law S = S_min (1 + B_crit / B) of McCandlish et al. 2018; dashed: at both ends of the interval "
            "of B_crit. Dotted: perfect scaling ends where a target takes 20 % more samples than the fewest, maximal "
            "data parallelism begins where it takes 20 % more steps (regimes of Shallue et al. 2018). "
        )
    caption += "The two are not estimates of one number: the first is of whole trainings, the second of single steps."
    return [Figure(name="critical_batch", title=TITLE, caption=caption, panels=panels)]


def _batch_of(found: StepsEstimate | CriticalBatch) -> CriticalBatch:
    return found.batch if isinstance(found, StepsEstimate) else found


def _list_missing(found: CriticalBatches) -> str:
    missing = {name: each for name, each in found._asdict().items() if isinstance(each, str)}
    return "".join(f"{_NAMES[name].capitalize()}: {reason}. " for name, reason in missing.items())


def _describe(name: str, batch: CriticalBatch) -> str:
    interval = ""
    if math.isfinite(batch.low + batch.high) and is_too_uncertain("samples", batch.low, batch.high):
        interval = f" (interval {TOO_UNCERTAIN})"
    elif any(map(math.isfinite, (batch.low, batch.high))):
        interval = f" ({_word(batch.low)} to {_word(batch.high)})"
    return f"{_NAMES[name].capitalize()}: {batch.value:,.0f} samples{interval}; {batch.detail}."


def _word(bound: float) -> str:
    return f"{bound:,.0f}" if math.isfinite(bound) else "not known"


def _draw_law(found: StepsEstimate, known: dict[str, CriticalBatch]) -> tuple[Panel, ...]:
    tuned, law = found.tuned, found.law
    sizes = np.array([*tuned.batches, *(batch.value for batch in known.values())])
    axis = marks.make_batch_axis(key_label(GLOBAL_BATCH), sizes)
    path = np.geomspace(sizes.min(), sizes.max(), 60)
    bounds = [bound for bound in (found.batch.low, found.batch.high) if math.isfinite(bound) and bound > 0]
    ends = [refit_steps(tuned.batches, tuned.steps, bound) for bound in bounds]
    num = format_count(len(tuned.batches), "effective batch size")

    def draw(label: str, power: float) -> Panel:
        # steps times the batch to the ``power``: 0 for steps, 1 for samples
        layers: list[Layer] = [
            Lines(name="law", role="series-0", segments=(_line(path, law.steps_at(path), power),)),
            *_draw_ends([_line(path, end.steps_at(path), power) for end in ends]),
            *_draw_borders(law),
            _draw_tuned(found, power),
            *(_mark(name, batch, law, (sizes.min(), sizes.max()), power) for name, batch in known.items()),
        ]
        return Panel(x=axis, y=Axis(label=label, scale="log"), layers=tuple(layers), title=f"{label}: {num}")

    return draw("Steps to the target", 0.0), draw("Samples to the target", 1.0)


def _line(path: Values, steps: Values, power: float) -> tuple[Floats, Floats]:
    return marks.to_floats(path), marks.to_floats(steps * path**power)


def _draw_ends(segments: list[tuple[Floats, Floats]]) -> list[Lines]:
    name = "law at the ends of the 95 % interval"
    return [Lines(name=name, role="faint", segments=tuple(segments), dashed=True)] if segments else []


def _draw_borders(law: Regimes) -> list[Rule]:
    borders = {"perfect to": law.perfect_until, "maximal from": law.maximal_from}
    return [Rule(axis="x", value=value, text=f"{text} {value:,.0f}") for text, value in borders.items()]


def _draw_tuned(found: StepsEstimate, power: float) -> Points:
    tuned = found.tuned
    heights = tuned.steps * tuned.batches**power
    pairs = zip(tuned.batches, tuned.steps, strict=True)
    texts = tuple(f"effective batch size {batch:,.0f}: {steps:,.0f} steps to the target" for batch, steps in pairs)
    x, y = marks.to_floats(tuned.batches), marks.to_floats(heights)
    return Points(name="fewest steps at this batch", role="complete", x=x, y=y, texts=texts)


def _mark(name: str, batch: CriticalBatch, law: Regimes, span: tuple[float, float], power: float) -> Intervals:
    height = float(law.steps_at(np.array([batch.value]))[0]) * batch.value**power
    return _interval(name, batch, height, span)


def _interval(name: str, batch: CriticalBatch, height: float, span: tuple[float, float]) -> Intervals:
    least, most = span[0] / _BEYOND, span[1] * _BEYOND
    low, high = (bound if math.isfinite(bound) else batch.value for bound in (batch.low, batch.high))
    return Intervals(
        name=_NAMES[name],
        role=_ROLES[name],
        x=(batch.value,),
        y=(height,),
        x_low=(min(max(low, least), batch.value),),
        x_high=(max(min(high, most), batch.value),),
        y_low=(height,),
        y_high=(height,),
        texts=(_describe(name, batch),),
    )


def _draw_rows(known: dict[str, CriticalBatch]) -> Panel:
    # without steps to a target there is no height to draw them at
    values = [bound for batch in known.values() for bound in batch[:3] if math.isfinite(bound)]
    axis = marks.make_batch_axis(key_label(GLOBAL_BATCH), np.array(values))
    ticks = tuple((float(row), _NAMES[name]) for row, name in enumerate(known))
    sizes = [batch.value for batch in known.values()]
    layers = [
        _interval(name, batch, float(row), (min(sizes), max(sizes))) for row, (name, batch) in enumerate(known.items())
    ]
    return Panel(x=axis, y=Axis(label="", ticks=ticks), layers=tuple(layers))
