"""The decision tree of the guide: from answers and findings to the keys of a study, each with its reason.

It decides in this order: does the batch fit, what is optimized, are given weights fine-tuned, do several devices train
one model. How large a study is follows from its budget and is decided in :mod:`sweep.search.guide.study_size`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import Any, NamedTuple

from sweep.config.tables.models import has_batch_statistics
from sweep.config.units import format_count

TARGETS = {
    "balanced": "accuracy, time and memory alike",
    "accuracy": "the highest accuracy",
    "speed": "the shortest training",
    "memory": "the lowest memory",
}
# Exponents of the effective batch sizes: small ones for accuracy, those about the throughput knee for speed.
_EXPONENTS = {"balanced": (5, 9), "accuracy": (4, 8), "speed": (6, 10), "memory": (3, 7)}
_FINE_TUNING = (4, 7)  # 16 to 64 is the rule of thumb; a larger one shows what it costs
_LEAST_STEPS = 4  # of an epoch: with fewer the batch is nearly the data
_FEW_STEPS = 10  # of an epoch, below which the number of steps is stated
_FEW_TO_NORMALIZE = 16  # samples of a batch normalization's statistics
_SMALL_SET, _FEW_VALIDATION = 5000, 1000  # images, below which more are held out for validation
_RATES, _TUNING_RATES = [0.001, 0.1], [0.00001, 0.003]
_REFERENCE = 256  # effective batch size at which these rates are usual
_ACCUMULATION, _ACCUMULATIONS = "batch.accumulation", [1, 2, 4]
_LEAST_TOLERANCE = 0.005
_DISAGREEMENT = 0.02  # of the validation images, about which two good configurations differ


@dataclass(frozen=True, kw_only=True)
class Answers:
    """What the user has answered."""

    data: str = "digits"
    data_root: str | None = None
    models: tuple[str, ...] = ()  # empty: by the size of the images
    target: str = "balanced"
    weights: str | None = None  # a file to fine-tune from
    num_devices: int = 1  # that train one model together
    batch: int | None = None  # an effective batch size from elsewhere, such as a paper


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was counted and measured."""

    side: int  # of an image, in pixels
    num_train: int
    num_validation: int
    device_type: str = "cpu"
    image_size: int | None = None  # that images of several sizes are brought to
    largest_micro: int | None = None  # that fits, on one device; None: whatever is tried
    has_own_validation: bool = True  # a split that data.validation_share does not change
    best_batch: int | None = None  # effective batch size that records of the same images name


class GivenBatch(NamedTuple):
    """The effective batch size that was given, and how a device takes its part of it."""

    batch: int
    micro: int
    accumulation: int


class Setting(NamedTuple):
    """One key of the study with its value, and why it has it."""

    key: str
    value: Any
    reason: str


@dataclass(frozen=True, kw_only=True)
class Decisions:
    """The keys of the study by part, without those that depend on its size. ``batches`` are the effective batch sizes
    to try, ascending; ``largest_micro`` is the most samples that a device takes at once, so that the largest one is
    reached with the most accumulation and not exceeded."""

    models: tuple[str, ...]
    are_models_given: bool = False  # by the user
    batches: tuple[int, ...]
    num_devices: int
    largest_micro: int
    accumulation: Setting
    study: tuple[Setting, ...] = ()
    base: tuple[Setting, ...] = ()
    space: tuple[Setting, ...] = ()
    given: GivenBatch | None = None
    best_batch: int | None = None  # of ``batches``, that is kept where others are left out
    notes: tuple[str, ...] = ()


def list_models(answers: Answers, side: int) -> tuple[str, ...]:
    """The models to train, the first of which is in every study: those that were named, else by the size of the images
    a residual network and, where there is time for it, a transformer of like cost."""
    if answers.models:
        return answers.models
    if answers.weights:
        return (_suggest_models(side)[0],)  # weights fit one model
    return _suggest_models(side)


def _suggest_models(side: int) -> tuple[str, str]:
    if side <= 16:
        return "resnet8", "vit_micro"
    return ("resnet20", "vit_tiny") if side <= 64 else ("resnet18", "vit_small")


