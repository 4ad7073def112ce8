"""How large a study is: models, batch sizes, epochs and trainings, so that it takes the time that there is for it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import ceil

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


def choose_size(full: Size, budget_seconds: float, price: PriceStudy) -> Size:
    """The largest size whose forecast time is within ``budget_seconds``. What time is left goes to epochs that were
    left out, then to more trainings. ``price`` gives the seconds of a study without time limits.

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
            f"{seconds:,.0f} s; {max(budget_seconds, 0.0):,.0f} s are left of the budget. Give more time, a smaller "
            "model (--model), or fewer images (--set data.subset=N)."
        )
    return _spend_rest(chosen, full, budget_seconds / seconds if seconds else 1.0)


def _spend_rest(size: Size, full: Size, ratio: float) -> Size:
    epochs = min(max(int(size.epochs * ratio), size.epochs), full.epochs)
    left = max(ratio * size.epochs / epochs, 1.0)
    trials = min(ceil(_ROOM * left * size.num_trials), _MOST_TRIALS)
    return replace(size, epochs=epochs, num_trials=max(trials, size.num_trials))


def pick_batches(decisions: Decisions, num_batches: int) -> tuple[int, ...]:
    """So many of the effective batch sizes, spread evenly, and the one that was given."""
    batches = decisions.batches
    if num_batches >= len(batches):
        return batches
    last = max(num_batches - 1, 1)
    chosen = {batches[round(index * (len(batches) - 1) / last)] for index in range(num_batches)}
    given = decisions.given.batch if decisions.given else None
    return tuple(batch for batch in batches if batch in chosen or batch == given)


def describe_left_out(size: Size, full: Size, decisions: Decisions) -> list[str]:
    """What a study of ``size`` lacks of the ``full`` one, for lack of time."""
    kept = pick_batches(decisions, size.num_batches)
    missing = [batch for batch in decisions.batches if batch not in kept]
    parts = [
        (size.num_models < full.num_models, f"the model {', '.join(decisions.models[size.num_models :])}"),
        (bool(missing), f"the effective batch sizes {', '.join(map(str, missing))}"),
        (size.epochs < full.epochs, f"{full.epochs - size.epochs} of {full.epochs} epochs"),
        (not size.tunes_decay, "tuning of the weight decay"),
    ]
    return [text for is_left_out, text in parts if is_left_out]
