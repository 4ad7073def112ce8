"""All pitfalls of a study."""

import contextlib
import itertools
from collections.abc import Iterator, Sequence

from sweep.config.advice.advice_item import Advice, Pitfall
from sweep.config.advice.batch_pitfalls import BATCH_PITFALLS
from sweep.config.advice.data_pitfalls import (
    find_oversized_batches,
    find_short_growth,
    find_unread_root,
)
from sweep.config.advice.fine_tuning_pitfalls import FINE_TUNING_PITFALLS
from sweep.config.advice.growth_pitfalls import find_unreachable_growth
from sweep.config.advice.rule_pitfalls import RULE_PITFALLS
from sweep.config.advice.schedule_pitfalls import SCHEDULE_PITFALLS
from sweep.config.errors import InputError
from sweep.config.study import FEWEST_SEEDS, StudySpec, is_batch_key
from sweep.config.trial_config import Scalar, TrialConfig, flatten_config
from sweep.config.units import format_count

_SECTIONS = frozenset({"batch", "model", "optimizer", "rules", "schedule", "budget", "distributed"})
_UNSEEN = frozenset({"optimizer.lr", "optimizer.weight_decay", "optimizer.momentum", "model.dropout"})
_MAX_CORNERS = 1024


def find_pitfalls(spec: StudySpec) -> list[Advice]:
    """Every known pitfall of the study, in a fixed order; empty for a study without one. A key that is ``deliberate``
    draws no advice, nor one of which the study also tries a value without the pitfall."""
    corners = _corners(spec)
    return [
        item
        for pitfall in _PITFALLS
        for item in pitfall(spec, corners)
        if item.key not in spec.deliberate and not _is_compared(spec, corners, pitfall, item.key)
    ]


def _is_compared(spec: StudySpec, corners: Sequence[TrialConfig], pitfall: Pitfall, key: str) -> bool:
    # batch sizes are the question of every study, so that advice on them holds wherever it applies
    if key not in spec.space or is_batch_key(key):
        return False
    by_value: dict[Scalar, list[TrialConfig]] = {}
    for config in corners:
        by_value.setdefault(flatten_config(config)[key], []).append(config)
    return any(all(item.key != key for item in pitfall(spec, group)) for group in by_value.values())


def find_data_pitfalls(spec: StudySpec, num_train: int | None) -> list[Advice]:
    """The pitfalls of the study with a training split of ``num_train`` images; None where they are not counted."""
    corners = _corners(spec)
    found = [
        *find_unread_root(corners),
        *find_oversized_batches(spec, corners, num_train),
        *find_short_growth(corners, num_train),
        *find_unreachable_growth(corners, num_train),
    ]
    return [item for item in found if item.key not in spec.deliberate]


def _corners(spec: StudySpec) -> list[TrialConfig]:
    # the extremes of what the rules look at; everything else stays at one corner
    seen = [path for path in spec.space if path.partition(".")[0] in _SECTIONS and path not in _UNSEEN]
    start = next(spec.corners())
    values = itertools.product(*(spec.space[path].extremes() for path in seen))
    found = []
    for point in itertools.islice(values, _MAX_CORNERS):
        with contextlib.suppress(InputError):  # two keys that do not go together
            found.append(spec.config(start | dict(zip(seen, point, strict=True))))
    return found or [spec.config(start)]


def _one_seed(spec: StudySpec, _corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    if "seed" in spec.space:  # every training is repeated
        return
    if not spec.confirm.most_trials:
        yield Advice(
            "one_seed",
            "confirm",
            "Nothing is trained again with fresh seeds.",
            "The best of many single seeds looks better than it is, and without repeats the spread between seeds is "
            "unknown, so that no confidence interval can be given.",
            "remove the key confirm, whose default confirms as much as the answer requires",
        )
    elif spec.confirm.seeds < FEWEST_SEEDS:
        yield Advice(
            "one_seed",
            "confirm.seeds",
            f"With {format_count(spec.confirm.seeds, 'fresh seed')} nothing can be recommended.",
            f"What is recommended was trained with at least {FEWEST_SEEDS} fresh seeds; from fewer, neither its mean "
            "nor the spread between seeds is known well enough.",
            f"set confirm.seeds to {FEWEST_SEEDS} or more; seeds that settle nothing are not trained",
        )


_PITFALLS: tuple[Pitfall, ...] = (
    *BATCH_PITFALLS,
    *SCHEDULE_PITFALLS,
    *RULE_PITFALLS,
    *FINE_TUNING_PITFALLS,
    _one_seed,
)