def decide(answers: Answers, facts: Facts, fixed: Mapping[str, Any] | None = None) -> Decisions:
    """The study for ``answers`` where ``facts`` hold and the user set the keys ``fixed``."""
    models = list_models(answers, facts.side)
    usual, notes = _choose_batches(answers, facts, fixed or {})
    batches = tuple(sorted({*usual, *([answers.batch] if answers.batch else [])}))
    accumulation = _choose_accumulation(answers, facts, usual, _find_count(fixed or {}, _ACCUMULATION))
    counts = accumulation.value["choice"]
    largest_micro = max(max(usual) // answers.num_devices // max(counts), 1)
    given = _split_given(answers, facts, max(counts))
    smallest = min(usual) // answers.num_devices // min(counts)
    least_micro = min(smallest, largest_micro, given.micro if given else largest_micro)
    return Decisions(
        models=models,
        are_models_given=bool(answers.models),
        batches=batches,
        num_devices=answers.num_devices,
        largest_micro=largest_micro,
        accumulation=accumulation,
        study=(_decide_tolerance(facts),),
        base=(
            *list_data_settings(answers, facts),
            *_decide_model(answers, facts, models, least_micro),
            *_decide_recipe(),
        ),
        space=(
            _decide_rates(answers),
            Setting("optimizer.weight_decay", {"log": [0.0001, 0.1]}, "it is tuned with the learning rate"),
        ),
        given=given,
        best_batch=facts.best_batch,
        notes=(*notes, *_note_few_steps(facts, max(batches))),
    )


def _find_count(fixed: Mapping[str, Any], key: str) -> int | None:
    # what is no count is refused where the study is built
    value = fixed.get(key)
    return value if type(value) is int and value > 0 else None


def _choose_batches(answers: Answers, facts: Facts, fixed: Mapping[str, Any]) -> tuple[tuple[int, ...], list[str]]:
    if micro := _find_count(fixed, "batch.micro"):
        return (micro * (_find_count(fixed, _ACCUMULATION) or 1) * answers.num_devices,), []
    if batch := _find_count(fixed, "batch.global"):
        return (batch,), []
    low, high = _FINE_TUNING if answers.weights else _EXPONENTS[answers.target]
    most = max(int(log2(max(facts.num_train / _LEAST_STEPS, 4))), 2)
    notes = []
    if high > most:
        but = f" but for the given {answers.batch}" if answers.batch and answers.batch > 2**most else ""
        notes.append(
            f"Effective batch sizes above {2**most} are left out{but}: an epoch of {facts.num_train:,} images would "
            f"have fewer than {_LEAST_STEPS} steps."
        )
    high = max(min(high, most), 1)
    low = max(min(low, high - 2), 0)
    shared = ceil(log2(answers.num_devices))
    exponents = range(max(low, shared + 1), max(high, shared + 2) + 1)  # two samples on each device or more
    return tuple(answers.num_devices * 2 ** (exponent - shared) for exponent in exponents), notes


def _note_few_steps(facts: Facts, batch: int) -> Iterator[str]:
    num_steps = ceil(facts.num_train / batch)
    if num_steps < _FEW_STEPS:
        yield (
            f"{facts.num_train:,} training images at an effective batch size of {batch} are "
            f"{format_count(num_steps, 'optimizer step')} an epoch: a lower accuracy there may come from few steps."
        )


def _choose_accumulation(answers: Answers, facts: Facts, usual: tuple[int, ...], fixed: int | None) -> Setting:
    largest = max(usual) // answers.num_devices
    if fixed is not None:
        return Setting(_ACCUMULATION, {"choice": [fixed]}, "as it was given")
    if facts.largest_micro is not None and largest > facts.largest_micro:
        most = 2 ** ceil(log2(largest / facts.largest_micro))
        counts = [2**power for power in range(int(log2(most)) + 1)]
        return Setting(
            _ACCUMULATION,
            {"choice": counts},
            f"more than {facts.largest_micro} samples do not fit at once: larger effective batch sizes are accumulated",
        )
    # each of them divides a given batch size, so that all products stay within the range
    shared = (answers.batch or 0) // answers.num_devices
    counts = [count for count in _ACCUMULATIONS if count * min(usual) <= max(usual) and shared % count == 0]
    if answers.target == "memory" and len(counts) > 1:
        return Setting(_ACCUMULATION, {"choice": counts}, "smaller micro batches require less memory, and more time")
    return Setting(
        _ACCUMULATION, {"choice": [1]}, "every effective batch size fits at once: accumulation would only take time"
    )


def _split_given(answers: Answers, facts: Facts, most_accumulated: int) -> GivenBatch | None:
    if answers.batch is None:
        return None
    per_device = answers.batch // answers.num_devices
    count = ceil(per_device / (facts.largest_micro or per_device))
    if answers.target == "memory" and per_device % most_accumulated == 0:
        count = max(count, most_accumulated)
    while per_device % count:
        count += 1
    return GivenBatch(answers.batch, per_device // count, count)


def _decide_tolerance(facts: Facts) -> Setting:
    error = sqrt(_DISAGREEMENT / max(facts.num_validation, 1))
    tolerance = max(_LEAST_TOLERANCE, round(2 * error / _LEAST_TOLERANCE) * _LEAST_TOLERANCE)
    return Setting(
        "answer.tolerance.accuracy",
        round(tolerance, 3),
        f"on {facts.num_validation:,} validation images a difference of two accuracies has a standard error of about "
        f"{100 * error:.1f} points",
    )


def list_data_settings(answers: Answers, facts: Facts) -> Iterator[Setting]:
    """The keys of the data set."""
    yield Setting("data.name", answers.data, "the data set")
    if answers.data_root is not None:
        yield Setting("data.root", answers.data_root, "where it is")
    if facts.image_size is not None:
        yield Setting("data.image_size", facts.image_size, "every image is brought to so many pixels a side")
    if is_small(facts) and not facts.has_own_validation:
        yield Setting("data.validation_share", 0.33, "with so few images more of them make accuracies more certain")


def is_small(facts: Facts) -> bool:
    """Whether so few images are held out that more should be."""
    return facts.num_validation < _FEW_VALIDATION and facts.num_train < _SMALL_SET


def _decide_model(answers: Answers, facts: Facts, models: tuple[str, ...], least_micro: int) -> Iterator[Setting]:
    is_normed = any(has_batch_statistics(model, "batch") for model in models)
    if answers.weights:
        yield Setting("model.weights", answers.weights, "fine-tuning from these weights")
    elif is_normed and least_micro < _FEW_TO_NORMALIZE:
        yield Setting(
            "model.norm", "group", f"batch normalization is noisy below {_FEW_TO_NORMALIZE} samples of a micro batch"
        )
    elif is_normed and answers.num_devices > 1 and facts.device_type == "cuda":
        yield Setting("model.norm", "sync", "statistics over the samples of all devices")
    if answers.num_devices > 1:
        yield Setting(
            "distributed.world_size",
            answers.num_devices,
            "devices that train one model together: an effective batch size is the sum over them",
        )
    if facts.device_type == "cuda" and answers.target != "accuracy":
        yield Setting("precision.dtype", "bf16", "on a GPU 16-bit steps usually take less time and memory")


def _decide_recipe() -> Iterator[Setting]:
    yield Setting("optimizer.name", "adamw", "one optimizer for residual networks and transformers")
    yield Setting("rules.lr", "auto", "the learning rate follows the effective batch size")
    yield Setting("rules.reference_batch", _REFERENCE, "the effective batch size that learning rates are given for")
    yield Setting("schedule.name", "cosine", "it ends near 0, whatever the number of epochs")
    yield Setting("schedule.warmup", 0.1, "larger batches have higher rates, which a warm-up reaches step by step")


def _decide_rates(answers: Answers) -> Setting:
    if answers.weights:
        return Setting("optimizer.lr", {"log": _TUNING_RATES}, "10 to 100 times below those from scratch")
    reason = f"at an effective batch size of {_REFERENCE}; every batch size is tuned"
    return Setting("optimizer.lr", {"log": _RATES}, reason)


def find_uses(answers: Answers) -> tuple[str, ...]:
    """The uses of the answer that are about the target; of fine-tuning the highest accuracy comes first."""
    target = "distributed" if answers.num_devices > 1 and answers.target == "speed" else answers.target
    if not answers.weights:
        return (target,)
    return ("fine_tune",) if target == "accuracy" else ("fine_tune", target)
