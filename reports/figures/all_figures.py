"""The list of figures, in the order of the report."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from reports.evidence import Evidence
from reports.figure import Absent, Figure
from reports.figures.batch_regimes import make_batch_regimes
from reports.figures.by_micro import make_device, make_memory, make_throughput
from reports.figures.curves import make_curves, make_noise
from reports.figures.fronts import make_fronts
from reports.figures.heat import make_heat_map
from reports.figures.hypervolume import make_hypervolume
from reports.figures.importance import make_importance
from reports.figures.ledger import make_outcome_map, make_outcomes, make_time_ledger
from reports.figures.memory_parts import make_memory_breakdown
from reports.figures.panel_findings import add_findings
from reports.figures.slices import make_slices

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
    """Every figure that the evidence can fill, and those that it cannot."""

    figures: list[Figure]
    absent: list[Absent]


def make_figures(evidence: Evidence, ready: Callable[[Figure], None] | None = None) -> ReportFigures:
    """The figures in the order of the report, and what to record for the missing ones. ``ready`` is called with
    each figure as soon as it is made."""
    figures = ReportFigures([], [])
    for group, make in ((group, make) for group, makers in GROUPS.items() for make in makers):
        found = make(evidence)
        if isinstance(found, Absent):
            figures.absent.append(found)
            continue
        placed = [add_findings(replace(figure, group=group), evidence) for figure in found]
        figures.figures.extend(placed)
        if ready is not None:
            for figure in placed:
                ready(figure)
    return figures
