"""What the store hands out: one frozen object per trial, the configuration validated only when it is asked for."""

from dataclasses import dataclass, field
from functools import cached_property

from sweep.config.trial_config import Scalar, TrialConfig, build_config
from sweep.records.messages import Ending, Evaluation, Outcome, Phase


@dataclass(frozen=True)
class TrialRecord:
    """One trial as it is recorded. ``values`` is its configuration by dotted path; ``measurements`` holds what was
    measured, by name of the metric table."""

    number: int
    phase: Phase
    values: dict[str, Scalar]
    outcome: Outcome | None = None  # None while it runs
    measurements: dict[str, float | int] = field(default_factory=dict)
    trial_key: str = ""
    reused_from: str = ""  # "study/number" of the trial that was taken instead of training
    device: str = ""
    quality_flags: tuple[str, ...] = ()
    error: str = ""

    @cached_property
    def config(self) -> TrialConfig:
        """The configuration. Validated at the first read: that takes ten times as long as reading the row, and most
        rows are never asked."""
        return build_config(self.values, f"record of trial {self.number}")


@dataclass(frozen=True)
class ReusableTrial:
    """A complete trial that can stand for one of equal key."""

    origin: str  # "study/number"
    ending: Ending
    evaluations: tuple[Evaluation, ...]
