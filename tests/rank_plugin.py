"""A plug-in whose models and data fail on the second rank, each in its own way."""

import os
from typing import NoReturn

import torch
from torch import nn

from sweep.config.sections import DataSection, ModelSection
from sweep.config.tables import DATASETS, MODELS, DatasetEntry, ImageShape, ModelEntry
from sweep.training.data.images import Images, Source
from sweep.training.data.published import load_digits


class _Failing(nn.Module):
    """A linear classifier that fails on rank 1 in its fourth forward pass, when the ranks are well under way."""

    def __init__(self, shape: ImageShape, error: type[Exception]) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.channels * shape.side**2, shape.num_classes)
        self.error = error
        self.num_calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        if self.num_calls == 4 and os.environ.get("RANK") == "1":
            self.fail()
        logits: torch.Tensor = self.linear(images.flatten(1))
        return logits

    def fail(self) -> NoReturn:
        raise self.error("the second rank has had enough")


def raising(_section: ModelSection, shape: ImageShape) -> nn.Module:
    return _Failing(shape, ArithmeticError)


def hungry(_section: ModelSection, shape: ImageShape) -> nn.Module:
    return _Failing(shape, torch.OutOfMemoryError)


def uneven(section: DataSection) -> Source:
    """Digits; the second rank is given ten images fewer."""
    source = load_digits(section)
    images: Images = source.train
    fewer = range(len(images) - (10 if os.environ.get("RANK") == "1" else 0))
    return Source(train=images.pick(torch.tensor(fewer).numpy()), num_classes=source.num_classes)


MODELS["raising"] = ModelEntry(build=raising)
MODELS["hungry"] = ModelEntry(build=hungry)
DATASETS["uneven"] = DatasetEntry(load=uneven)
