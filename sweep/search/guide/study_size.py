"""How large a study is: models, batch sizes, epochs and trainings, so that it takes the time that there is for it."""

from collections.abc import Callable, Collection, Iterator, Sized
from dataclasses import dataclass, replace
from math import ceil, log2

from sweep.config.data_sections import BUDGETS
from sweep.config.durations import round_up_duration
from sweep.config.errors import InputError
from sweep.config.study import FEWEST_SEEDS
from sweep.config.units import format_count
from sweep.search.guide.decision_tree import Decisions

CONFIGURATIONS = 3  # of a batch size, with which it counts as tuned
_NUM_NAMED = 4  # configurations that get fresh seeds: those of the batch size and of the usual uses, which often agree
_LEAST_SHARE, _MOST_SHARE = 0.5, 1.5  # of the search's time, for fresh seeds
_SEEN_IMAGES = 512_000  # of a training: 4,000 steps of 128 images
_LEAST_EPOCHS, _MOST_EPOCHS = 3, 30
_FEW_BATCHES, _FEWEST_BATCHES = 3, 2
_ROOM = 1.5  # times the trainings that are expected to fit, so that the search ends by its time
_MOST_TRIALS = 1000
_MOST_OVER = 1.25  # times the budget: the least study may be expected to take so long, as its time limits end it

_LEAST_LEFT = 0.25  # of the budget, for the study itself
_MOST_OVERHEAD = 1.25  # times what was measured before the study: the next command may take longer for it
PROBING_SECONDS = 10.0  # that the first probe and the estimates of memory take at least, where none is on record

PriceStudy = Callable[["Size"], float | None]


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of a study. ``num_trials`` are those of the search."""

    num_models: int
    num_batches: int
    epochs: int
    num_trials: int
    tunes_decay: bool

    @property
    def confirm_share(self) -> float:
        """Seconds for fresh seeds, as a share of the search's: the fewest seeds of the configurations to be named."""
        return min(max(round(_NUM_NAMED * FEWEST_SEEDS / self.num_trials, 1), _LEAST_SHARE), _MOST_SHARE)


def find_full_size(decisions: Decisions, num_train: int) -> Size:
    """The size of a study for which time does not matter."""
    epochs = min(max(ceil(_SEEN_IMAGES / max(num_train, 1)), _LEAST_EPOCHS), _MOST_EPOCHS)
    num_models, num_batches = len(decisions.models), len(decisions.batches)
    return Size(
        num_models=num_models,
        num_batches=num_batches,
        epochs=epochs,
        num_trials=(CONFIGURATIONS + 1) * num_batches * num_models,
        tunes_decay=True,
    )


def find_usual_size(full: Size) -> Size:
    """The size of a study without a budget: one model, each batch size tuned."""
    return _resize(full, num_models=1)


def _resize(size: Size, **changes: int | bool) -> Size:
    smaller = replace(size, **changes)  # type: ignore[arg-type]
    per_batch = CONFIGURATIONS + smaller.tunes_decay if smaller.num_batches != _FEWEST_BATCHES else CONFIGURATIONS - 1
    return replace(smaller, num_trials=per_batch * smaller.num_batches * smaller.num_models)


def list_sizes(full: Size) -> Iterator[Size]:
    """From the full size to the smallest: what contributes least to the answer is left out first."""
    yield full
    size = _resize(full, num_models=1)
    yield size
    size = _resize(size, tunes_decay=False)
    yield size
    if size.epochs > 2 * _LEAST_EPOCHS:
        size = _resize(size, epochs=ceil(size.epochs / 2))
        yield size
    size = _resize(size, num_batches=min(size.num_batches, _FEW_BATCHES))
    yield size
    while size.epochs > 1:
        size = _resize(size, epochs=ceil(size.epochs / 2))
        yield size
    yield _resize(size, num_batches=min(size.num_batches, _FEWEST_BATCHES))


def is_too_little(budget_seconds: float, overhead_seconds: float) -> bool:
    """Whether ``overhead_seconds`` of a budget leave too little of it for a study."""
    return budget_seconds - overhead_seconds < _LEAST_LEFT * budget_seconds


def check_budget(seconds: float) -> None:
    """Raises ``InputError`` for a budget that is shorter than what comes before any study."""
    if is_too_little(seconds, PROBING_SECONDS):
        raise InputError(
            f"--budget: {seconds:g} s are too short, because probes alone take {PROBING_SECONDS:.0f} s or more. A "
            "number without a unit is in seconds; give minutes, such as 10m. Which time suffices is known after the "
            "probes."
        )


