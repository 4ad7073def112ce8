"""The list of figures, in the order of the report, and what the answer says of one."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from reports.evidence import Evidence
from reports.figure import Absent, Figure
from reports.figures.answer import make_answer
from reports.figures.batch import make_batch_regimes, make_heat_map, make_memory, make_throughput
from reports.figures.costs import make_memory_breakdown, make_time_ledger
from reports.figures.trials import make_curves, make_fronts, make_noise, make_slices
from reports.labels import format_value

# To add a figure: a function from the evidence to figures, or to what must be recorded for it, and a line in its part
# of the page.
GROUPS: dict[str, tuple[Callable[[Evidence], list[Figure] | Absent], ...]] = {
    "Trade-offs": (make_fronts,),
    "Batch size and learning rate": (make_heat_map, make_slices, make_curves, make_noise, make_batch_regimes),
    "Memory and throughput": (make_throughput, make_memory, make_memory_breakdown, make_time_ledger),
    "Evidence and records": (),
}
# The statements of the answer that a figure shows, the first settled one of them heads it; and the fact.
_STATEMENTS = {"fronts": ("use",), "slices": ("equally_good", "largest_without_loss")}
_FACTS = {"throughput": "throughput_knee", "memory": "largest_micro_batch", "noise_scale": "noise_scale"}


class ReportFigures(NamedTuple):
    """Every figure that the evidence can fill, and those that it cannot; ``answer`` is the one of the first screen."""

    answer: Figure | Absent
    figures: list[Figure]
    absent: list[Absent]


def make_figures(evidence: Evidence, begin_drawing: Callable[[Figure], None] = lambda _figure: None) -> ReportFigures:
    """The figures in the order of the report, and what to record for the missing ones. ``begin_drawing`` is called with
    each figure as soon as it is made, with the answer's first."""
    answer = make_answer(evidence)
    if isinstance(answer, Figure):
        begin_drawing(answer)
    made = ReportFigures(answer, [], [answer] if isinstance(answer, Absent) else [])
    for group, make in ((group, make) for group, makers in GROUPS.items() for make in makers):
        figures = make(evidence)
        if isinstance(figures, Absent):
            made.absent.append(figures)
            continue
        for figure in (replace(each, group=group, finding=_find(each.name, evidence)) for each in figures):
            made.figures.append(figure)
            begin_drawing(figure)
    return made


def _find(name: str, evidence: Evidence) -> str:
    """What the answer says of the figure ``name``; "" where it settles nothing."""
    batch, fact = evidence.answer.batch_size, evidence.answer.facts.get(_FACTS.get(name, ""))
    if fact is not None and math.isfinite(fact.value):
        detail = f" ({fact.detail})" if fact.detail else ""
        return f"{fact.statement}: {format_value(fact.unit, fact.value)}{detail}."
    statements = batch.statements if batch else ()
    names = _STATEMENTS.get("slices" if name == f"slices_{evidence.answer.quality.column}" else name, ())
    return next((said.text for said in statements if said.name in names and said.is_settled), "")
