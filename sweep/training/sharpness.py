"""How sharp the minimum is that a training found: the curvature there, and the rise of the loss around it."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from sweep.config.trial import TrialConfig
from sweep.training.data.feeders import Batch, make_plain_batches, shard_images
from sweep.training.evaluation import averaged_model, evaluation_mode
from sweep.training.processes import SUPERVISOR_LINK
from sweep.training.setup import TrainingSetup, pick_train_images
from sweep.training.world import SOLO, World

_WeightVector = NDArray[np.float64]  # all trained weights in one vector

_IMAGES = 1024  # of the train split that the loss is the mean over, at most
_BATCH = 64  # differentiating twice requires several times the activations of a step
_TOLERANCE = 1e-4  # relative change of the eigenvalue from product to product
_MAX_ITERATIONS = 100
_KESKAR_ITERATIONS = 10  # of L-BFGS-B, as in the paper
_HISTORY = 5  # vectors that L-BFGS-B keeps, each as large as the model; the paper does not give their number
_START_SEED = 0


def measure_sharpness(config: TrialConfig, setup: TrainingSetup) -> dict[str, float]:
    """Both measures by metric, at the weights that are evaluated, over a fixed part of the train split."""
    step = setup.step
    images = shard_images(pick_train_images(setup.splits, _IMAGES), step.world)
    size = min(_BATCH, setup.planner.micro)
    batches_of = make_plain_batches(config, images, step.normalize.mean.device)
    trained = frozenset(name for name, parameter in setup.model.named_parameters() if parameter.requires_grad)
    with averaged_model(step, setup.statistics_batches) as model:
        landscape = LossLandscape(model, trained, step.normalize, lambda: batches_of(size), step.world)
        with landscape.fix_model():
            return {
                "sharpness_eigenvalue": find_top_eigenvalue(landscape),
                "sharpness_keskar": measure_keskar_sharpness(landscape),
            }


@final
class LossLandscape:
    """The mean loss of ``model`` over ``batches`` as a function of the ``trained`` parameters, which are given by name.

    The loss is cross entropy in nats, without label smoothing. Each of several ranks has its own part of the images;
    all ranks must call each method together. The methods must be called inside :meth:`fix_model`.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: frozenset[str],
        normalize: Callable[[Tensor], Tensor],
        batches: Callable[[], Iterable[Batch]],
        world: World = SOLO,
    ) -> None:
        self._model = model
        self._parameters = [parameter for name, parameter in model.named_parameters() if name in trained]
        self._normalize = normalize
        self._batches = batches
        self._world = world
        self._count = int(world.sum(torch.tensor(sum(len(labels) for _, labels in batches()), device=self._device)))

    @contextmanager
    def fix_model(self) -> Iterator[None]:
        """Evaluation mode, so that the loss is a function of the weights; afterwards the model is unchanged."""
        before = [(parameter, parameter.detach().clone(), parameter.requires_grad) for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.requires_grad_(True)  # a moving average is without
        try:
            with evaluation_mode(self._model), sdpa_kernel(SDPBackend.MATH):  # has second derivatives
                yield
        finally:
            for parameter, value, requires_grad in before:
                parameter.data.copy_(value)
                parameter.requires_grad_(requires_grad)

    def weights(self) -> _WeightVector:
        return self._flat(self._parameters).detach().double().cpu().numpy()

    def set_weights(self, weights: _WeightVector) -> None:
        values = torch.split(torch.from_numpy(weights), [parameter.numel() for parameter in self._parameters])
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.data.copy_(value.view_as(parameter))

    def loss_and_gradient(self) -> tuple[float, _WeightVector]:
        loss, total = torch.zeros((), dtype=torch.float64, device=self._device), self._zeros()
        for share in self._shares():
            total += self._flat(torch.autograd.grad(share, self._parameters, materialize_grads=True))
            loss += share.detach()
        return float(self._world.sum(loss)), self._world.sum(total).double().cpu().numpy()

    def hessian_product(self, direction: Tensor) -> Tensor:
        """The Hessian times ``direction`` (number of weights,), by differentiating twice."""
        total = self._zeros()
        for share in self._shares():
            first = torch.autograd.grad(share, self._parameters, create_graph=True, materialize_grads=True)
            along = torch.dot(self._flat(first), direction)
            if along.requires_grad:  # else the loss is linear in the weights
                total += self._flat(torch.autograd.grad(along, self._parameters, materialize_grads=True))
        return self._world.sum(total)

    def random_direction(self, seed: int) -> Tensor:
        """A direction (number of weights,) of length 1; the same on every device and rank."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(len(self._zeros()), generator=generator, dtype=torch.float64)
        return torch.nn.functional.normalize(drawn, dim=0).to(self._zeros())

    def _shares(self) -> Iterator[Tensor]:
        # each batch's share of the mean loss
        for images, labels in self._batches():
            SUPERVISOR_LINK.send_heartbeat()
            logits = self._model(self._normalize(images))
            yield cross_entropy(logits, labels, reduction="sum") / self._count

    def _zeros(self) -> Tensor:
        return self._parameters[0].new_zeros(sum(parameter.numel() for parameter in self._parameters))

    @property
    def _device(self) -> torch.device:
        return self._parameters[0].device

    @staticmethod
    def _flat(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])


def find_top_eigenvalue(landscape: LossLandscape) -> float:
    """The largest eigenvalue of the Hessian of the mean loss, in nats per squared weight.

    By Lanczos's method: it converges with a fraction of the Hessian products that power iteration requires, and finds
    the largest eigenvalue also where the one of largest magnitude is negative.
    """
    direction, before = landscape.random_direction(_START_SEED), None
    diagonal: list[float] = []
    off_diagonal: list[float] = []
    estimates: list[float] = []
    while len(diagonal) < _MAX_ITERATIONS and not _has_converged(estimates[-3:]):
        image = landscape.hessian_product(direction)
        diagonal.append(float(torch.dot(direction, image)))
        image -= diagonal[-1] * direction
        if before is not None:
            image -= off_diagonal[-1] * before
        estimates.append(_largest(diagonal, off_diagonal))
        length = float(image.norm())
        if length <= _TOLERANCE**2 * abs(estimates[-1]):  # the vectors so far span an invariant subspace
            break
        off_diagonal.append(length)
        direction, before = image / length, direction
    return estimates[-1]


def _largest(diagonal: list[float], off_diagonal: list[float]) -> float:
    # eigenvalue of the tridiagonal matrix
    return float(np.linalg.eigvalsh(np.diag(diagonal) + np.diag(off_diagonal, -1))[-1])  # uses the lower triangle only


def _has_converged(values: list[float]) -> bool:
    # twice in succession, because the first estimates may change slowly
    return len(values) == 3 and all(abs(new - old) <= _TOLERANCE * abs(new) for old, new in pairwise(values))


def measure_keskar_sharpness(landscape: LossLandscape, epsilon: float = 1e-3) -> float:
    """Metric 2.1 of Keskar et al. 2017 (arXiv:1609.04836) in the whole space (A the identity), in percent.

        phi = (max f(x + z) - f(x)) / (1 + f(x)) * 100  over the box  |z_i| <= epsilon (|x_i| + 1)

    f is the mean loss. Its maximum is what 10 iterations of L-BFGS-B from z = 0 find, as in the paper: a lower bound.
    Like the top eigenvalue it changes when the weights before a normalization are rescaled, although the model does not
    (Dinh et al. 2017, arXiv:1703.04933).
    """
    from scipy.optimize import Bounds, minimize  # slow to import, and only these trials need it

    start = landscape.weights()
    reach = epsilon * (np.abs(start) + 1.0)
    losses: list[float] = []

    def descent(offset: _WeightVector) -> tuple[float, _WeightVector]:
        landscape.set_weights(start + offset)
        value, gradient = landscape.loss_and_gradient()
        losses.append(value)
        return -value, -gradient

    limits = {"maxiter": _KESKAR_ITERATIONS, "maxcor": _HISTORY, "ftol": 0.0, "gtol": 0.0}
    minimize(descent, np.zeros_like(start), jac=True, method="L-BFGS-B", bounds=Bounds(-reach, reach), options=limits)
    landscape.set_weights(start)
    return (max(losses) - losses[0]) / (1.0 + losses[0]) * 100.0
