"""The list of figures, in the order of the report, and what a panel shows as a sentence."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

from reports.evidence import Evidence
from reports.figure import Absent, Bars, Figure, Panel
from reports.figures.answer import make_answer
from reports.figures.batch import make_batch_regimes, make_device, make_heat_map, make_memory, make_throughput
from reports.figures.costs import make_memory_breakdown, make_outcome_map, make_outcomes, make_time_ledger
from reports.figures.marks import GLOBAL_BATCH
from reports.figures.trials import make_curves, make_fronts, make_hypervolume, make_importance, make_noise, make_slices
from reports.labels import OUTCOME_NAMES, format_effect, format_estimate, format_value, is_too_uncertain, metric_label
from sweep.analysis.answer import BatchAnswer, TunedBatch
from sweep.analysis.findings import UNSETTLED
from sweep.analysis.statistics import Interval
from sweep.config.trial import key_label

# To add a figure: a function from the evidence to figures, or to what must be recorded for it, and a line in its part
# of the page.
GROUPS: dict[str, tuple[Callable[[Evidence], list[Figure] | Absent], ...]] = {
    "Trade-offs": (make_fronts, make_hypervolume),
    "Batch size and learning rate": (
        make_heat_map,
        make_importance,
        make_slices,
        make_curves,
        make_noise,
        make_batch_regimes,
    ),
    "Memory and throughput": (make_throughput, make_memory, make_memory_breakdown, make_device, make_time_ledger),
    "Evidence and records": (make_outcomes, make_outcome_map),
}


class ReportFigures(NamedTuple):
    """Every figure that the evidence can fill, and those that it cannot; ``answer`` is the one of the first screen."""

    answer: Figure | Absent
    figures: list[Figure]
    absent: list[Absent]


def make_figures(evidence: Evidence, ready: Callable[[Figure], None] | None = None) -> ReportFigures:
    """The figures in the order of the report, and what to record for the missing ones. ``ready`` is called with
    each figure as soon as it is made."""
    answer = make_answer(evidence)
    made = ReportFigures(answer, [], [answer] if isinstance(answer, Absent) else [])
    if ready is not None and isinstance(answer, Figure):
        ready(answer)
    for group, make in ((group, make) for group, makers in GROUPS.items() for make in makers):
        figures = make(evidence)
        if isinstance(figures, Absent):
            made.absent.append(figures)
            continue
        for figure in figures:
            panels = tuple(replace(panel, finding=_state(figure.name, panel, evidence)) for panel in figure.panels)
            made.figures.append(replace(figure, group=group, panels=panels))
            if ready is not None:
                ready(made.figures[-1])
    return made


# Of a tuned batch size: where the answer has a metric, and the words for the best of it.
_TUNED: Mapping[str, tuple[Callable[[TunedBatch], Interval], str]] = {
    "val_accuracy": (lambda point: point.accuracy, "highest"),
    "train_seconds": (lambda point: point.seconds, "shortest"),
    "peak_memory_bytes": (lambda point: point.memory_bytes, "lowest"),
}


def _state(name: str, panel: Panel, evidence: Evidence) -> str:
    """What a panel of the figure ``name`` shows as a sentence, where the answer settles it or where it is a plain
    number; "" otherwise."""
    if name.startswith("slices_"):
        batch, metric = evidence.answer.batch_size, name.removeprefix("slices_")
        if batch is None or panel.x.label != key_label(GLOBAL_BATCH):
            return ""
        settled = _find_settled(batch, "equally_good", "largest_without_loss") if metric == "val_accuracy" else ""
        return settled or _describe_best(batch, metric)
    state = _STATES.get(name)
    return state(panel, evidence) if state else ""


def _find_settled(batch: BatchAnswer, *names: str) -> str:
    return next((said.text for said in batch.statements if said.name in names and said.is_settled), "")


def _describe_best(batch: BatchAnswer, metric: str) -> str:
    """Which tuned batch size has the best estimate of ``metric``, among those with fresh seeds."""
    if metric not in _TUNED:
        return ""
    read, word = _TUNED[metric]
    points = [point for point in batch.curve if point.num_seeds and math.isfinite(read(point).median)]
    if len(points) < 2:
        return ""
    best = (max if word == "highest" else min)(points, key=lambda point: read(point).median)
    shown, interval = format_estimate(metric, *read(best))
    value = f"{shown} ({interval})" if interval else shown
    return (
        f"Of the effective batch sizes with fresh seeds, {best.batch} ({best.model}) has the {word} estimate of "
        f"{metric_label(metric).lower()}: {value}."
    )


def _state_front(panel: Panel, evidence: Evidence) -> str:
    batch = evidence.answer.batch_size
    axes = metric_label("train_seconds"), metric_label("val_accuracy")
    return _find_settled(batch, "use") if batch and (panel.x.label, panel.y.label) == axes else ""


def _state_rates(panel: Panel, evidence: Evidence) -> str:
    batch = evidence.answer.batch_size
    models = [model for model in batch.models if panel.title in ("", model.model)] if batch else []
    if len(models) != 1 or models[0].rate_lack:
        return ""
    power = models[0].rate_power
    if is_too_uncertain("exponent", power.low, power.high):
        return ""
    effect = format_effect("exponent", *power[:3])
    return f"The best learning rate of {models[0].model} grows as the power {effect} of the effective batch size."


def _state_importance(panel: Panel, _evidence: Evidence) -> str:
    names = dict(panel.y.ticks)
    certain = [
        (length, y)
        for layer in panel.layers
        if isinstance(layer, Bars) and layer.name == "more than chance"
        for length, y in zip(layer.lengths, layer.y, strict=True)
    ]
    if not certain:
        return f"No parameter explains more of {panel.title.lower()} than chance."
    share, y = max(certain)
    return (
        f"{names[y].capitalize()} explains the largest share of {panel.title.lower()}: {100 * share:.0f} % of the "
        "variance of its ranks."
    )


def _state_fact(name: str, evidence: Evidence) -> str:
    fact = evidence.answer.facts.get(name)
    if fact is None or not math.isfinite(fact.value):
        return ""
    detail = f" ({fact.detail})" if fact.detail else ""
    return f"{fact.statement}: {format_value(fact.unit, fact.value)}{detail}."


def _state_memory(_panel: Panel, evidence: Evidence) -> str:
    claim = next(claim for claim in evidence.claims if claim.name == "memory_linear")
    if claim.verdict in UNSETTLED:
        return _state_fact("largest_micro_batch", evidence)
    effect = format_effect(claim.unit, claim.effect, claim.low, claim.high)
    return f"{claim.verdict.capitalize()}: {claim.statement} Measured: {effect}."


def _state_outcomes(_panel: Panel, evidence: Evidence) -> str:
    counts = evidence.count_outcomes()
    total, complete = sum(counts.values()), counts.get("complete", 0)
    others = [f"{count:,} {OUTCOME_NAMES.get(name, name)}" for name, count in counts.items() if name != "complete"]
    return f"{complete:,} of {total:,} trials are complete{'; ' if others else ''}{', '.join(others)}."


def _state_time(panel: Panel, _evidence: Evidence) -> str:
    spent = {layer.name: sum(layer.lengths) for layer in panel.layers if isinstance(layer, Bars)}
    name = max(spent, key=lambda name: spent[name])
    total = sum(spent.values())
    share = 100 * spent[name] / total
    return f"{name.capitalize()} took {share:.0f} % of the {format_value('seconds', total)} of all trials."


_STATES: Mapping[str, Callable[[Panel, Evidence], str]] = {
    "fronts": _state_front,
    "batch_and_rate": _state_rates,
    "importances": _state_importance,
    "throughput": lambda _panel, evidence: _state_fact("throughput_knee", evidence),
    "memory": _state_memory,
    "noise_scale": lambda _panel, evidence: _state_fact("noise_scale", evidence),
    "outcomes": _state_outcomes,
    "time_ledger": _state_time,
}
