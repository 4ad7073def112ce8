"""The sections of a study file besides base and space: confirming, the answer; and what an hour costs."""

from typing import Annotated, NamedTuple

from pydantic import Field

from sweep.config.fields import Section

# Nothing is named that was trained with fewer fresh seeds.
FEWEST_SEEDS = 3


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
