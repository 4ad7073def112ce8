"""A plug-in that breaks the GPU it is trained on: labels of no class, and a model that reads beyond its memory."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sweep.config.sections import DataSection, ModelSection
from sweep.config.tables import DATASETS, MODELS, DatasetEntry, ImageShape, ModelEntry
from sweep.training.data.images import ArrayImages, Source

_FAR_BYTES = 2**44


def wrong_labels(_section: DataSection) -> Source:
    pixels = np.zeros((512, 8, 8, 3), dtype=np.uint8)
    images = ArrayImages(pixels, np.full(512, 99, dtype=np.int64))
    return Source(train=images, num_classes=10, validation=images, read_test=lambda: images)


class _Beyond:
    """A piece of memory that claims to be far longer than it is."""

    def __init__(self, start: Tensor) -> None:
        self.start = start  # kept alive
        place = (start.data_ptr(), False)
        self.__cuda_array_interface__ = {"shape": (_FAR_BYTES,), "typestr": "|u1", "data": place, "version": 2}


class Stray(nn.Module):
    """A linear classifier that looks where nothing of its own lies."""

    def __init__(self, shape: ImageShape) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.channels * shape.side**2, shape.num_classes)

    def forward(self, images: Tensor) -> Tensor:
        whole: Any = torch.as_tensor(_Beyond(torch.zeros(512, device=images.device)), device=images.device)
        far = whole[_FAR_BYTES // 2 :][:1024].float().sum()
        return self.linear(images.flatten(1)) + far


def stray(_section: ModelSection, shape: ImageShape) -> nn.Module:
    return Stray(shape)


DATASETS["wrong_labels"] = DatasetEntry(load=wrong_labels)
MODELS["stray"] = ModelEntry(build=stray)
