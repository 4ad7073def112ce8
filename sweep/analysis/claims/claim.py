"""A common claim about batch sizes, and what the records show of it."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from sweep.analysis.claims.design import Design
from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.costs import num_accumulation
from sweep.analysis.power import POWER
from sweep.analysis.statistics.column_reading import most_common, plain_value, read_numbers, read_text
from sweep.analysis.statistics.estimates import NOTHING, Estimate, Region
from sweep.config.data_sections import BUDGETS
from sweep.config.key_labels import name_key
from sweep.config.metrics import METRICS
from sweep.config.trial_config import Scalar, default_settings
from sweep.config.units import find_unit, join_words

_ACCURACY = ("val_accuracy",)


class Measurement(NamedTuple):
    """The effect that a claim is about, of ratios its logarithm; ``detail`` names what was compared. ``region`` is what
    the claim allows where that depends on the records, ``reason`` why the claim is not tested where the estimate has no
    error."""

    estimate: Estimate = NOTHING
    detail: str = ""
    region: Region | None = None
    reason: str = ""


class NextStep(NamedTuple):
    """What settles a claim: a ``command`` of a shell, and in a ``remark`` what it requires, or what settles the claim
    too. Without a command it is the claim's own study."""

    command: str = ""
    remark: str = ""


def not_tested(reason: str) -> Measurement:
    """No effect, because the records cannot test the claim."""
    return Measurement(reason=reason)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """``region`` is what the statement allows, in ``unit``; ``matters`` the distance from a bound at which an effect
    has to be found (of a ratio: a factor); ``published`` what others measured, with the source;
    ``settle`` gives what to run where the records leave the claim undecided.

    A study tests it only if it varies every key of ``varies`` (``global_batch_size`` is the effective batch size,
    whichever keys it follows from), has every key of ``sets`` at another value than the default in some
    training, and measures one metric of ``metrics``. ``design`` is the smallest such study.
    """

    name: str
    unit: str
    region: Region
    matters: float
    statement: str
    published: str
    measure: Callable[[ComparableTrials], Measurement]
    design: Design
    settle: Callable[[ComparableTrials], NextStep]
    varies: tuple[str, ...] = ()
    sets: tuple[str, ...] = ()
    metrics: tuple[str, ...] = _ACCURACY

    @property
    def is_ratio(self) -> bool:
        """Whether the effect is tested by its logarithm."""
        return find_unit(self.unit).scale == "log"

    def list_distances(self, region: Region | None = None) -> list[tuple[float, float]]:
        """The distances from a bound of the region at which an effect has to be found, on the scale of the test, each
        with the power. In a region with two bounds both have to be rejected, so each with a higher one."""
        low, high = self.scale_bounds(region or self.region)
        matters = math.log(self.matters) if self.is_ratio else self.matters
        if math.isinf(low) or math.isinf(high):
            return [(matters, POWER)]
        return [(matters, POWER), ((high - low) / 2, (1 + POWER) / 2)]

    def scale_bounds(self, region: Region) -> tuple[float, float]:
        """The bounds on the scale of the test."""
        if not self.is_ratio:
            return region.low, region.high
        return math.log(region.low) if region.low > 0 else -math.inf, math.log(region.high)

    def find_lack(self, records: ComparableTrials) -> str:
        """What the records lack so that the claim is not measured, with what a study would have to do; "" where they
        lack nothing."""
        is_measured = any(np.isfinite(read_numbers(records.done, name)).any() for name in self.metrics)
        lack = describe_needs(
            [key for key in self.varies if not _is_varied(records, key)],
            [key for key in self.sets if not _is_set(records, key)],
            () if is_measured else self.metrics,
        )
        return f"not measured by this study: to test it, a study has to {lack}" if lack else ""

    @property
    def needs(self) -> str:
        """What a study has to do so that the claim is measured, in words."""
        return describe_needs(self.varies, self.sets, self.metrics)


def describe_needs(varies: Sequence[str], sets: Sequence[str], metrics: Sequence[str]) -> str:
    """That a study has to vary and set these keys and to measure one of ``metrics``, in words; "" without any."""
    parts = [
        f"{verb} {join_words(list(map(name_key, keys)))}" for verb, keys in (("vary", varies), ("set", sets)) if keys
    ]
    parts += [f"measure {' or '.join(map(_name_metric, metrics))}"] if metrics else []
    return ", and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def _name_metric(name: str) -> str:
    label = METRICS[name].label
    return f"{label[:1].lower()}{label[1:]} ({name})"


def _is_varied(records: ComparableTrials, key: str) -> bool:
    if key == "batch.accumulation":  # however it follows from the other keys of a batch
        return len(np.unique(num_accumulation(records.trials))) > 1
    return len(_list_values(records, key if key == "global_batch_size" else f"config.{key}")) > 1


def _is_set(records: ComparableTrials, key: str) -> bool:
    return bool(_list_values(records, f"config.{key}") - {None, default_settings()[key]})


def _list_values(records: ComparableTrials, name: str) -> set[Scalar]:
    trials = records.trials
    return set(map(plain_value, trials[name].unique())) if name in trials.columns else set()


def plan_study(_records: ComparableTrials) -> NextStep:
    """Settles a claim by its own study."""
    return NextStep()


def extend_space(key: str, form: str) -> Callable[[ComparableTrials], NextStep]:
    """Settles a claim by its own study, or by one that varies ``key`` too."""
    return lambda records: suggest_copy(records.commands.extend_space(key, form))


def suggest_copy(words: str) -> NextStep:
    """Settles a claim by its own study, or by a changed copy of the study's file, which ``words`` describe."""
    return NextStep(remark=f"{words} settles it too")


def run_variant(suffix: str, fixed: Mapping[str, object]) -> Callable[[ComparableTrials], NextStep]:
    """Settles a claim by the same study with the keys ``fixed``."""
    return lambda records: suggest_variant(records, suffix, fixed)


def suggest_variant(records: ComparableTrials, suffix: str, fixed: Mapping[str, object], remark: str = "") -> NextStep:
    """The same study with the keys ``fixed``; with a budget among them, no rule scales the epochs."""
    is_ruled = "power" in read_text(records.trials, "config.budget.epochs_rule").tolist()
    if is_ruled and not fixed.keys().isdisjoint(f"budget.{name}" for name in BUDGETS):
        fixed = {**fixed, "budget.epochs_rule": "none"}
    return NextStep(records.commands.run_variant(suffix, fixed), remark)


def command_plan(records: ComparableTrials, name: str) -> str:
    """The command that plans and runs the study of the claim ``name``, on the data of the records."""
    data, root = (most_common(read_text(records.done, f"config.data.{key}"))[0] for key in ("name", "root"))
    is_moved = root not in ("", default_settings()["data.root"])
    return records.commands.plan_claim(name, data, {"data.root": root} if is_moved else {})
