"""Images that are computed, as large and as many as needed. No torch here."""

import numpy as np

from sweep.config.data_sections import DataSection
from sweep.config.tables.datasets import DataFacts, ImageShape
from sweep.records.data_summary import DataSummary
from sweep.training.data.images import ArrayImages, Indices
from sweep.training.data.splits import Source
from sweep.training.data.summaries import count_classes


def find_synthetic_facts(section: DataSection) -> DataFacts:
    """``data.subset`` images for training (8,192 when absent) of ``data.image_size`` pixels (32)."""
    return DataFacts(ImageShape(channels=3, side=section.image_size or 32, num_classes=10), section.subset or 8192)


def make_synthetic(section: DataSection) -> Source:
    """Noise around one pattern per class, 3 channels, 10 classes: learnable, in the sizes of ``synthetic_facts``."""
    (_, side, num_classes), num_train = find_synthetic_facts(section)
    num_held_out = _count_held_out(num_train)
    generator = np.random.default_rng(0)
    patterns = generator.integers(64, 192, (num_classes, 4, 4, 3))

    def draw(count: int) -> ArrayImages:
        labels = _label(count, num_classes)
        spread = np.arange(side) * 4 // side
        coarse = patterns[:, spread][:, :, spread].astype(np.int16)
        noise = generator.integers(-64, 65, (count, side, side, 3), dtype=np.int16)
        return ArrayImages(np.clip(coarse[labels] + noise, 0, 255).astype(np.uint8), labels)

    train, validation, test = draw(num_train), draw(num_held_out), draw(num_held_out)
    return Source(train=train, num_classes=num_classes, validation=validation, read_test=lambda: test)


def summarize_synthetic(section: DataSection, _on_progress: object = None, _may_download: bool = False) -> DataSummary:
    """The summary, without computing the images; they depend on the other keys of the section and on nothing else."""
    (channels, side, num_classes), num_train = find_synthetic_facts(section)
    num_held_out = _count_held_out(num_train)
    labels = {"train": _label(num_train, num_classes)} | {
        split: _label(num_held_out, num_classes) for split in ("val", "test")
    }
    return DataSummary(
        name=section.name,
        num_train=num_train,
        num_val=num_held_out,
        num_test=num_held_out,
        classes=count_classes(labels, [str(label) for label in range(num_classes)]),
        held_out="validation and test: drawn from the same patterns",
        sizes={f"{side} x {side}": num_train + 2 * num_held_out},
        modes={f"{channels} channels": num_train + 2 * num_held_out},
        digest="synthetic",
    )


def _count_held_out(num_train: int) -> int:
    return max(100, num_train // 10)


def _label(count: int, num_classes: int) -> Indices:
    return np.arange(count, dtype=np.int64) % num_classes
