"""The images behind a table: CIFAR-10's from the archive under their usual name, shortened, with a validation split."""

from functools import cache

import numpy as np

from benchmarks.images import ARCHIVE, cifar_images, offer
from sweep.config.errors import InputError
from sweep.config.study import StudySpec

NUM_VALIDATION = 500  # an evaluation of more would take longer than the epoch before it


def offer_data(spec: StudySpec) -> None:
    """Makes ``data.name = "cifar10"`` the first ``data.subset`` of the shuffled images, and the next ones validation.

    Raises:
        InputError: the archive is missing.
    """
    if spec.base.get("data.name") == "cifar10":
        _offer_cifar(int(spec.base["data.subset"]))


@cache
def _offer_cifar(num_train: int) -> None:
    if not ARCHIVE.is_file():
        raise InputError(f"the archive of CIFAR-10's images is not at {ARCHIVE}; record another design.")
    # imported here, as by the trials: the modules behind it import torch
    import torch

    from benchmarks.harness import Setting

    images, _ = cifar_images(num_train + NUM_VALIDATION, Setting(torch.device("cpu")))
    order = np.arange(len(images))
    offer("cifar10", images.pick(order[:num_train]), images.pick(order[num_train:]))
