"""The sections of a study file besides base and space: confirming, the answer; and what an hour costs."""

import math
from collections.abc import Collection, Hashable
from typing import Annotated, NamedTuple

from pydantic import Field

from sweep.config.fields import Section

# Nothing is named that was trained with fewer fresh seeds.
FEWEST_SEEDS = 3
# The seconds that a trial cost: the first of these metrics that was measured.
TRIAL_SECONDS = ("total_seconds", "train_seconds")


class ConfirmTime(NamedTuple):
    """Seconds for confirming trials: those that there are in all, and those that are used."""

    in_all: float
    used: float

    @property
    def left(self) -> float:
        """Negative where more were used."""
        return self.in_all - self.used


class Confirm(Section):
    """How much is trained again with fresh seeds, so that the answer is settled."""

    max_configurations: Annotated[int, Field(ge=0, le=1000)] = Field(
        16, description="configurations that are trained again, at most"
    )
    seeds: Annotated[int, Field(ge=0, le=1000)] = Field(
        20,
        description=f"fresh seeds for each of them, at most; {FEWEST_SEEDS} are the least with which a configuration "
        "is named, more are used only where the answer is not settled",
    )
    share: Annotated[float, Field(gt=0, le=1000)] = Field(
        0.5,
        description="how long all confirming trials may take, as a multiple of the seconds of the search trials (0.5: "
        f"half as long); one configuration gets its first {FEWEST_SEEDS} seeds even where they take longer",
    )

    @property
    def most_trials(self) -> int:
        """The most confirming trials that there may be; the time for them may be less."""
        return self.max_configurations * self.seeds

    @property
    def least_trials(self) -> int:
        """The fewest confirming trials that the rule takes: those with which one configuration can be named."""
        return min(FEWEST_SEEDS, self.seeds, self.most_trials)

    def count_expected(self, num_search: int) -> int:
        """How many confirming trials the time for them suffices for after ``num_search`` search trials, if a confirming
        trial takes as long as a search trial."""
        return min(self.most_trials, max(math.ceil(self.share * num_search), self.least_trials))

    def measure_time(self, trials: Collection[tuple[str, Hashable, float]]) -> ConfirmTime:
        """The time for confirming after ``trials``: the phase of each, its configuration and its seconds. A confirming
        trial without finite seconds, which has not ended, counts as the search trial of its configuration."""
        searched = {point: seconds for phase, point, seconds in trials if phase == "search"}
        costs = [seconds for phase, _, seconds in trials if phase == "search"]
        spent = [
            seconds if math.isfinite(seconds) else searched.get(point, 0.0)
            for phase, point, seconds in trials
            if phase == "confirm"
        ]
        return ConfirmTime(self.share * sum(filter(math.isfinite, costs)), sum(filter(math.isfinite, spent)))

    def list_raises(self, num_configurations: int, num_seeds: int) -> dict[str, object]:
        """The keys that a study must raise for more fresh seeds, with their values: twice the share of time; the other
        limits where ``num_configurations`` and ``num_seeds`` of one have reached them, and then no less than the
        defaults."""
        changes: dict[str, object] = {"confirm.share": 2 * self.share}
        if num_configurations >= self.max_configurations:
            changes["confirm.max_configurations"] = max(Confirm().max_configurations, 2 * self.max_configurations)
        if num_seeds >= self.seeds:
            changes["confirm.seeds"] = max(Confirm().seeds, 2 * self.seeds)
        return changes

    def describe_limits(self) -> str:
        """How many confirming trials there may be, and for how long, in words that follow those of the search."""
        return f"at most {self.most_trials:,} to confirm for about {self.share:.0%} of their time"


class Tolerance(Section):
    """Differences that do not matter to the user."""

    accuracy: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.005, description="of accuracy, as a fraction: 0.005 are 0.5 points"
    )
    time: Annotated[float, Field(gt=0, lt=10)] = Field(0.05, description="of training time, as a share of the shorter")
    memory: Annotated[float, Field(gt=0, lt=10)] = Field(0.05, description="of memory, as a share of the smaller")


class AnswerRules(Section):
    """What the answer may neglect, and when one of its statements is settled."""

    confidence: Annotated[float, Field(gt=0.5, lt=1)] = Field(
        0.95, description="probability of being right from which on a statement is settled"
    )
    tolerance: Tolerance = Tolerance()


class Price(NamedTuple):
    """What an hour of everything that a study runs on costs, in ``currency``, a text that may be empty."""

    per_hour: float
    currency: str

    def of(self, seconds: float) -> float:
        """What ``seconds`` cost."""
        return self.per_hour * seconds / 3600.0
