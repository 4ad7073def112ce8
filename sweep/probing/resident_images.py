"""The memory of the images that a trial keeps on a GPU beside its training step. Imports no torch."""

from sweep.config.tables.datasets import DataFacts
from sweep.config.trial_config import TrialConfig
from sweep.training.constants import RESIDENT_SHARE, TRAIN_ACCURACY_IMAGES
from sweep.training.data.windows import choose_crop_pad

_LABEL_BYTES = 8


def count_resident_bytes(config: TrialConfig, facts: DataFacts, num_held_out: int, free_bytes: int) -> int:
    """Bytes of the train split with the border for crops, of its fixed part that train accuracy is measured on, and of
    ``num_held_out`` other images, as far as ``config`` keeps them on a GPU with ``free_bytes`` for a process.

    A train split of more than a quarter of these stays on the host. Images of files, which always do, are counted too.
    """
    if config.data.placement != "device":
        return 0
    channels, side = facts.shape.channels, facts.shape.side
    if facts.num_train * channels * side**2 > RESIDENT_SHARE * free_bytes:
        return 0
    padded = channels * (side + 2 * choose_crop_pad(config, side)) ** 2
    others = num_held_out + min(facts.num_train, TRAIN_ACCURACY_IMAGES)
    return facts.num_train * (padded + _LABEL_BYTES) + others * (channels * side**2 + _LABEL_BYTES)
