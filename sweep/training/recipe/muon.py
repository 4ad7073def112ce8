"""Muon: the momentum of each matrix is orthogonalized."""

import math
from collections import defaultdict
from typing import Any, final

import torch
from torch import Tensor

from sweep.training.recipe.foreach_optimizer import ForeachOptimizer, Group

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_EPS = 1e-7


def orthogonalize_matrices(matrices: Tensor) -> Tensor:
    """Approximately the nearest orthogonal matrices of a stack (n, rows, columns): singular values are 0.7 ... 1.2.

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
class Muon(ForeachOptimizer):
    """Muon (Jordan et al. 2024) for groups with ``matrix = True``, AdamW for the others.

    A convolution is the matrix (out, in * height * width); a parameter of a group with ``num_stacked`` = n holds n
    matrices one below the other, as attention holds those of queries, keys and values. The update has the root mean
    square of AdamW's (0.2 sqrt(max(rows, columns)), Liu et al. 2025, arXiv:2502.16982), so both parts share learning
    rate and decay.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0}
        super().__init__(groups, {**defaults, "matrix": False, "num_stacked": 1})

    def _make_state(self, group: Group, parameters: list[Tensor]) -> None:
        if group["matrix"]:
            self._buffers(parameters, "momentum_buffer")
        else:
            self._make_adam_state(parameters)

    def _update(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        directions = self._orthogonal_directions if group["matrix"] else self._adam_directions
        torch._foreach_add_(parameters, directions(group, parameters, gradients), alpha=-group["lr"])

    def _orthogonal_directions(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        momentum = group["betas"][0]
        velocities = self._buffers(parameters, "momentum_buffer")
        torch._foreach_lerp_(velocities, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, velocities, momentum)  # Nesterov
        count = group["num_stacked"]
        if count == 1:
            return _orthogonalize_by_shape(list(ahead))
        orthogonal = _orthogonalize_by_shape([part for update in ahead for part in update.chunk(count)])
        return [torch.cat(orthogonal[start : start + count]) for start in range(0, len(orthogonal), count)]


def _orthogonalize_by_shape(updates: list[Tensor]) -> list[Tensor]:
    # matrices of one shape are stacked: fewer and larger products
    indices: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, update in enumerate(updates):
        indices[update.shape[0], update[0].numel()].append(index)
    out = list(updates)
    for (rows, columns), members in indices.items():
        stack = torch.stack([updates[index].reshape(rows, columns) for index in members])
        # bfloat16 is precise enough, and fast on a GPU
        narrow = stack.bfloat16() if stack.is_cuda and stack.dtype == torch.float32 else stack
        scaled = orthogonalize_matrices(narrow).to(stack.dtype).mul_(0.2 * math.sqrt(max(rows, columns)))
        for index, matrix in zip(members, scaled, strict=True):
            out[index] = matrix.reshape(updates[index].shape)
    return out
