"""Pitfalls of the data: where the images are, and how many there are for training."""

import math
from collections.abc import Iterator, Sequence

from sweep.config.advice.advice_item import Advice
from sweep.config.data_sections import DataSection
from sweep.config.study import StudySpec
from sweep.config.tables.datasets import DATASETS
from sweep.config.trial_config import TrialConfig

_FEW_EPOCHS = 20


def find_unread_root(corners: Sequence[TrialConfig]) -> Iterator[Advice]:
    """The advice against a folder that is given to a data set that reads none."""
    data = corners[0].data  # no study sweeps the name or the root
    entry = DATASETS[data.name]
    if data.root != DataSection.model_fields["root"].default and not entry.depends_on_root and entry.published is None:
        yield Advice(
            "root_not_read",
            "data.root",
            f"data.root is {data.root!r}, and the data set {data.name!r} reads no folder.",
            f"The images are those of {data.name!r}, whatever the folder holds.",
            'set data.name = "imagefolder" for a folder of images, or remove data.root',
        )


def find_oversized_batches(spec: StudySpec, corners: Sequence[TrialConfig], num_train: int | None) -> Iterator[Advice]:
    """The advice against effective batches larger than the training split of ``num_train`` images; none where no
    batch is, or where the images are not counted."""
    largest = max(config.global_batch_size for config in corners)
    if num_train is not None and largest > num_train:
        yield Advice(
            "batch_exceeds_data",
            next((key for key in spec.space if key.startswith("batch.")), "batch.micro"),
            f"The effective batch size reaches {largest:,}, and the training split has {num_train:,} images.",
            f"A step takes at most the images of one epoch, so every batch size above {num_train:,} trains with the "
            "same full-batch steps: such trials differ in name only.",
            f"lower the upper end of batch.* to at most {num_train:,} effective samples, or use more data",
        )


def find_short_growth(corners: Sequence[TrialConfig], num_train: int | None) -> Iterator[Advice]:
    """The advice against batches that grow in trainings of few epochs; none where the study also trains constant ones,
    or where the number of epochs is not known."""
    if any(config.batch.schedule == "constant" for config in corners):
        return
    lengths = [count_most_epochs(config, num_train) for config in corners]
    shortest = min((epochs for epochs in lengths if epochs is not None), default=math.inf)
    if shortest <= _FEW_EPOCHS:
        yield Advice(
            "growth_on_short_training",
            "batch.schedule",
            f"The batch grows during trainings of {shortest:.3g} epochs.",
            f"In {_FEW_EPOCHS} epochs or fewer hardly any step is left for the large batches that the growth is for, "
            "and nothing shows what it brings; 100 epochs or more are the rule of thumb.",
            'set batch.schedule = "constant", lengthen the budget, or compare both: "batch.schedule" = { choice = '
            f'["constant", "{corners[0].batch.schedule}"] }}',
            "batch_warmup",
        )


def count_most_epochs(config: TrialConfig, num_train: int | None) -> float | None:
    """The most epochs that the budget of ``config`` allows with ``num_train`` training images; None where that is not
    known."""
    budget = config.apply_rules().budget
    if budget.target_accuracy is not None:
        return budget.max_epochs
    if budget.epochs is not None or not num_train:
        return budget.epochs
    growth = 1.0 if config.batch.schedule == "constant" else config.batch.schedule_factor
    largest = min(growth * config.global_batch_size, num_train)
    samples = budget.steps * largest if budget.steps else budget.samples
    return samples / num_train if samples else None
