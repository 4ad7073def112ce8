"""What the optimizers of this project have in common: they work on lists of tensors, as torch's foreach ones do."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Group = Mapping[str, Any]


class ForeachOptimizer(torch.optim.Optimizer, ABC):
    """Steps group by group, over the parameters that have a gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._update(group, parameters, [parameter.grad for parameter in parameters])

    @abstractmethod
    def _update(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Changes ``parameters``, which are not empty, in place."""

    def _buffers(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """The tensor called ``name`` of each parameter's state, initially zero."""
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return [self.state[parameter][name] for parameter in parameters]

    def _count_step(self, parameters: list[Tensor]) -> int:
        """The number of this step, from 1; kept in the state of the first parameter, so that checkpoints hold it."""
        entry = self.state[parameters[0]]
        entry["step"] = int(entry.get("step", 0)) + 1
        return int(entry["step"])

    def _adam_directions(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Bias-corrected mean over the root of the bias-corrected mean square, as in Adam (arXiv:1412.6980)."""
        step = self._count_step(parameters)
        (beta1, beta2), eps = group["betas"], group["eps"]
        means, squares = self._buffers(parameters, "exp_avg"), self._buffers(parameters, "exp_avg_sq")
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, math.sqrt(1 - beta2**step))
        torch._foreach_add_(roots, eps)
        directions = torch._foreach_div(means, roots)
        torch._foreach_div_(directions, 1 - beta1**step)
        return list(directions)
