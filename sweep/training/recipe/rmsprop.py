"""RMSprop, of which torch has no version that leaves the findings of a loss scaler on the device."""

from typing import Any, final

import torch
from torch import Tensor

from sweep.training.recipe.foreach_optimizer import ForeachOptimizer, Group


@final
class RmsProp(ForeachOptimizer):
    """RMSprop (Tieleman and Hinton 2012, lecture 6.5), with momentum and weight decay as in ``torch.optim.RMSprop``.

    g <- g + wd w;  v <- alpha v + (1 - alpha) g^2;  u <- m u + g / (sqrt(v) + eps);  w <- w - lr u
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, alpha: float, eps: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "alpha": alpha, "eps": eps, "momentum": momentum, "weight_decay": 0.0})

    def _make_state(self, group: Group, parameters: list[Tensor]) -> None:
        self._buffers(parameters, "square_avg")
        if group["momentum"]:
            self._buffers(parameters, "momentum_buffer")

    def _update(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        if group["weight_decay"]:
            gradients = list(torch._foreach_add(gradients, parameters, alpha=group["weight_decay"]))
        squares = self._buffers(parameters, "square_avg")
        torch._foreach_mul_(squares, group["alpha"])
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["alpha"])
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        updates = list(torch._foreach_div(gradients, roots))
        if group["momentum"]:
            velocities = self._buffers(parameters, "momentum_buffer")
            torch._foreach_mul_(velocities, group["momentum"])
            torch._foreach_add_(velocities, updates)
            updates = velocities
        torch._foreach_add_(parameters, updates, alpha=-group["lr"])
