"""The plug-in behind the studies of :mod:`benchmarks.forecast_studies` that train on real images: a part of CIFAR-10 as
one file, because each trial is a process of its own, which cannot decode the archive again."""

from pathlib import Path

import numpy as np

from sweep.config.data_sections import DataSection
from sweep.config.tables.datasets import DATASETS, DatasetEntry
from sweep.training.data.images import ArrayImages
from sweep.training.data.splits import Source

NAME = "cifar10_part"  # of the data set, and of the file under ``data.root``


def load_part(section: DataSection) -> Source:
    """The images of the file."""
    stored = np.load(Path(section.root) / f"{NAME}.npz", allow_pickle=False)
    return Source(train=ArrayImages(stored["pixels"], stored["labels"]), num_classes=10)


DATASETS[NAME] = DatasetEntry(load=load_part)
