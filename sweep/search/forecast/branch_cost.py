"""The seconds of the branches that measure the local critical batch of a training."""

from typing import NamedTuple

from sweep.config.trial_config import TrialConfig
from sweep.training.diagnostics.branch_batches import HALVINGS, REPEATS, count_branch_samples, list_doubled_batches


class BranchPace(NamedTuple):
    """Seconds of the micro batches of an epoch, of one update, and of one pass over the validation split."""

    epoch: float
    update: float
    evaluation: float


def predict_branch_seconds(config: TrialConfig, epochs: float, num_train: int, pace: BranchPace) -> float:
    """The expected seconds of the branches of a training of ``epochs`` on ``num_train`` images; 0 where it has none.

    With which of the doubled batches the loss first exceeds the tolerance is not known: each is taken to be as likely,
    and as likely that none does.
    """
    section = config.diagnostics
    if section.branch_after is None or epochs < section.branch_after:
        return 0.0
    num_samples = count_branch_samples(section.branch_epochs, num_train)
    seconds = [
        section.branch_epochs * pace.epoch + num_samples / batch * pace.update + pace.evaluation
        for batch in list_doubled_batches(config.global_batch_size, num_train, num_samples)
    ]
    totals = [sum(seconds)]
    for first in range(1, len(seconds)):  # with which it exceeds the tolerance; those halfway take about the mean
        totals.append(sum(seconds[: first + 1]) + HALVINGS * (seconds[first - 1] + seconds[first]) / 2)
    return REPEATS * sum(totals) / len(totals)
