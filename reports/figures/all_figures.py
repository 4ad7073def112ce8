"""The list of figures, in the order of the report."""

from collections.abc import Callable
from typing import NamedTuple

from reports.evidence import Evidence
from reports.figure import Absent, Figure
from reports.figures.by_micro import device, memory, throughput
from reports.figures.cloud import cloud
from reports.figures.curves import curves
from reports.figures.fronts import fronts
from reports.figures.heat import heat
from reports.figures.hypervolume import hypervolume
from reports.figures.importance import importances
from reports.figures.ledger import outcomes, time_ledger
from reports.figures.memory_parts import memory_parts
from reports.figures.noise import noise
from reports.figures.outcome_map import where
from reports.figures.slices import slices

# To add a figure: a function from the evidence to figures, or to what must be recorded for it, and a line here.
FIGURES: tuple[Callable[[Evidence], list[Figure] | Absent], ...] = (
    fronts, cloud, hypervolume, heat, importances, slices, throughput, memory, memory_parts, device, curves, noise,
    outcomes, where, time_ledger,
)  # fmt: skip


class Drawn(NamedTuple):
    """Every figure that the evidence can fill, and those that it cannot."""

    figures: list[Figure]
    absent: list[Absent]


def drawn(evidence: Evidence, ready: Callable[[Figure], None] | None = None) -> Drawn:
    """The figures in the order of the report, and what to record for the missing ones. ``ready`` hears of each figure
    as soon as it is made."""
    made = Drawn([], [])
    for make in FIGURES:
        found = make(evidence)
        if isinstance(found, Absent):
            made.absent.append(found)
            continue
        made.figures.extend(found)
        if ready is not None:
            for figure in found:
                ready(figure)
    return made


def all_figures(evidence: Evidence) -> list[Figure]:
    """Every figure that the evidence can fill."""
    return drawn(evidence).figures
