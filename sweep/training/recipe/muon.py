"""Muon: momentum made orthogonal, matrix by matrix."""

import math
from collections import defaultdict
from typing import Any, final

import torch
from torch import Tensor

from sweep.training.recipe.moments import adam_directions, buffers, with_gradients

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_EPS = 1e-7


def orthogonalize(matrices: Tensor) -> Tensor:
    """Nearly the nearest orthogonal matrices of a stack (n, rows, columns): singular values come to about 0.7 ... 1.2.

    Five quintic Newton-Schulz iterations with Jordan's coefficients (https://kellerjordan.github.io/posts/muon).
    """
    a, b, c = _COEFFICIENTS
    is_tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if is_tall else matrices
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=_EPS)
    for _ in range(_ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


@final
class Muon(torch.optim.Optimizer):
    """Muon (Jordan et al. 2024) for groups with ``matrix = True``, AdamW for the others.

    A convolution is the matrix (out, in * height * width). The update has the root mean square of AdamW's
    (0.2 sqrt(max(rows, columns)), Liu et al. 2025, arXiv:2502.16982), so both parts share learning rate and decay.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "matrix": False})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is None
        for group in self.param_groups:
            parameters, gradients = with_gradients(group)
            if not parameters:
                continue
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
            directions = self._orthogonal if group["matrix"] else self._adam
            torch._foreach_add_(parameters, directions(parameters, gradients, group), alpha=-group["lr"])

    def _adam(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        return adam_directions(self.state, parameters, gradients, group)

    def _orthogonal(self, parameters: list[Tensor], gradients: list[Tensor], group: dict[str, Any]) -> list[Tensor]:
        momentum = group["betas"][0]
        velocities = buffers(self.state, parameters, "momentum_buffer")
        torch._foreach_lerp_(velocities, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, velocities, momentum)  # Nesterov
        return _by_shape(list(ahead))


def _by_shape(updates: list[Tensor]) -> list[Tensor]:
    # matrices of one shape go through the iterations together: fewer and larger products
    places: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, update in enumerate(updates):
        places[update.shape[0], update[0].numel()].append(place)
    out = list(updates)
    for (rows, columns), members in places.items():
        stack = torch.stack([updates[place].reshape(rows, columns) for place in members])
        # bfloat16 is enough and fast where there are units for it
        narrow = stack.bfloat16() if stack.is_cuda and stack.dtype == torch.float32 else stack
        scaled = orthogonalize(narrow).to(stack.dtype).mul_(0.2 * math.sqrt(max(rows, columns)))
        for place, matrix in zip(members, scaled, strict=True):
            out[place] = matrix.reshape(updates[place].shape)
    return out
