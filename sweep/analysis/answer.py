"""The answer: for each use the recommended configuration, its values, what is given up for it, and its probability.

Here belongs what an answer consists of; how it is computed is in :mod:`sweep.analysis.recommendation`."""

import math
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from pydantic import BaseModel

from sweep.analysis.statistics import Interval
from sweep.config.metrics import Quality
from sweep.config.study import Tolerance
from sweep.config.tables import resolve
from sweep.config.trial import Scalar

# What each use optimizes.
USE_MEANINGS = {
    "accuracy": "the highest validation accuracy, to within the tolerance",
    "speed": "the shortest training time at a useful accuracy",
    "memory": "the lowest peak memory at a useful accuracy",
    "balanced": "the best compromise between accuracy, time and memory",
    "fine_tune": "the highest validation accuracy from pretrained weights",
    "distributed": "the shortest training time on several devices at a useful accuracy",
}
USES = tuple(USE_MEANINGS)


def explain_use(use: str, quality: Quality) -> str:
    """What ``use`` optimizes."""
    meaning = USE_MEANINGS[use]
    if quality.noun == "accuracy":
        return meaning
    return meaning.replace("highest validation accuracy", f"best {quality.noun}").replace("accuracy", quality.noun)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a configuration must keep to; None is no limit."""

    max_memory_bytes: float | None = None
    max_seconds: float | None = None
    min_accuracy: float | None = None
    limit_quality: float | None = None  # of another metric than the accuracy: at least or at most, by its direction


@dataclass(frozen=True, kw_only=True)
class ConfigurationEstimate:
    """What is known of one configuration, whose first trial is ``number``. ``values`` are estimates by metric, in its
    unit: accuracies by all trainings of the model, on new images; times and memory by all trials of equal cost.
    ``measured`` are medians over its own trials. ``front_probability``: of being truly on the Pareto front."""

    number: int
    num_seeds: int  # fresh ones
    values: dict[str, Interval]
    measured: dict[str, Interval]
    front_probability: float


@dataclass(frozen=True, kw_only=True)
class NextBest:
    """The second choice, and what taking the first gains or gives up against it. ``differences`` by metric: for
    accuracies first - second in the metric's unit, for seconds and bytes the ratio first / second (see ``units``)."""

    number: int
    changes: dict[str, Scalar]  # the settings in which it differs, with its values
    differences: dict[str, Interval]
    units: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class TrainingPrice:
    """What one training costs in ``currency``: its training time at the study's price of an hour, without set-up and
    evaluations."""

    median: float
    low: float
    high: float
    currency: str


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """The choice for one use. Without one ``number`` is None, ``config`` and ``values`` are empty, and ``missing`` is
    the command that would make one possible, None where the limits or the study's own keys exclude all.

    ``probability`` is the probability of being right: no configuration that was tried is truly better for this use by
    more than the study's tolerance. From the study's confidence on it ``is_settled``. ``on_front`` is the probability
    of being truly on the front; ``regret`` what is expected to be lost against the truly best, in the unit of
    ``regret_metric``. Only configurations with enough fresh seeds are named. ``values`` are estimates, the same as in
    :class:`ConfigurationEstimate`; ``measured`` are medians over the fresh seeds as they were measured.
    ``learning_rate`` is the highest one of its training, by the scaling rule of ``config`` from its ``optimizer.lr``;
    ``num_epochs`` are the passes over the training split that it made, None where they are not on record.
    """

    use: str
    number: int | None = None
    config: dict[str, Scalar] = field(default_factory=dict)
    settings: tuple[str, ...] = ()  # the keys of ``config`` to show
    global_batch_size: int | None = None
    learning_rate: float | None = None
    num_epochs: float | None = None
    values: dict[str, Interval] = field(default_factory=dict)
    measured: dict[str, Interval] = field(default_factory=dict)
    probability: float = 0.0
    is_settled: bool = False
    on_front: float = 0.0
    regret: float = 0.0
    regret_metric: str = ""
    next_best: NextBest | None = None
    evidence: tuple[str, ...] = ()
    missing: str | None = None
    price: TrainingPrice | None = None  # where the study has a price of an hour


