"""Pitfalls of a training that begins with given weights."""

from collections.abc import Iterator, Sequence

from sweep.config.advice.advice_item import Advice, Pitfall, list_sizes
from sweep.config.study import StudySpec
from sweep.config.tables.recipes import OPTIMIZERS
from sweep.config.trial_config import TrialConfig

_LARGE = 128  # samples
_SMALLER = 10  # times, the least by which a rate is to be below that of a training from scratch


def _large_batch_for_fine_tuning(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    sizes = list_sizes([config for config in corners if config.model.weights is not None])
    if sizes and sizes[-1] > _LARGE:
        yield Advice(
            "large_batch_for_fine_tuning",
            "batch.micro",
            f"Training from given weights with an effective batch size of up to {sizes[-1]}.",
            "Few steps are left to move from the given weights, and a rate that suits the batch undoes them; 16 to 64 "
            "samples and a rate 10 to 100 times smaller are the rule of thumb.",
            "add smaller batches to the space, and sweep optimizer.lr downwards",
            "fine_tune_small_batches",
        )


def _high_rate_for_fine_tuning(spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    tuned = [config.optimizer for config in corners if config.model.weights is not None]
    usual = {section.name: OPTIMIZERS[section.name].usual_lr for section in tuned}
    known = {name: rate for name, rate in usual.items() if rate is not None}
    lowest = _find_lowest_rate(spec, corners)
    high = sorted(name for name, rate in known.items() if lowest > rate / _SMALLER)
    if high:
        least = min(known[name] for name in high)
        yield Advice(
            "high_rate_for_fine_tuning",
            "optimizer.lr",
            f"Training from given weights with {', '.join(high)} at learning rates from {lowest:g} on.",
            f"That is of the size of training from scratch ({least:g}), with which the first steps undo what the "
            f"weights have learned; {_SMALLER} to 100 times less is the rule of thumb.",
            f"lower optimizer.lr, or the lower end of its range, to {least / 100:g} to {least / _SMALLER:g}",
            "fine_tune_small_batches",
        )


def _find_lowest_rate(spec: StudySpec, corners: Sequence[TrialConfig]) -> float:
    # as it is written, without rules.lr, which counts from the reference batch
    swept = spec.space.get("optimizer.lr")
    if swept is None:
        return min(config.optimizer.lr for config in corners)
    return min(float(rate) for rate in swept.extremes() if isinstance(rate, int | float))


FINE_TUNING_PITFALLS: tuple[Pitfall, ...] = (_large_batch_for_fine_tuning, _high_rate_for_fine_tuning)