def name_sufficient_budget(overhead_seconds: float, study_seconds: float) -> str:
    """The least --budget with which a study of ``study_seconds`` is not refused by another command that may take a
    quarter longer than ``overhead_seconds`` before it."""
    overhead_seconds *= _MOST_OVERHEAD
    least = max(overhead_seconds / (1.0 - _LEAST_LEFT), overhead_seconds + study_seconds / _MOST_OVER)
    return round_up_duration(least)


def choose_size(full: Size, budget_seconds: float, price: PriceStudy, overhead_seconds: float = 0.0) -> Size:
    """The largest size whose forecast time is within ``budget_seconds``, which are left of a longer budget after
    ``overhead_seconds``. What time is left goes to epochs that were left out, then to more trainings. ``price`` gives
    the seconds of a study without time limits.

    Raises:
        InputError: the smallest one is not.
    """
    chosen, seconds = full, 0.0
    for chosen in list_sizes(full):
        found = price(chosen)
        if found is None:  # nothing could be probed, so that only the time limits hold
            return find_usual_size(full)
        seconds = found
        if seconds <= budget_seconds:
            break
    if seconds > _MOST_OVER * budget_seconds:
        raise InputError(
            f"--budget: the smallest study, {format_count(chosen.num_trials, 'training')} of "
            f"{format_count(chosen.epochs, 'epoch')} and {FEWEST_SEEDS} fresh seeds, is forecast to take "
            f"{seconds:,.0f} s; {max(budget_seconds, 0.0):,.0f} s are left of the budget. Give --budget "
            f"{name_sufficient_budget(overhead_seconds, seconds)} or more, a smaller model (--model), or fewer images "
            "(--set data.subset=N)."
        )
    return _spend_rest(chosen, full, budget_seconds / seconds if seconds else 1.0)


def _spend_rest(size: Size, full: Size, ratio: float) -> Size:
    epochs = min(max(int(size.epochs * ratio), size.epochs), full.epochs)
    left = max(ratio * size.epochs / epochs, 1.0)
    trials = min(ceil(_ROOM * left * size.num_trials), _MOST_TRIALS)
    return replace(size, epochs=epochs, num_trials=max(trials, size.num_trials))


def pick_batches(decisions: Decisions, num_batches: int) -> tuple[int, ...]:
    """So many of the effective batch sizes: the one that was given and others, spread evenly. A single other one is
    the best on record, or the middle one; of several the nearest to the best on record is replaced by it."""
    batches, given = decisions.batches, decisions.given.batch if decisions.given else None
    if num_batches >= len(batches):
        return batches
    others = [batch for batch in batches if batch != given]
    num_others = max(num_batches - (given is not None), 1)
    chosen = {others[round(place * (len(others) - 1))] for place in _spread_places(num_others)}
    best = decisions.best_batch
    if best in others and best not in chosen:
        chosen -= {min(chosen, key=lambda batch: abs(log2(batch / best)))}
        chosen |= {best}
    return tuple(batch for batch in batches if batch in chosen or batch == given)


def _spread_places(count: int) -> list[float]:
    return [0.5] if count == 1 else [index / (count - 1) for index in range(count)]


def describe_left_out(size: Size, full: Size, decisions: Decisions, fixed: Collection[str] = ()) -> list[str]:
    """What a study of ``size`` lacks of the ``full`` one, for lack of time; the keys ``fixed`` are as they were
    given."""
    kept = pick_batches(decisions, size.num_batches)
    missing = [batch for batch in decisions.batches if batch not in kept]
    models = decisions.models[size.num_models : full.num_models]
    is_best_kept = decisions.best_batch in kept and decisions.given is not None
    because = f" ({decisions.best_batch} is kept, as the best on record for these images)" if is_best_kept else ""
    has_budget = any(f"budget.{name}" in fixed for name in BUDGETS)
    parts = [
        (bool(models), f"the model{_plural(models)} {', '.join(models)}"),
        (bool(missing), f"the effective batch size{_plural(missing)} {', '.join(map(str, missing))}{because}"),
        (size.epochs < full.epochs and not has_budget, f"{full.epochs - size.epochs} of {full.epochs} epochs"),
        (not size.tunes_decay and "optimizer.weight_decay" not in fixed, "tuning of the weight decay"),
    ]
    return [text for is_left_out, text in parts if is_left_out]


def _plural(items: Sized) -> str:
    return "s" if len(items) > 1 else ""