@dataclass(frozen=True, kw_only=True)
class TunedBatch:
    """One effective batch size of one model.

    ``number`` is the first trial of the configuration that stands for it: the fastest of those whose accuracy is within
    the tolerance of the batch's best, at the batch to use the one that is named. ``accuracy``, ``seconds`` and
    ``memory_bytes`` are its own estimates; ``is_time_doubtful`` where its time is not used. ``best_measured`` is the
    highest accuracy of a training at the batch. ``p_without_loss`` is the probability that tuned training at this batch
    loses no more than the tolerance against the model's best batch. ``num_steps``, ``num_samples`` and those to the
    model's common target (:class:`TunedModel`) are of the trainings of the representative, ``learning_rate`` is its
    highest one with the scaling rule applied, ``images_per_second`` and ``seconds_to_target`` with its ``seconds``; NaN
    where the target was not reached.
    ``remarks`` name what was tuned too little and what is not known.
    """

    model: str
    batch: int
    number: int
    learning_rate: float
    num_configurations: int
    num_seeds: int
    accuracy: Interval
    seconds: Interval
    memory_bytes: Interval
    images_per_second: Interval
    num_steps: Interval
    num_samples: Interval
    steps_to_target: Interval
    samples_to_target: Interval
    seconds_to_target: Interval
    p_without_loss: float
    remarks: tuple[str, ...]
    best_measured: float
    is_time_doubtful: bool
    price: TrainingPrice | None = None  # where the study has a price of an hour
    tokens_per_sample: float = math.nan  # where a script counts its tokens


@dataclass(frozen=True, kw_only=True)
class TunedModel:
    """What the batches of one model have in common. ``target_accuracy``: within the tolerance, three quarters of the
    batches reach it by their tuned accuracy. ``rate_power``: p of best learning rate ~ batch^p, ``n`` configurations,
    for what ``rate_detail`` names; NaN for the reason ``rate_lack``."""

    model: str
    target_accuracy: float
    rate_power: Interval
    rate_detail: str
    rate_lack: str


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A sentence about the batch size. ``batches`` are the effective batch sizes that it names; ``probability`` is that
    of its being right on new images within the study's tolerance; from the study's confidence on it ``is_settled``.
    ``needed`` tells what would settle it, and ``missing`` is the command. An estimate alone (``is_estimate``: what a
    neighboring batch costs) has intervals in its text instead of a probability."""

    name: str
    text: str
    batches: tuple[int, ...]
    probability: float = 0.0
    is_settled: bool = False
    is_estimate: bool = False
    needed: str = ""
    missing: str | None = None


@dataclass(frozen=True, kw_only=True)
class BatchAnswer:
    """Which batch size to use: the configuration that is ``named``, the ``curve`` of the tuned batches of every model,
    what holds for each of the ``models``, and the ``statements`` about the one ``model``. The probability of the first
    is about the batch size, whatever the rate; the probability of ``named`` is its configuration's own. ``next_step``
    is the command of the first statement that is not settled."""

    named: Recommendation
    model: str
    curve: tuple[TunedBatch, ...]
    models: tuple[TunedModel, ...]
    statements: tuple[Statement, ...]
    next_step: str | None


@dataclass(frozen=True, kw_only=True)
class Fact:
    """A further result. ``statement`` names it, ``detail`` what it holds for; ``value`` is NaN where the records do not
    suffice, and ``missing`` is the command that would add what is missing."""

    name: str
    statement: str
    value: float
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
    """The answer of one study's records. What is called accuracy in it is that of ``quality``, whatever that is.
    ``batch_size`` is None without a complete trial. ``configurations`` are those
    that could win a use, at most a few hundred. ``notes`` hold what was left out, what is missing and what was assumed;
    ``missing_objectives`` the number of complete trials that lack an objective, by its name;
    ``no_complete_trial`` how the trials ended and what to do where none is complete, else None.
    """

    study: str
    limits: Limits
    quality: Quality
    validation: ValidationSize
    tolerance: Tolerance
    confidence: float
    batch_size: BatchAnswer | None
    uses: dict[str, Recommendation]
    configurations: tuple[ConfigurationEstimate, ...]
    facts: dict[str, Fact]
    notes: tuple[str, ...]
    missing_objectives: dict[str, int]
    no_complete_trial: str | None
    price_per_hour: float | None = None
    currency: str = ""

    @property
    def tolerated(self) -> float:
        """The difference of the quality that does not matter."""
        return self.tolerance.accuracy if self.tolerance.quality is None else self.tolerance.quality

    def __repr__(self) -> str:
        text = self.batch_size.statements[0].text if self.batch_size else self.no_complete_trial
        return f"Answer(study={self.study!r}, {text!r})"

    def _repr_html_(self) -> str:
        return str(resolve("reports.notebook:render_answer")(self))  # a notebook shows it


def to_document(value: Any) -> Any:
    """``value`` as JSON holds it: dataclasses and intervals are objects, tuples lists, and NaN and infinity null."""
    if is_dataclass(value):
        value = vars(value)
    elif isinstance(value, BaseModel):
        value = value.model_dump()
    elif isinstance(value, Interval):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: to_document(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_document(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
