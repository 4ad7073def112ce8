"""The decisions of the guide: the study that answers the user's question, its size within a budget, and its file.

This module imports neither torch nor Optuna, so that the questions appear at once; :mod:`sweep.search.guided_study`
counts and measures."""

import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from math import ceil, log2, sqrt
from typing import Any, NamedTuple

from sweep.config.commands import toml_literal
from sweep.config.errors import InputError
from sweep.config.metrics import format_count
from sweep.config.sections import BUDGETS, round_up_duration
from sweep.config.study import FEWEST_CONFIGURATIONS, FEWEST_SEEDS, StudySpec
from sweep.config.tables import has_batch_statistics
from sweep.config.trial import find_rivals

TARGETS = {
    "balanced": "accuracy, time and memory alike",
    "accuracy": "the highest accuracy",
    "speed": "the shortest training",
    "memory": "the lowest memory",
}
# Exponents of the effective batch sizes: small ones for accuracy, those about the throughput knee for speed.
_EXPONENTS = {"balanced": (5, 9), "accuracy": (4, 8), "speed": (6, 10), "memory": (3, 7)}
_FINE_TUNING = (4, 7)  # 16 to 64 is the rule of thumb; a larger one shows what it costs
_LEAST_STEPS = 4  # an epoch: with fewer the batch is nearly the data
_FEW_STEPS = 10  # an epoch: a smaller number of steps is stated
_FEW_TO_NORMALIZE = 16  # fewer samples make the statistics of batch normalization noisy
_SMALL_SET, _FEW_VALIDATION = 5000, 1000  # images: below both, more are held out for validation
_RATES, _TUNING_RATES = [0.001, 0.1], [0.00001, 0.003]
_REFERENCE = 256  # effective batch size at which these rates are usual
_ACCUMULATION, _ACCUMULATIONS = "batch.accumulation", [1, 2, 4]
_LEAST_TOLERANCE = 0.005
_DISAGREEMENT = 0.02  # of two good configurations, where no earlier study of the images tells it
# Trainings with fresh seeds of four configurations: for the batch size and the usual uses, which often agree.
NUM_SEEDED = 4 * FEWEST_SEEDS
_LEAST_SHARE, _MOST_SHARE = 0.5, 1.5  # time for fresh seeds, as a share of the search's
_SEEN_IMAGES = 512_000  # in a training: 4,000 steps of 128 images
_LEAST_EPOCHS, _MOST_EPOCHS = 3, 30
_TAUGHT_IMAGES = 3000  # in a training: with fewer it learns little, and its accuracy says little about batch sizes
_SUBSETS = tuple(first * 10**power for power in range(6, 1, -1) for first in (5, 2, 1))  # training images, descending
_LEAST_SUBSET, _LEAST_OF_CLASS = 1000, 50  # training images: of all classes, and of each on average
_LEAST_OF_SCRATCH = 500  # training images: a network that starts from random weights learns little from fewer
_SMALLER = {"resnet20": "resnet8"}  # of the same family, with about a quarter of the work
_FEW_BATCHES, _FEWEST_BATCHES = 3, 2
ROOM = 1.5  # planned trainings over those that are expected to fit, so that the search ends by its time
_MOST_TRIALS = 1000
_MOST_OVER = 1.25  # expected time of the smallest study over the budget: its time limits end it
_MOST_OVERHEAD = 1.25  # the next command may take so much longer for what comes before the study
_WIDTH = 120
USED = 0.8  # the part of its time that is planned for the confirming: more than it usually takes
_DECAY = "optimizer.weight_decay"


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
    num_classes: int = 1
    subset: int | None = None  # training images of more that are there; ``num_train`` is as many
    device_type: str = "cpu"
    image_size: int | None = None  # that images of several sizes are brought to
    largest_micro: int | None = None  # that fits, on one device; None: whatever is tried
    disagreement: float | None = None  # share of validation images that one of two good configurations alone gets right
    has_own_validation: bool = True  # a split that data.validation_share does not change
    validation_share: float | None = None  # to hold out; None: as usual


class _GivenBatch(NamedTuple):
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
    models_reason: str
    batches: tuple[int, ...]
    num_devices: int
    largest_micro: int
    accumulation: Setting
    study: tuple[Setting, ...] = ()
    base: tuple[Setting, ...] = ()
    space: tuple[Setting, ...] = ()
    given: _GivenBatch | None = None
    notes: tuple[str, ...] = ()


