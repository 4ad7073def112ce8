"""Adam's two moments, for optimizers that build on its direction."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def with_gradients(group: Mapping[str, Any]) -> tuple[list[Tensor], list[Tensor]]:
    """The parameters of ``group`` that have a gradient, and their gradients."""
    parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
    return parameters, [parameter.grad for parameter in parameters]


def buffers(state: Mapping[Tensor, dict[str, Any]], parameters: list[Tensor], name: str) -> list[Tensor]:
    """The tensor called ``name`` of each parameter's state; zeros like the parameter at first."""
    found = []
    for parameter in parameters:
        entry = state[parameter]
        if name not in entry:
            entry[name] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        found.append(entry[name])
    return found


def count_step(state: Mapping[Tensor, dict[str, Any]], parameters: list[Tensor]) -> int:
    """The number of this step, from 1; it is kept with the first parameter, so that it goes where the state goes."""
    entry = state[parameters[0]]
    entry["step"] = int(entry.get("step", 0)) + 1
    return int(entry["step"])


def adam_directions(
    state: Mapping[Tensor, dict[str, Any]],
    parameters: list[Tensor],
    gradients: list[Tensor],
    group: Mapping[str, Any],
) -> list[Tensor]:
    """Bias-corrected mean over the root of the bias-corrected mean square, as in Adam (arXiv:1412.6980)."""
    step = count_step(state, parameters)
    (beta1, beta2), eps = group["betas"], group["eps"]
    means, squares = buffers(state, parameters, "exp_avg"), buffers(state, parameters, "exp_avg_sq")
    torch._foreach_lerp_(means, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
    roots = torch._foreach_sqrt(squares)
    torch._foreach_div_(roots, math.sqrt(1 - beta2**step))
    torch._foreach_add_(roots, eps)
    directions = torch._foreach_div(means, roots)
    torch._foreach_div_(directions, 1 - beta1**step)
    return list(directions)
