"""What the optimizers of this project have in common: they work on lists of tensors, as torch's foreach ones do."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

Group = Mapping[str, Any]


class ForeachOptimizer(torch.optim.Optimizer, ABC):
    """Steps group by group, over the parameters that have a gradient.

    With a loss scaler a step whose gradients overflowed changes neither parameters nor state. That is decided on the
    device, so that the host does not wait for it: torch's scaler sets ``found_inf`` and ``grad_scale``.
    """

    _step_supports_amp_scaling = True  # for torch's scaler, which reads its findings on the host otherwise
    found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        assert closure is None
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if parameters:
                self._make_state(group, parameters)
                self._step_group(group, parameters, [parameter.grad for parameter in parameters])

    @abstractmethod
    def _make_state(self, group: Group, parameters: list[Tensor]) -> None:
        """Makes what the state of ``parameters`` lacks, which is all of it before the first step."""

    @abstractmethod
    def _update(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Changes ``parameters``, which are not empty, and their state in place."""

    def _step_group(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        if self.found_inf is None:
            self._update(group, parameters, gradients)
            return
        scale: Tensor | None = getattr(self, "grad_scale", None)  # None where the gradients were unscaled before
        if scale is not None:
            torch._foreach_mul_(gradients, scale.double().reciprocal().to(gradients[0].dtype))
        is_lost = self.found_inf > 0
        for gradient in gradients:
            gradient.masked_fill_(is_lost, 0.0)  # so that all values stay finite, and 0 times a value is 0
        lost = is_lost.to(parameters[0].dtype)
        values = [*parameters, *(value for parameter in parameters for value in self.state[parameter].values())]
        before = torch._foreach_mul(values, lost)
        self._update(group, parameters, gradients)
        torch._foreach_mul_(values, 1.0 - lost)
        torch._foreach_add_(values, before)

    def _buffers(self, parameters: list[Tensor], name: str) -> list[Tensor]:
        """The tensor called ``name`` of each parameter's state, initially zero."""
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        return [self.state[parameter][name] for parameter in parameters]

    def _sum(self, parameters: list[Tensor], name: str) -> Tensor:
        """The number called ``name``, a scalar on the device, initially zero; kept in the state of the first parameter,
        so that checkpoints hold it. Not ``step``, which torch restores on the host."""
        entry = self.state[parameters[0]]
        if name not in entry:
            entry[name] = parameters[0].new_zeros(())
        number: Tensor = entry[name]
        return number

    def _count_step(self, parameters: list[Tensor]) -> Tensor:
        """The number of this step, from 1: a scalar in 64 bits, in which the powers of betas are exact enough."""
        return self._sum(parameters, "num_steps").add_(1).double()

    def _make_adam_state(self, parameters: list[Tensor]) -> None:
        self._sum(parameters, "num_steps")
        self._buffers(parameters, "exp_avg")
        self._buffers(parameters, "exp_avg_sq")

    def _adam_directions(self, group: Group, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        """Bias-corrected mean over the root of the bias-corrected mean square, as in Adam (arXiv:1412.6980)."""
        step, dtype = self._count_step(parameters), parameters[0].dtype
        (beta1, beta2), eps = group["betas"], group["eps"]
        means, squares = self._buffers(parameters, "exp_avg"), self._buffers(parameters, "exp_avg_sq")
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_div_(roots, (1 - beta2**step).sqrt().to(dtype))
        torch._foreach_add_(roots, eps)
        directions = torch._foreach_div(means, roots)
        torch._foreach_div_(directions, (1 - beta1**step).to(dtype))
        return list(directions)