def list_models(answers: Answers, side: int) -> tuple[str, ...]:
    """The models to train; the first is in every study. They are the ones that the user gave, else by the size of the
    images a residual network and, if there is time for it, a transformer of like cost."""
    if answers.models:
        return answers.models
    models = ("resnet18", "vit_small")
    if side <= 64:
        models = ("resnet20", "vit_tiny") if side > 16 else ("resnet8", "vit_micro")
    return models[:1] if answers.weights else models  # weights fit one model


def decide(answers: Answers, facts: Facts) -> Decisions:
    """The study for ``answers``, given ``facts``."""
    models = list_models(answers, facts.side)
    usual, notes = _choose_batches(answers, facts)
    batches = tuple(sorted({*usual, *([answers.batch] if answers.batch else [])}))
    accumulation = _choose_accumulation(answers, facts, usual)
    counts = accumulation.value["choice"]
    largest_micro = max(max(usual) // answers.num_devices // max(counts), 1)
    given = _split_given(answers, facts, max(counts))
    smallest = min(usual) // answers.num_devices // min(counts)
    least_micro = min(smallest, largest_micro, given.micro if given else largest_micro)
    if facts.num_train < _LEAST_OF_SCRATCH and not answers.weights:
        notes.insert(
            0,
            f"{facts.num_train:,} training images are too few to train a network from random weights: the answer is "
            f"about noise. Give pretrained weights (--weights FILE --model NAME), or {_LEAST_OF_SCRATCH} images or "
            "more.",
        )
    num_steps = ceil(facts.num_train / max(batches))
    if num_steps < _FEW_STEPS:
        notes.append(
            f"{facts.num_train:,} training images at an effective batch size of {max(batches)} are "
            f"{format_count(num_steps, 'optimizer step')} an epoch: a lower accuracy there may come from few steps."
        )
    share = _DISAGREEMENT if facts.disagreement is None else facts.disagreement
    source = "assumed" if facts.disagreement is None else "measured in an earlier study"
    error = sqrt(share / max(facts.num_validation, 1))
    tolerance = Setting(
        "answer.tolerance.accuracy",
        round(max(_LEAST_TOLERANCE, round(2 * error / _LEAST_TOLERANCE) * _LEAST_TOLERANCE), 3),
        f"two good configurations differ on {100 * share:.0f} % of {facts.num_validation:,} validation images "
        f"({source}); the standard error of the difference of their accuracies is about {100 * error:.1f} points",
    )
    tuned = f"at an effective batch size of {_REFERENCE}; every batch size is tuned"
    rates = Setting("optimizer.lr", {"log": _RATES}, tuned)
    if answers.weights:
        rates = Setting("optimizer.lr", {"log": _TUNING_RATES}, "10 to 100 times below those from scratch")
    return Decisions(
        models=models,
        models_reason="as it was given" if answers.models else "by the size of the images",
        batches=batches,
        num_devices=answers.num_devices,
        largest_micro=largest_micro,
        accumulation=accumulation,
        study=(tolerance,),
        base=(
            *list_data_settings(answers, facts),
            *_decide_model(answers, facts, models, least_micro),
            Setting("optimizer.name", "adamw", "one optimizer for residual networks and transformers"),
            Setting("rules.lr", "auto", "the learning rate follows the effective batch size"),
            Setting("rules.reference_batch", _REFERENCE, "the effective batch size that learning rates are given for"),
            Setting("schedule.name", "cosine", "it ends near 0, whatever the number of epochs"),
            Setting("schedule.warmup", 0.1, "larger batches have higher rates, which a warm-up reaches step by step"),
        ),
        space=(rates, Setting(_DECAY, {"log": [0.0001, 0.1]}, "it is tuned with the learning rate")),
        given=given,
        notes=tuple(notes),
    )


def _choose_batches(answers: Answers, facts: Facts) -> tuple[tuple[int, ...], list[str]]:
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


def _choose_accumulation(answers: Answers, facts: Facts, usual: tuple[int, ...]) -> Setting:
    largest = max(usual) // answers.num_devices
    if facts.largest_micro is not None and largest > facts.largest_micro:
        most = 2 ** ceil(log2(largest / facts.largest_micro))
        counts = [2**power for power in range(int(log2(most)) + 1)]
        return Setting(
            _ACCUMULATION,
            {"choice": counts},
            f"more than {facts.largest_micro} samples do not fit at once: larger effective batch sizes are accumulated",
        )
    # Each count divides a given batch size, so that all products stay within the range.
    shared = (answers.batch or 0) // answers.num_devices
    counts = [count for count in _ACCUMULATIONS if count * min(usual) <= max(usual) and shared % count == 0]
    if answers.target == "memory" and len(counts) > 1:
        return Setting(_ACCUMULATION, {"choice": counts}, "smaller micro batches require less memory, and more time")
    return Setting(
        _ACCUMULATION, {"choice": [1]}, "every effective batch size fits at once: accumulation would only take time"
    )


def _split_given(answers: Answers, facts: Facts, most_accumulated: int) -> _GivenBatch | None:
    if answers.batch is None:
        return None
    per_device = answers.batch // answers.num_devices
    count = ceil(per_device / (facts.largest_micro or per_device))
    if answers.target == "memory" and per_device % most_accumulated == 0:
        count = max(count, most_accumulated)
    while per_device % count:
        count += 1
    return _GivenBatch(answers.batch, per_device // count, count)


def list_data_settings(answers: Answers, facts: Facts) -> Iterator[Setting]:
    """The keys of the data set."""
    yield Setting("data.name", answers.data, "the data set")
    if answers.data_root is not None:
        yield Setting("data.root", answers.data_root, "where it is")
    if facts.image_size is not None:
        yield Setting("data.image_size", facts.image_size, "every image is brought to so many pixels a side")
    if facts.subset is not None:
        yield Setting("data.subset", facts.subset, "training images: the time does not allow more")
    if facts.validation_share is not None:
        reason = "with so few images more of them make accuracies more certain"
        if facts.subset is not None and facts.num_validation >= _FEW_VALIDATION:
            reason = f"about {facts.num_validation:,} images: their evaluation takes time too"
        yield Setting("data.validation_share", facts.validation_share, reason)


def hold_out_more(facts: Facts) -> Facts:
    """The facts with a larger validation split, where so few images are held out that it should be."""
    is_small = facts.num_validation < _FEW_VALIDATION and facts.num_train < _SMALL_SET
    return replace(facts, validation_share=0.33) if is_small else facts


def cut_images(facts: Facts, subset: int | None) -> Facts:
    """The facts of ``subset`` training images, with validation images in proportion where these are held out."""
    if subset is None:
        return facts
    cut = replace(facts, subset=subset, num_train=subset)
    num_validation = max(round(facts.num_validation * subset / facts.num_train), _FEW_VALIDATION)
    if facts.has_own_validation or num_validation >= facts.num_validation:
        return cut
    share = round(num_validation / (facts.num_train + facts.num_validation), 4)
    return replace(cut, num_validation=num_validation, validation_share=share)


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


def find_uses(answers: Answers) -> tuple[str, ...]:
    """The uses of the answer that are about the target; for fine-tuning the highest accuracy comes first."""
    target = "distributed" if answers.num_devices > 1 and answers.target == "speed" else answers.target
    if not answers.weights:
        return (target,)
    return ("fine_tune",) if target == "accuracy" else ("fine_tune", target)


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a study. ``num_trials`` counts the search alone."""

    num_models: int
    num_batches: int
    epochs: int
    most_epochs: int  # where time does not matter
    num_trials: int
    tunes_decay: bool
    is_smaller: bool = False  # with the smaller model of the family
    subset: int | None = None  # training images; None: all

    @property
    def confirm_share(self) -> float:
        """Seconds for fresh seeds, as a share of the search's."""
        return choose_confirm_share(self.num_trials)


def choose_confirm_share(num_trials: int) -> float:
    """Seconds for fresh seeds, as a share of the seconds of a search of ``num_trials``: for the fewest seeds of the
    configurations to be named."""
    return min(max(round(NUM_SEEDED / num_trials, 1), _LEAST_SHARE), _MOST_SHARE)


def find_full_size(decisions: Decisions, num_train: int) -> Size:
    """The size of a study for which time does not matter."""
    epochs = _count_epochs(_SEEN_IMAGES, num_train)
    num_models, num_batches = len(decisions.models), len(decisions.batches)
    return Size(
        num_models=num_models,
        num_batches=num_batches,
        epochs=epochs,
        most_epochs=epochs,
        num_trials=(FEWEST_CONFIGURATIONS + 1) * num_batches * num_models,
        tunes_decay=True,
    )


def _count_epochs(num_seen: int, num_train: int) -> int:
    return min(max(ceil(num_seen / max(num_train, 1)), _LEAST_EPOCHS), _MOST_EPOCHS)


def resize(size: Size, **changes: int | bool) -> Size:
    """The size with these ``changes``, and as many trials as they require."""
    smaller = replace(size, **changes)  # type: ignore[arg-type]
    per_batch = FEWEST_CONFIGURATIONS + (-1 if smaller.num_batches == _FEWEST_BATCHES else smaller.tunes_decay)
    return replace(smaller, num_trials=per_batch * smaller.num_batches * smaller.num_models)


def list_sizes(full: Size, answers: Answers, facts: Facts, fixed: Collection[str] = ()) -> list[Size]:
    """From the ``full`` size to the smallest: what contributes least to the answer is left out first, but for the keys
    ``fixed`` that the user set."""
    size = resize(full, num_models=1)
    sizes = [full, size]

    def shrink(size: Size, **changes: int | bool) -> Size:
        sizes.append(resize(size, **changes))
        return sizes[-1]

    size = shrink(size, tunes_decay=False)
    least = _count_epochs(_TAUGHT_IMAGES, facts.num_train)
    size = shrink(size, epochs=max(ceil(size.epochs / 2), least))
    size = shrink(size, num_batches=min(size.num_batches, _FEW_BATCHES))
    if not answers.models and list_models(answers, facts.side)[0] in _SMALLER:
        size = shrink(size, is_smaller=True)
    for subset in () if "data.subset" in fixed else _list_subsets(answers, facts):
        least = _count_epochs(_TAUGHT_IMAGES, subset)
        most = _count_epochs(_SEEN_IMAGES, subset)
        size = shrink(size, subset=subset, epochs=max(size.epochs, least), most_epochs=most)
    while size.epochs > least:
        size = shrink(size, epochs=max(ceil(size.epochs / 2), least))
    shrink(size, num_batches=min(size.num_batches, _FEWEST_BATCHES))
    return sizes


def _list_subsets(answers: Answers, facts: Facts) -> list[int]:
    # round numbers, descending
    least = max(_LEAST_SUBSET, _LEAST_OF_CLASS * facts.num_classes, _LEAST_STEPS * (answers.batch or 0))
    return [subset for subset in _SUBSETS if least <= subset < facts.num_train]


def check_time_left(
    budget_seconds: float, overhead_seconds: float, study_seconds: float = 0.0, smallest: str = "a study"
) -> None:
    """Raises ``InputError``: of the budget too little is left after ``overhead_seconds`` for what comes besides the
    study, for the ``smallest`` question, of which a study without time limits takes ``study_seconds``."""
    left, required = budget_seconds - overhead_seconds, study_seconds / _MOST_OVER
    if left >= max(required, 1.0):
        return
    least = _MOST_OVERHEAD * overhead_seconds + required
    raise InputError(
        f"--budget: of {budget_seconds:,.0f} s, {overhead_seconds:,.0f} s are for the images, probes, start and "
        f"report, and {smallest} takes {required:,.0f} s or more. Give --budget {round_up_duration(least)} or more."
    )


def choose_size(sizes: Sequence[Size], budget_seconds: float, price: Callable[[Size], float | None]) -> Size:
    """The first of ``sizes``, which are descending, whose forecast time is within ``budget_seconds``, else the last.
    Time that is left goes to epochs that were left out, then to more trainings. ``price`` gives the seconds of a study
    without time limits, None if nothing could be probed: then only the time limits hold."""
    size, seconds = sizes[0], 0.0
    for size in sizes:
        priced = price(size)
        if priced is None:
            return resize(sizes[0], num_models=1)
        seconds = priced
        if seconds <= budget_seconds:
            break
    ratio = budget_seconds / seconds if seconds else 1.0
    epochs = min(max(int(size.epochs * ratio), size.epochs), size.most_epochs)
    left = max(ratio * size.epochs / epochs, 1.0)
    num_trials = min(ceil(ROOM * left * size.num_trials), _MOST_TRIALS)
    return replace(size, epochs=epochs, num_trials=max(num_trials, size.num_trials))


def pick_batches(decisions: Decisions, num_batches: int) -> tuple[int, ...]:
    """So many of the effective batch sizes: the one that was given and others, spread evenly; a single other one is
    the middle one."""
    batches, given = decisions.batches, decisions.given.batch if decisions.given else None
    if num_batches >= len(batches):
        return batches
    others = [batch for batch in batches if batch != given]
    num_others = max(num_batches - (given is not None), 1)
    shares = [0.5] if num_others == 1 else [index / (num_others - 1) for index in range(num_others)]
    kept = {others[round(share * (len(others) - 1))] for share in shares}
    return tuple(batch for batch in batches if batch in kept or batch == given)


def describe_left_out(
    size: Size, full: Size, decisions: Decisions, whole: tuple[Decisions, Facts], fixed: Collection[str] = ()
) -> list[str]:
    """What a study of ``size`` with ``decisions`` lacks of the ``full`` one with the ``whole`` decisions and facts, for
    lack of time, apart from the keys ``fixed`` that the user set."""
    kept = pick_batches(decisions, size.num_batches)
    missing = [batch for batch in whole[0].batches if batch not in kept]
    models = decisions.models[0 if size.is_smaller else size.num_models : full.num_models]
    has_budget, num_train = any(f"budget.{name}" in fixed for name in BUDGETS), whole[1].num_train
    num_images, num_epochs = num_train - (size.subset or num_train), size.most_epochs - size.epochs
    parts = [
        (bool(models), f"the model{_plural(models)} {', '.join(models)}"),
        (bool(missing), f"the effective batch size{_plural(missing)} {', '.join(map(str, missing))}"),
        (num_images > 0, f"{num_images:,} of {num_train:,} training images"),
        (num_epochs > 0 and not has_budget, f"{num_epochs} of {size.most_epochs} epochs"),
        (not size.tunes_decay and "optimizer.weight_decay" not in fixed, "tuning of the weight decay"),
    ]
    return [text for is_left_out, text in parts if is_left_out]


def describe_part(size: Size, answers: Answers, facts: Facts) -> str:
    """What a study of ``size`` is about, where that is not all images or the usual model; otherwise ""."""
    model = list_models(answers, facts.side)[0]
    images = f"{size.subset:,} of your {facts.num_train:,} training images" if size.subset else ""
    small = f"{_SMALLER[model]} instead of {model}" if size.is_smaller else ""
    return " and ".join(filter(None, (images, small)))


def describe_smallest(size: Size, facts: Facts) -> str:
    """The trainings of the smallest study in words."""
    num_images = size.subset or facts.num_train
    trainings = f"{size.num_trials} trainings of {format_count(size.epochs, 'epoch')} on {num_images:,} images"
    return f"the smallest question ({trainings} and fresh seeds)"


def _plural(items: Sized) -> str:
    return "s" if len(items) > 1 else ""


@dataclass(frozen=True, kw_only=True)
class StudyDraft:
    """What a study file is written from. ``seconds`` are what its search and its confirming together are to take;
    ``changes`` are keys that the user sets over all others."""

    name: str
    question: str
    decisions: Decisions
    size: Size
    seconds: float | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


def write_study(draft: StudyDraft, head: Sequence[str] = ()) -> str:
    """The study as TOML, below a comment of the lines ``head``."""
    study, base, space = ({each.key: each for each in table} for table in (_study(draft), _base(draft), _space(draft)))
    for key, value in draft.changes.items():
        for fixed in (key, *find_rivals(key)):
            base.pop(fixed, None)
            space.pop(fixed, None)
        table = study if key.partition(".")[0] in StudySpec.model_fields else base
        table[key] = Setting(key, value, "as it was given")
    if draft.decisions.given:
        point = {key: _pick_first(draft.decisions, setting) for key, setting in space.items()}
        study["first"] = Setting("first", [point], "the batch size that was given is tried in any case")
    return write_tables({"": study.values(), "base": base.values(), "space": space.values()}, head)


def _study(draft: StudyDraft) -> Iterator[Setting]:
    size, seconds = draft.size, draft.seconds
    yield Setting("name", draft.name, "the folder of the records")
    yield Setting("question", draft.question, "")
    if seconds is None:
        per_batch = size.num_trials // max(size.num_batches * size.num_models, 1)
        reason = f"{per_batch} for each batch size and model; tuned is one from {FEWEST_CONFIGURATIONS} on"
    else:
        reason = "search trials at most: usually search_timeout ends the search before"
    yield Setting("trials", size.num_trials, reason)
    if seconds is not None:
        search_seconds = seconds / (1.0 + USED * size.confirm_share)
        yield Setting("timeout", f"{seconds:.0f}s", "of a run")
        yield Setting("search_timeout", f"{search_seconds:.0f}s", "of it; the rest is for fresh seeds")
    named = f"{FEWEST_SEEDS} fresh seeds of each configuration that the answer names"
    yield Setting("confirm.share", size.confirm_share, f"of the search's seconds, for at least {named}")
    yield from draft.decisions.study


def _base(draft: StudyDraft) -> Iterator[Setting]:
    decisions, size = draft.decisions, draft.size
    model = decisions.models[0]
    if size.is_smaller:
        yield Setting("model.name", _SMALLER[model], f"of the family of {model}, for which the time is too short")
    elif size.num_models == 1:
        yield Setting("model.name", model, decisions.models_reason)
    yield from decisions.base
    reason = "passes over the training images"
    if draft.seconds is not None and size.epochs != size.most_epochs:
        allowed = "a single one" if size.epochs == 1 else "so many"
        reason = f"{reason}: the time allows {allowed} of {size.most_epochs}"
    yield Setting("budget.epochs", size.epochs, reason)


def _space(draft: StudyDraft) -> Iterator[Setting]:
    decisions, size, given = draft.decisions, draft.size, draft.decisions.given
    if size.num_models > 1:
        models = list(decisions.models[: size.num_models])
        yield Setting("model.name", {"choice": models}, decisions.models_reason)
    batches, counts = pick_batches(decisions, size.num_batches), decisions.accumulation.value["choice"]
    # A given batch size has a split of its own.
    shared = [batch for batch in batches if not given or batch != given.batch]
    micros = {max(batch // decisions.num_devices // min(counts), 1) for batch in shared}
    micros = {min(micro, decisions.largest_micro) for micro in micros} | ({given.micro} if given else set())
    devices = f" over {decisions.num_devices} devices" if decisions.num_devices > 1 else ""
    reason = f"effective batch sizes of {batches[0]} to {batches[-1]}{devices}"
    if len(counts) > 1:
        reason = f"times the accumulation they are the effective batch sizes{devices}"
    yield Setting("batch.micro", {"choice": sorted(micros)}, reason)
    counts = sorted({*counts, *([given.accumulation] if given else [])})
    if len(counts) > 1:
        yield decisions.accumulation._replace(value={"choice": counts})
    yield from (each for each in decisions.space if each.key != _DECAY or size.tunes_decay)


def _pick_first(decisions: Decisions, setting: Setting) -> Any:
    assert decisions.given is not None
    split = {"batch.micro": decisions.given.micro, _ACCUMULATION: decisions.given.accumulation}
    form, values = next(iter(setting.value.items()))
    usual = values[0] if form == "choice" else float(f"{sqrt(values[0] * values[1]):.2g}")
    return split.get(setting.key, usual)


def write_tables(tables: Mapping[str, Iterable[Setting]], head: Sequence[str] = ()) -> str:
    """A study file: a comment of the lines ``head``, and the settings by table, "" for those before the first."""
    lines = [f"# {line}" for line in head]
    for name, settings in tables.items():
        lines += ["", *([f"[{name}]"] if name else []), *_write(settings)]
    return "\n".join([*lines, ""])


def _write(settings: Iterable[Setting]) -> Iterator[str]:
    for setting in settings:
        line = f"{setting.key} = {toml_literal(setting.value)}"
        comment = f"  # {setting.reason}" if setting.reason else ""
        if len(line + comment) <= _WIDTH:
            yield line + comment
            continue
        yield from (f"# {comment}" for comment in textwrap.wrap(setting.reason, _WIDTH - 2))
        yield line
