"""Images that are computed, as large and as many as needed. No torch here."""

import numpy as np

from sweep.config.data_sections import DataSection
from sweep.config.tables.datasets import DataFacts, ImageShape
from sweep.training.data.images import ArrayImages
from sweep.training.data.splits import Source


def find_synthetic_facts(section: DataSection) -> DataFacts:
    """``data.subset`` images for training (8,192 when absent) of ``data.image_size`` pixels (32)."""
    return DataFacts(ImageShape(channels=3, side=section.image_size or 32, num_classes=10), section.subset or 8192)


def make_synthetic(section: DataSection) -> Source:
    """Noise around one pattern per class, 3 channels, 10 classes: learnable, in the sizes of ``synthetic_facts``."""
    (_, side, num_classes), num_train = find_synthetic_facts(section)
    num_held_out = max(100, num_train // 10)
    generator = np.random.default_rng(0)
    patterns = generator.integers(64, 192, (num_classes, 4, 4, 3))

    def draw(count: int) -> ArrayImages:
        labels = np.arange(count, dtype=np.int64) % num_classes
        spread = np.arange(side) * 4 // side
        coarse = patterns[:, spread][:, :, spread].astype(np.int16)
        noise = generator.integers(-64, 65, (count, side, side, 3), dtype=np.int16)
        return ArrayImages(np.clip(coarse[labels] + noise, 0, 255).astype(np.uint8), labels)

    train, validation, test = draw(num_train), draw(num_held_out), draw(num_held_out)
    return Source(train=train, num_classes=num_classes, validation=validation, read_test=lambda: test)
