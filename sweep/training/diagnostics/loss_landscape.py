"""The loss over a fixed set of images as a function of a model's weights: value, gradient, curvature.

Everything is at rest: in evaluation mode, so that batch norm uses its running statistics, dropout rests and the
function is the same whenever it is asked. The loss is cross entropy in nats, without label smoothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from sweep.training.data.feeders import Batch
from sweep.training.supervisor_link import SUPERVISOR_LINK
from sweep.training.world import SOLO, World

WeightVector = NDArray[np.float64]  # all trained weights, one after another


@final
class LossLandscape:
    """The mean loss of ``model`` over ``batches`` as a function of the ``trained`` parameters, by name.

    Of several ranks each brings its own part of the images; every method is then for all of them to call together.
    To be used inside :meth:`at_rest`.
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
        self._measure_normalization = normalize
        self._batches = batches
        self._world = world
        self._count = int(world.sum(torch.tensor(sum(len(labels) for _, labels in batches()), device=self._device)))

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Evaluation mode, and gradients of the trained weights; afterwards the model is as it was, to the last bit."""
        modes = [(module, module.training) for module in self._model.modules()]
        wanted = [(parameter, parameter.requires_grad) for parameter in self._parameters]
        before = [parameter.detach().clone() for parameter in self._parameters]
        self._model.eval()
        for parameter in self._parameters:
            parameter.requires_grad_(True)  # those of a moving average have none
        try:
            with sdpa_kernel(SDPBackend.MATH):  # the only attention with second derivatives
                yield
        finally:
            for parameter, value in zip(self._parameters, before, strict=True):
                parameter.data.copy_(value)
            for parameter, is_wanted in wanted:
                parameter.requires_grad_(is_wanted)
            for module, mode in modes:
                module.training = mode

    def place(self) -> WeightVector:
        """Where the model stands."""
        return self._flat(self._parameters).detach().double().cpu().numpy()

    def move_to(self, place: WeightVector) -> None:
        """Gives the model other weights."""
        values = torch.split(torch.from_numpy(place), [parameter.numel() for parameter in self._parameters])
        for parameter, value in zip(self._parameters, values, strict=True):
            parameter.data.copy_(value.view_as(parameter))

    def slope(self) -> tuple[float, WeightVector]:
        """The loss here and its gradient."""
        loss, total = torch.zeros((), dtype=torch.float64, device=self._device), self._zeros()
        for part in self._parts():
            total += self._flat(torch.autograd.grad(part, self._parameters, materialize_grads=True))
            loss += part.detach()
        return float(self._world.sum(loss)), self._world.sum(total).double().cpu().numpy()

    def curve(self, direction: Tensor) -> Tensor:
        """The Hessian times ``direction``, which is as long as all trained weights; by differentiating twice."""
        total = self._zeros()
        for part in self._parts():
            first = torch.autograd.grad(part, self._parameters, create_graph=True, materialize_grads=True)
            along = torch.dot(self._flat(first), direction)
            if along.requires_grad:  # else the loss is linear in the weights
                total += self._flat(torch.autograd.grad(along, self._parameters, materialize_grads=True))
        return self._world.sum(total)

    def random_direction(self, seed: int) -> Tensor:
        """A direction of length 1; the same on every device and rank."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(len(self._zeros()), generator=generator, dtype=torch.float64)
        return torch.nn.functional.normalize(drawn, dim=0).to(self._zeros())

    def _parts(self) -> Iterator[Tensor]:
        # each batch's share of the mean loss
        for images, labels in self._batches():
            SUPERVISOR_LINK.send_heartbeat()
            logits = self._model(self._measure_normalization(images))
            yield cross_entropy(logits, labels, reduction="sum") / self._count

    def _zeros(self) -> Tensor:
        kind = self._parameters[0]
        return kind.new_zeros(sum(parameter.numel() for parameter in self._parameters))

    @property
    def _device(self) -> torch.device:
        return self._parameters[0].device

    @staticmethod
    def _flat(tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([tensor.reshape(-1) for tensor in tensors])
