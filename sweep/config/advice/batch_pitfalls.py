"""Pitfalls of the choice of batch sizes."""

import math
from collections.abc import Iterator, Sequence

from sweep.config.advice.advice_item import Advice, Pitfall, is_swept, list_sizes, vary_widely
from sweep.config.study import StudySpec
from sweep.config.tables.models import has_batch_statistics
from sweep.config.trial_config import TrialConfig

_LARGE = 512  # samples: above all sizes that a study usually begins with
_MAX_ACCUMULATION = 16
_FEW_SAMPLES = 16  # of a batch normalization's statistics


def _much_accumulation(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    most = max(config.num_accumulation for config in corners)
    if most > _MAX_ACCUMULATION:
        yield Advice(
            "much_accumulation",
            "batch.accumulation",
            f"Up to {most} micro batches make one optimizer step.",
            f"Beyond {_MAX_ACCUMULATION} the saving in memory is small: parameters, gradients and optimizer state "
            "stay, and every step waits for all its micro batches.",
            "raise batch.micro, or lower batch.accumulation or batch.global",
            "accumulation_memory",
        )


def _only_large_batches(spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    sizes = list_sizes(corners)
    if sizes[0] >= _LARGE:
        yield Advice(
            "only_large_batches",
            next((key for key in spec.space if key.startswith("batch.")), "batch.micro"),
            f"The smallest effective batch size is {sizes[0]}.",
            "The largest batch that fits is seldom the one to use: beyond the throughput knee it saves no time, and "
            "at equal epochs it takes fewer steps. A study without smaller ones cannot show what they would give; a "
            "usual start is 128 to 256.",
            "add effective batch sizes from 128 on to the space",
            "large_batch_equal_epochs",
        )


def _few_samples_to_normalize(_spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    smallest = min(map(_count_normalized, corners))
    if smallest < _FEW_SAMPLES:
        yield Advice(
            "few_samples_to_normalise",
            "model.norm",
            f"Batch normalization takes each of its statistics from {smallest:g} samples.",
            f"Below {_FEW_SAMPLES} samples they are noisy, and accumulation does not help, because they are computed "
            "for each micro batch alone. Goyal et al. 2017 keep 32 samples on each worker.",
            'raise batch.micro (with model.norm = "ghost" also model.ghost_batch), or set model.norm = "group"; on '
            'several ranks model.norm = "sync"',
            "small_batch_norm",
        )


def _count_normalized(config: TrialConfig) -> float:
    # samples that a statistic is taken from; infinite where there is none, or where that is not known
    norm, ranks = config.model.norm, config.distributed.world_size
    if config.batch.is_auto or not has_batch_statistics(config.model.name, norm):
        return math.inf
    samples = min(config.micro_batch, math.ceil(config.global_batch_size / ranks))
    if norm == "ghost":
        return min(samples, config.model.ghost_batch)
    return samples * ranks if norm == "sync" else samples


def _only_fixed_epochs(spec: StudySpec, corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    sizes = list_sizes(corners)
    in_epochs = all(config.budget.samples is not None or _has_equal_epochs(config) for config in corners)
    if in_epochs and vary_widely(sizes) and not is_swept(spec, "budget.epochs", "budget.samples"):
        yield Advice(
            "only_fixed_epochs",
            "budget.epochs",
            f"Batches from {sizes[0]} to {sizes[-1]} are compared at equal epochs only.",
            f"The largest then takes {sizes[-1] // sizes[0]} times fewer steps, so that the study cannot tell a "
            "worse batch from a shorter training (Shallue et al. 2018; Hoffer et al. 2017).",
            "run the study once more with budget.steps, or with budget.target_accuracy, under another name",
            "large_batch_equal_steps",
        )


def _has_equal_epochs(config: TrialConfig) -> bool:
    return config.budget.epochs is not None and config.rules.epochs == "none"


BATCH_PITFALLS: tuple[Pitfall, ...] = (
    _only_large_batches,
    _much_accumulation,
    _few_samples_to_normalize,
    _only_fixed_epochs,
)
