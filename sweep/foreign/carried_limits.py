"""What the columns of foreign records cannot show, as sentences."""

from collections.abc import Collection, Iterator, Set

from sweep.config.units import format_count, join_words

_ACCURACY, _SECONDS, _MEMORY = "val_accuracy", "train_seconds", "peak_memory_bytes"


def list_limits(present: Set[str], has_device: bool, dropped: Collection[str], batch_key: str) -> Iterator[str]:
    """A sentence for each thing that an answer from the quantities ``present`` lacks. ``dropped`` are those that were
    mapped and not read because no device is known; ``batch_key`` is the key that the batch size was read as."""
    if dropped:
        yield (
            f"The device is not on record: {join_words(sorted(dropped))} are of machines unknown and are not compared. "
            "Map a column as device, or state it in [constants]."
        )
    if _SECONDS not in present and _SECONDS not in dropped:
        yield "No training time is mapped: nothing is answered about time or speed."
    if _MEMORY not in present and _MEMORY not in dropped:
        yield "No memory is mapped: nothing is answered about memory."
    if has_device and present & {_SECONDS, _MEMORY}:
        yield (
            "Times and memory were measured by another program: whether other work disturbed them, and what they "
            "include, is not known."
        )
    if batch_key == "batch.micro":
        yield "The batch size is the micro batch times accumulation times ranks, each 1 where it is not mapped."
    if "config.optimizer.lr" not in present:
        yield "No learning rate is mapped: whether it was tuned for each batch size is not known."
    if not any(name.startswith("config.budget.") for name in present):
        yield "The length of the trainings is not mapped: that it is equal in all runs is assumed."
    yield "Which validation images were got right is not on record."


def describe_left_out(counts: dict[str, int]) -> Iterator[str]:
    """A sentence for each reason for which runs of the file are not in the frames."""
    for reason, count in counts.items():
        if count:
            yield f"{format_count(count, 'run')} left out: {reason}."
