"""The answer: for each use the recommended configuration, its values, what is given up for it, and its probability."""

from dataclasses import dataclass, field

from sweep.analysis.statistics.intervals import Interval
from sweep.config.trial_config import Scalar

# What each use optimizes.
USE_MEANINGS = {
    "accuracy": "the highest validation accuracy",
    "speed": "the least training time at a useful accuracy",
    "memory": "the least memory at a useful accuracy",
    "balanced": "the best compromise of accuracy, time and memory",
    "fine_tune": "the highest validation accuracy from given weights",
    "distributed": "the least training time on several ranks at a useful accuracy",
}
USES = tuple(USE_MEANINGS)


@dataclass(frozen=True)
class Limits:
    """What a configuration must keep to; None is no limit."""

    max_memory_bytes: float | None = None
    max_seconds: float | None = None
    min_accuracy: float | None = None


@dataclass(frozen=True, kw_only=True)
class NextBest:
    """The second choice, and what taking the first gains or gives up against it. ``differences`` by metric: for
    accuracies first - second in the metric's unit, for seconds and bytes the ratio first / second (see ``units``)."""

    number: int
    changes: dict[str, Scalar]  # the settings in which it differs, with its values
    differences: dict[str, Interval]
    units: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The choice for one use. Without one ``number`` is None, ``config`` and ``values`` are empty, and ``missing`` is
    the command that would make one possible.

    ``certainty`` is the probability that nothing tried is truly better for this use, ``on_front`` that of being truly
    on the front; ``regret`` what is expected to be lost against the truly best, in the unit of ``regret_metric``.
    """

    use: str
    number: int | None = None
    config: dict[str, Scalar] = field(default_factory=dict)
    settings: tuple[str, ...] = ()  # the keys of ``config`` to show
    global_batch_size: int | None = None
    values: dict[str, Interval] = field(default_factory=dict)
    is_confirmed: bool = False
    certainty: float = 0.0
    on_front: float = 0.0
    regret: float = 0.0
    regret_metric: str = ""
    next_best: NextBest | None = None
    evidence: tuple[str, ...] = ()
    missing: str | None = None


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A further result. ``statement`` names it, ``detail`` what it holds for; ``value`` is NaN where the records do not
    suffice, and ``missing`` is the command that would add what is missing."""

    name: str
    statement: str
    value: float
    low: float
    high: float
    unit: str
    n: int
    detail: str = ""
    missing: str | None = None


@dataclass(frozen=True, kw_only=True)
class ValidationSize:
    """The validation images that all accuracies were measured on: their number, and the accuracy of one of them.
    ``statement`` names both, and what the intervals cover."""

    num_images: int | None  # None: not on record
    accuracy_per_image: float | None
    statement: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of one study's records. ``notes`` hold what was left out, what is missing and what was assumed;
    ``missing_objectives`` the number of complete trials that lack an objective, by its name; ``method`` how the
    intervals were computed."""

    study: str
    limits: Limits
    validation: ValidationSize
    uses: dict[str, Recommendation]
    facts: dict[str, Fact]
    notes: tuple[str, ...]
    missing_objectives: dict[str, int]
    method: str
