"""Growth of the batch that a training is too short for."""

from collections.abc import Iterator, Sequence
from math import ceil

from sweep.config.advice.advice_item import Advice
from sweep.config.advice.data_pitfalls import count_most_epochs
from sweep.config.trial_config import TrialConfig


def find_unreachable_growth(corners: Sequence[TrialConfig], num_train: int | None) -> Iterator[Advice]:
    """The advice against a batch that is to double at a plateau in trainings that end before it can; none where the
    number of their evaluations is not known."""
    found = [
        (config.batch.plateau_patience, evaluations)
        for config in corners
        if config.batch.schedule == "plateau"
        and (evaluations := _count_most_evaluations(config, num_train)) is not None
        and evaluations < config.batch.plateau_patience + 2  # the first sets the level, the last is at the end
    ]
    if found:
        patience, evaluations = min(found, key=lambda each: each[1] - each[0])
        lower = f"lower batch.plateau_patience to at most {evaluations - 2}, " if evaluations > 2 else ""
        yield Advice(
            "growth_after_the_end",
            "batch.schedule",
            f'batch.schedule = "plateau" doubles the batch at evaluation {patience + 1} at the earliest, and trainings '
            f"have {evaluations} at most, the last at their end: the batch never grows.",
            f"The first evaluation sets the level of the loss, and batch.plateau_patience = {patience} further ones "
            "have to be without progress. There is about one evaluation in each epoch.",
            f"{lower}lengthen the budget to {patience + 2} epochs or more, or choose another batch.schedule",
        )


def _count_most_evaluations(config: TrialConfig, num_train: int | None) -> int | None:
    if config.budget.target_accuracy is not None:  # evaluated more often than once in an epoch
        return None
    # until the batch grows, a training is that of a constant one
    constant = config.batch.model_copy(update={"schedule": "constant"})
    epochs = count_most_epochs(config.model_copy(update={"batch": constant}), num_train)
    return None if epochs is None else ceil(epochs)
