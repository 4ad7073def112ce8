"""Optimizers whose step length is set layer by layer: LARS and LAMB.

The parameters of a group with ``adapt = False`` (norms, biases) are updated without a trust ratio.
"""

from typing import Any, final

import torch
from torch import Tensor

from sweep.training.recipe.foreach_optimizer import ForeachOptimizer, Group


@final
class Lars(ForeachOptimizer):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017, arXiv:1708.03888), algorithm 1.

    v <- m v + lr * eta |w| / (|g| + wd |w|) * (g + wd w);  w <- w - v
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float, trust_coefficient: float) -> None:
        defaults = {"lr": lr, "momentum": momentum, "trust_coefficient": trust_coefficient, "weight_decay": 0.0}
        super().__init__(groups, {**defaults, "adapt": True})

    def _make_state(self, group: Group, parameters: list[Tensor]) -> None:
        del group
        self._buffers(parameters, "momentum_buffer")

    def _update(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        decay = group["weight_decay"]
        updates = torch._foreach_add(gradients, parameters, alpha=decay)
        torch._foreach_mul_(updates, group["lr"])
        if group["adapt"]:
            weights, slopes = _norms(parameters), _norms(gradients)
            ratios = group["trust_coefficient"] * weights / (slopes + decay * weights)
            torch._foreach_mul_(updates, _where_both(weights, slopes, ratios))
        velocities = self._buffers(parameters, "momentum_buffer")
        torch._foreach_mul_(velocities, group["momentum"])
        torch._foreach_add_(velocities, updates)
        torch._foreach_sub_(parameters, velocities)


@final
class Lamb(ForeachOptimizer):
    """LAMB (You et al. 2019, arXiv:1904.00962), algorithm 2, with the identity for phi.

    u = Adam's direction + wd w;  w <- w - lr |w| / |u| * u
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adapt": True})

    def _make_state(self, group: Group, parameters: list[Tensor]) -> None:
        del group
        self._make_adam_state(parameters)

    def _update(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        updates = self._adam_directions(group, parameters, gradients)
        torch._foreach_add_(updates, parameters, alpha=group["weight_decay"])
        if group["adapt"]:
            weights, lengths = _norms(parameters), _norms(updates)
            torch._foreach_mul_(updates, _where_both(weights, lengths, weights / lengths))
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])


def _norms(tensors: list[Tensor]) -> Tensor:
    return torch.stack(list(torch._foreach_norm(tensors)))


def _where_both(weights: Tensor, lengths: Tensor, ratios: Tensor) -> list[Tensor]:
    # the ratio where both norms are above 0, else 1; decided on the device
    is_defined = (weights > 0) & (lengths > 0)
    return list(torch.where(is_defined, ratios, torch.ones_like(ratios)).unbind())
