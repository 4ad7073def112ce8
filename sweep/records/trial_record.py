"""What the store hands out: one frozen object per trial, the configuration validated only when it is asked for."""

from dataclasses import dataclass, field, replace
from functools import cached_property

from sweep.config.trial_config import Scalar, TrialConfig, build_config
from sweep.records.messages import Ending, Evaluation, Outcome, Phase


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """One trial as it is recorded. ``values`` is its configuration by dotted path; ``measurements`` holds what was
    measured, by name of the metric table; ``errors`` the standard errors of those that were extrapolated instead."""

    number: int
    phase: Phase
    values: dict[str, Scalar]
    outcome: Outcome | None = None  # None while it runs
    measurements: dict[str, float | int] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    trial_key: str = ""
    shape_digest: str = ""  # of the shape that its steps have, where they all have one
    reused_from: str = ""  # "study/number" of the trial that was taken instead of training
    is_enqueued: bool = False  # made by hand, with `sweep enqueue`
    device: str = ""
    quality_flags: tuple[str, ...] = ()
    error: str = ""
    made_from: TrialConfig | None = field(default=None, repr=False, compare=False)  # None where it was read back

    @property
    def ending(self) -> Ending:
        """How it ended, as far as it is held here: without its environment and its bottleneck. Only of one that has
        ended."""
        assert self.outcome is not None
        return Ending(
            outcome=self.outcome,
            measurements=dict(self.measurements),
            device=self.device,
            quality_flags=self.quality_flags,
            error=self.error,
        )

    def with_ending(self, ending: Ending) -> "TrialRecord":
        """This trial after ``ending``."""
        return replace(
            self,
            outcome=ending.outcome,
            measurements=dict(ending.measurements),
            device=ending.device,
            quality_flags=ending.quality_flags,
        )

    @cached_property
    def config(self) -> TrialConfig:
        """The configuration. One that was read back is validated here, not before: validation takes ten times as long
        as reading the row, and the configuration of most rows is never used."""
        return self.made_from or build_config(self.values, f"record of trial {self.number}")


@dataclass(frozen=True, kw_only=True)
class ReusableTrial:
    """A complete trial that can stand for one of equal key. With a budget in seconds (``is_timed``) what it learned
    depends on the speed of its device."""

    origin: str  # "study/number"
    ending: Ending
    evaluations: tuple[Evaluation, ...]
    is_timed: bool = False
