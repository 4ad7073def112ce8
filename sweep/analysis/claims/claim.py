"""A common claim about batch sizes, and what the records show of it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.statistics.estimates import NOTHING, Estimate, Region


class Measurement(NamedTuple):
    """The effect that a claim is about, of ratios its logarithm; ``detail`` names what was compared. ``region`` is what
    the claim allows where that depends on the records, ``reason`` why the claim is not tested where the estimate has no
    error."""

    estimate: Estimate = NOTHING
    detail: str = ""
    region: Region | None = None
    reason: str = ""


def not_tested(reason: str) -> Measurement:
    """No effect, because the records cannot test the claim."""
    return Measurement(reason=reason)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """``region`` is what the statement allows, in ``unit``; ``published`` what others measured; ``settle`` gives what
    to run where the records leave the claim undecided."""

    name: str
    unit: str
    region: Region
    statement: str
    published: str
    measure: Callable[[ComparableTrials], Measurement]
    settle: Callable[[ComparableTrials], str]


def extend_space(key: str, form: str) -> Callable[[ComparableTrials], str]:
    """Settles a claim by a study that varies ``key`` too."""
    return lambda records: records.commands.extend_space(key, form)


def run_variant(suffix: str, fixed: Mapping[str, object], hint: str = "") -> Callable[[ComparableTrials], str]:
    """Settles a claim by the same study with the keys ``fixed``."""
    return lambda records: records.commands.run_variant(suffix, fixed) + hint
