"""A plug-in: the noisy quadratic model as a model that trials train, so that what they measure is compared with theory.

The theory is in ``quadratic_theory.py``. A trial treats it as any other model: its output is two logits whose
cross entropy at class 0 *is* the quadratic loss, its data set has no other class, and an image counts as classified
when the loss is below ln 2. So ``val_loss`` is the exact loss, and ``budget.target_accuracy = 1`` gives the steps
until it falls to ln 2.
"""

from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.quadratic_theory import curvatures, noise_variances, start
from sweep.config.data_sections import DataSection
from sweep.config.recipe_sections import ModelSection
from sweep.config.tables.datasets import DATASETS, DatasetEntry, ImageShape
from sweep.config.tables.models import MODELS, ModelEntry
from sweep.training.data.images import ArrayImages
from sweep.training.data.splits import Source

_SIDE = 16
_NUM_TRAIN = 8192


@final
class NoisyQuadratic(nn.Module):
    """1/2 sum h_i x_i^2, with fresh noise in each sample's gradient while training: data without an end."""

    curvature: Tensor
    deviation: Tensor

    def __init__(self, dimensions: int) -> None:
        super().__init__()
        self.register_buffer("curvature", torch.from_numpy(curvatures(dimensions)).float())
        self.register_buffer("deviation", torch.from_numpy(np.sqrt(noise_variances(dimensions))).float())
        self.place = nn.Parameter(torch.from_numpy(start(dimensions)).float())

    def forward(self, images: Tensor) -> Tensor:
        """(n, ...) -> (n, 2); the content of the images is not used."""
        losses = (0.5 * self.curvature * self.place.square()).sum().expand(len(images))
        if self.training:
            noise = self.deviation * torch.randn(len(images), len(self.place), device=self.place.device)
            losses = losses + noise @ (self.place - self.place.detach())  # zero, but its gradient is the noise
        losses = losses.clamp_min(torch.finfo(losses.dtype).tiny)
        # log(exp(loss) - 1) beside 0: the logarithm of 1 + exp of it, the cross entropy, is the loss
        return torch.stack([torch.zeros_like(losses), losses + torch.log(-torch.expm1(-losses))], dim=1)


def build_noisy_quadratic(_section: ModelSection, shape: ImageShape) -> nn.Module:
    """One direction for each pixel."""
    return NoisyQuadratic(shape.side**2)


def make_blank_images(section: DataSection) -> Source:
    """``data.subset`` (8,192 when absent) black images of ``data.image_size`` pixels (16), all of one class.

    One more is for validation and one for the test: the loss is the same at each.
    """
    side = section.image_size or _SIDE

    def blank(count: int) -> ArrayImages:
        return ArrayImages(np.zeros((count, side, side, 1), dtype=np.uint8), np.zeros(count, dtype=np.int64))

    train = blank(section.subset or _NUM_TRAIN)
    return Source(train=train, num_classes=1, validation=blank(1), read_test=lambda: blank(1))


MODELS["noisy_quadratic"] = ModelEntry(build=build_noisy_quadratic, has_batch_statistics=False)
DATASETS["noisy_quadratic"] = DatasetEntry(load=make_blank_images, digest=lambda _section: "", depends_on_root=False)
