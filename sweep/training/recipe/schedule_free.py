"""Schedule-free SGD and AdamW."""

from typing import Any, final

import torch
from torch import Tensor

from sweep.training.recipe.foreach_optimizer import ForeachOptimizer, Group


@final
class ScheduleFree(ForeachOptimizer):
    """Schedule-free learning (Defazio et al. 2024, arXiv:2405.15682), algorithm 1; SGD without ``adaptive``.

    y = (1 - beta) z + beta x;  g at y;  z <- z - lr (g / (sqrt(v) + eps) + wd y);  x <- (1 - c) x + c z
    with c = lr^2 / (sum of lr^2), where AdamW's lr carries sqrt(1 - beta2^t). While training the parameters hold y;
    :meth:`average` gives x, which must be evaluated and saved.
    """

    def __init__(
        self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float, *, adaptive: bool
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "adaptive": adaptive}
        super().__init__(groups, defaults)

    def average(self, parameter: Tensor) -> Tensor:
        """x of a ``parameter``; the parameter itself before the first step and where it is not trained."""
        if "z" not in self.state.get(parameter, {}):
            return parameter.detach()
        beta = self.param_groups[0]["betas"][0]
        return parameter.detach().lerp(self.state[parameter]["z"], 1 - 1 / beta)

    def _make_state(self, group: Group, parameters: list[Tensor]) -> None:
        self._sum(parameters, "weight_sum")
        for parameter in parameters:
            if "z" not in self.state[parameter]:
                self.state[parameter]["z"] = parameter.clone(memory_format=torch.preserve_format)
        if group["adaptive"]:
            self._sum(parameters, "num_steps")
            self._buffers(parameters, "exp_avg_sq")

    def _update(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        beta = group["betas"][0]
        fast = self._buffers(parameters, "z")
        lr, directions = self._directions(group, parameters, gradients)
        share = self._share(parameters, lr)
        updates = torch._foreach_add(directions, parameters, alpha=group["weight_decay"])
        torch._foreach_mul_(updates, lr)
        # beta x = y - (1 - beta) z
        torch._foreach_add_(parameters, fast, alpha=beta - 1)
        torch._foreach_sub_(fast, updates)
        torch._foreach_mul_(parameters, 1 - share)
        torch._foreach_add_(parameters, torch._foreach_mul(fast, 1 - beta + beta * share))

    def _directions(
        self, group: Group, parameters: list[Tensor], gradients: list[Tensor]
    ) -> tuple[Tensor | float, list[Tensor]]:
        if not group["adaptive"]:
            return group["lr"], gradients
        beta2 = group["betas"][1]
        squares = self._buffers(parameters, "exp_avg_sq")
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        lr = group["lr"] * (1 - beta2 ** self._count_step(parameters)).sqrt()
        return lr.to(parameters[0].dtype), list(torch._foreach_div(gradients, roots))

    def _share(self, parameters: list[Tensor], lr: Tensor | float) -> Tensor:
        # of this step in the average; 1 while the rate has been 0
        total = self._sum(parameters, "weight_sum").add_(lr**2)
        return torch.where(total > 0, lr**2 / total, 1.0)
