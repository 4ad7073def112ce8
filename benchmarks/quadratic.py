"""The noisy quadratic model, on which everything that a trial should measure is known beforehand.

Zhang, Li, Nado, Martens, Sachdeva, Dahl, Shallue and Grosse 2019, "Which algorithmic choices matter at which batch
sizes? Insights from a noisy quadratic model" (arXiv:1907.04164): the loss is  1/2 sum_i h_i x_i^2  with the curvatures
h_i = 1 / i, and the gradient of one sample is  h_i x_i  plus noise of the variance  c_i = h_i.  Every x_i begins at 1.
Lengths are multiplied by ``UNIT``, so that a loss of 0.1 in those units is ln 2 nats.

The model and its blank images are registered under the name ``noisy_quadratic``. A trial treats the model as any other:
its output is two logits whose cross entropy at class 0 *is* the quadratic loss, its data set has no other class, and an
image counts as classified when the loss is below ln 2. So ``val_loss`` is the exact loss, and
``budget.target = 1`` gives the steps until it falls to ln 2.
"""

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sweep.config.sections import DataSection, ModelSection
from sweep.config.tables import DATASETS, MODELS, DatasetEntry, ImageShape, ModelEntry
from sweep.training.data.images import ArrayImages, Source

Vector = npt.NDArray[np.float64]

TARGET_LOSS = math.log(2.0)  # nats
UNIT = math.sqrt(TARGET_LOSS / 0.1)


def curvatures(dimensions: int) -> Vector:
    """Eigenvalues of the Hessian, the largest first: (dimensions,)."""
    return 1.0 / np.arange(1, dimensions + 1, dtype=np.float64)


def noise_variances(dimensions: int) -> Vector:
    return UNIT**2 * curvatures(dimensions)


def start(dimensions: int) -> Vector:
    return np.full(dimensions, UNIT)


def loss(squares: Vector) -> float:
    return 0.5 * float(curvatures(len(squares)) @ squares)


def expected_squares(
    rates: Sequence[float], batch: int | Sequence[int], dimensions: int, momentum: float = 0.0,
    begin: Vector | None = None,
) -> Vector:  # fmt: skip
    """E x_i^2 after each step of SGD, the beginning first: (len(rates) + 1, dimensions); ``batch`` may be one per step.
    It begins at ``start``, or where the coordinates have the expected squares ``begin`` (dimensions,).

    Exact for any learning rates: with v <- momentum v + g and x <- x - rate v, the expectations of x^2, x v and v^2
    after a step are linear in those before it. At a constant rate a and without momentum they are what the paper gives,

        E x_i(t)^2 = (1 - a h_i)^(2t) x_i(0)^2 + (1 - (1 - a h_i)^(2t)) a c_i / (B h_i (2 - a h_i)).
    """
    curve, batches = curvatures(dimensions), np.broadcast_to(batch, len(rates))
    place = start(dimensions) ** 2 if begin is None else begin
    both, velocity = np.zeros(dimensions), np.zeros(dimensions)
    squares = [place]
    for rate, size in zip(rates, batches, strict=True):
        noise = noise_variances(dimensions) / size
        velocity = momentum**2 * velocity + 2 * momentum * curve * both + curve**2 * place + noise
        before = momentum * both + curve * place  # E of the old place and the new velocity
        place, both = place - 2 * rate * before + rate**2 * velocity, before - rate * velocity
        squares.append(place)
    return np.stack(squares)


def expected_losses(
    rates: Sequence[float], batch: int | Sequence[int], dimensions: int, momentum: float = 0.0
) -> Vector:
    """The expected loss after each step of SGD, the start first: (len(rates) + 1,)."""
    return 0.5 * expected_squares(rates, batch, dimensions, momentum) @ curvatures(dimensions)


def steps_until(steps: Sequence[float], losses: Sequence[float], level: float = TARGET_LOSS) -> float:
    """The step at which the loss falls to ``level`` first, on straight lines between the logarithms; NaN if never."""
    reached = next((place for place, value in enumerate(losses) if value <= level), None)
    if reached is None:
        return math.nan
    if reached == 0:
        return steps[0]
    above, below = math.log(losses[reached - 1] / level), math.log(losses[reached] / level)
    return steps[reached - 1] + above / (above - below) * (steps[reached] - steps[reached - 1])


def noise_scale(squares: Vector) -> float:
    """The simple noise scale tr(S) / |G|^2 in samples (McCandlish et al. 2018, arXiv:1812.06162, equation 2.9)."""
    curve = curvatures(len(squares))
    return float(noise_variances(len(squares)).sum() / (curve**2 @ squares))


def critical_batch(squares: Vector) -> float:
    """The batch from which a step at its best rate gains half of what it gains with the exact gradient:
    tr(H S) / G^T H G (the same, equations 2.7 and 2.8)."""
    curve = curvatures(len(squares))
    return float((curve @ noise_variances(len(squares))) / (curve**3 @ squares))


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


def _build_model(_section: ModelSection, shape: ImageShape) -> nn.Module:
    return NoisyQuadratic(shape.side**2)


def _make_images(section: DataSection) -> Source:
    """``data.subset`` (8,192 when absent) black images of ``data.image_size`` pixels (16), all of one class.

    One more is for validation and one for the test: the loss is the same at each.
    """
    side = section.image_size or 16

    def blank(count: int) -> ArrayImages:
        return ArrayImages(np.zeros((count, side, side, 1), dtype=np.uint8), np.zeros(count, dtype=np.int64))

    train = blank(section.subset or 8192)
    return Source(train=train, num_classes=1, validation=blank(1), read_test=lambda: blank(1))


MODELS["noisy_quadratic"] = ModelEntry(build=_build_model, has_batch_statistics=False)
DATASETS["noisy_quadratic"] = DatasetEntry(load=_make_images, digest=lambda _section: "", depends_on_root=False)
