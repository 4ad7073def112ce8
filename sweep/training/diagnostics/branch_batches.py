"""Which batches the branches of a training try, and how many trainings that makes; known before any of it is trained.
Imports no torch."""

from collections.abc import Iterator

REPEATS = 3  # of each batch, with other samples
HALVINGS = 2  # of the interval between the last batch that keeps to the tolerance and the first that does not
_LEAST_STEPS = 4  # of a branch


def count_branch_samples(epochs: float, num_train: int) -> int:
    """The samples of a branch of ``epochs`` passes over ``num_train`` images."""
    return max(1, round(epochs * num_train))


def list_doubled_batches(batch: int, num_train: int, num_samples: int) -> Iterator[int]:
    """``batch`` and its doubles, as far as branches of ``num_samples`` can be compared."""
    yield batch
    while (batch := 2 * batch) <= min(num_train, num_samples // _LEAST_STEPS):
        yield batch
