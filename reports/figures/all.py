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
from reports.figures.slices import slices
from reports.figures.where import where

# To add a figure: a function from the evidence to figures, or to what must be recorded for it, and a line here.
FIGURES: tuple[Callable[[Evidence], list[Figure] | Absent], ...] = (
    fronts, cloud, hypervolume, heat, importances, slices, throughput, memory, memory_parts, device, curves, noise,
    outcomes, where, time_ledger,
)  # fmt: skip


class Drawn(NamedTuple):
    """Every figure that the evidence can fill, and those that it cannot."""

    figures: list[Figure]
    absent: list[Absent]


def drawn(evidence: Evidence) -> Drawn:
    """The figures in the order of the report, and what to record for the missing ones."""
    made = [make(evidence) for make in FIGURES]
    figures = [figure for each in made if not isinstance(each, Absent) for figure in each]
    return Drawn(figures, [each for each in made if isinstance(each, Absent)])


def all_figures(evidence: Evidence) -> list[Figure]:
    """Every figure that the evidence can fill."""
    return drawn(evidence).figures
