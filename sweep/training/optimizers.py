"""The optimizers of :data:`sweep.config.tables.OPTIMIZERS`: what builds each, and those that torch does not have.

Fused where torch has it: one kernel for all parameters. The others work on lists of tensors (foreach). With fp16 none
of them waits for the device to find out whether gradients overflowed. ``optimizer.momentum`` is beta1 of Adam.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from sweep.config.errors import InputError
from sweep.config.scaling import AdamConstants, scale_adam_constants, scale_lr, scale_weight_decay
from sweep.config.sections import OptimizerSection
from sweep.config.tables import OPTIMIZERS, find_entry, resolve
from sweep.config.trial import TrialConfig

_Groups = list[dict[str, Any]]
_Group = Mapping[str, Any]
_SUMS = frozenset({"num_steps", "weight_sum"})
_ADAM_STATE = ("num_steps", "exp_avg", "exp_avg_sq")
# Muon's Newton-Schulz iteration, with Jordan's coefficients.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_EPS = 1e-7


def build_optimizer(config: TrialConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that ``config`` names, with the peak learning rate as its default; weight decay spares norms,
    biases and embeddings. Raises ``InputError``: for an unknown name, or a momentum that the optimizer cannot work
    with."""
    section, rules, size = config.optimizer, config.rules, config.global_batch_size
    entry = find_entry("optimizer", section.name, OPTIMIZERS)
    groups = _group_parameters(model, entry.groups, scale_weight_decay(section, rules, size))
    if not groups:
        raise InputError("nothing is left to train: every parameter of the model is frozen.")
    optimizer: torch.optim.Optimizer = resolve(entry.build)(
        groups, section, scale_lr(section, rules, size), scale_adam_constants(section, rules, size)
    )
    return optimizer


def _group_parameters(model: nn.Module, by: Literal["decay", "layers", "matrices"], weight_decay: float) -> _Groups:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not weight_decay and by == "decay":
        return [{"params": parameters, "weight_decay": 0.0}] if parameters else []  # each group costs a launch
    embeddings, matrices = _find_embeddings(model), _find_matrices(model) if by == "matrices" else {}
    groups: dict[tuple[object, ...], dict[str, Any]] = {}
    for parameter in parameters:
        is_weight, is_embedding = parameter.ndim > 1, id(parameter) in embeddings
        settings: dict[str, Any] = {"weight_decay": weight_decay if is_weight and not is_embedding else 0.0}
        if by == "layers" and not is_weight:
            settings["adapt"] = False
        if count := matrices.get(id(parameter), 0):
            settings |= {"matrix": True, "num_stacked": count}
        groups.setdefault(tuple(settings.items()), {"params": [], **settings})["params"].append(parameter)
    return sorted(groups.values(), key=lambda group: ("matrix" not in group, -group["weight_decay"]))


def _find_embeddings(model: nn.Module) -> frozenset[int]:
    # tables of embeddings, and what is learned for each position of a sequence: (1, positions, width)
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    positions = [parameter for parameter in model.parameters() if parameter.ndim == 3 and len(parameter) == 1]
    return frozenset(id(parameter) for parameter in (*tables, *positions))


def _find_matrices(model: nn.Module) -> dict[int, int]:
    # The weights of linear layers and convolutions, with the number of matrices stacked in each. Jordan leaves to AdamW
    # what meets the input or the output: the first convolution, embeddings, and the last linear layer, the head.
    modules = list(model.modules())
    first = [module.weight for module in modules if isinstance(module, nn.Conv2d)][:1]
    heads = [module.weight for module in modules if type(module) is nn.Linear][-1:]
    left_out = {id(parameter) for parameter in (*first, *heads)} | _find_embeddings(model)
    counts = {id(parameter): 1 for parameter in model.parameters() if parameter.ndim in {2, 4}}
    # queries, keys and values
    fused = [module.in_proj_weight for module in modules if isinstance(module, nn.MultiheadAttention)]
    counts |= {id(parameter): 3 for parameter in fused if parameter is not None}
    return {key: count for key, count in counts.items() if key not in left_out}


# What the table names is called with groups, section, learning rate and the constants of Adam.


def sgd(groups: _Groups, section: OptimizerSection, lr: float, _adam: AdamConstants) -> torch.optim.Optimizer:
    if section.name == "sgd":
        return torch.optim.SGD(groups, lr, fused=True)
    is_nesterov = section.name == "nesterov"
    if is_nesterov and not section.momentum:
        raise InputError("optimizer nesterov requires optimizer.momentum above 0.")
    return _begin_at_rest(torch.optim.SGD(groups, lr, momentum=section.momentum, nesterov=is_nesterov, fused=True))


def adam(groups: _Groups, section: OptimizerSection, lr: float, adam: AdamConstants) -> torch.optim.Optimizer:
    build = torch.optim.AdamW if section.name == "adamw" else torch.optim.Adam
    return build(groups, lr, betas=(adam.beta1, adam.beta2), eps=adam.eps, fused=True)


def _begin_at_rest(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """``optimizer`` with velocities of zero before its first step.

    torch allocates them in that step, and leaves in them what the memory held where the step overflows with fp16.
    """

    def fill(_optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        if optimizer.state:
            return
        for group in optimizer.param_groups:
            for parameter in group["params"] if group["momentum"] else ():
                optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)

    optimizer.register_step_pre_hook(fill)
    return optimizer


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
                for name in self._state_names(group):  # before the step, which may be lost
                    (self._sum if name in _SUMS else self._buffers)(parameters, name)
                self._step_group(group, parameters, [parameter.grad for parameter in parameters])

    @abstractmethod
    def _state_names(self, group: _Group) -> tuple[str, ...]:
        """What the state of ``group`` consists of: numbers of the group (``_SUMS``) and a tensor for each parameter."""

    @abstractmethod
    def _update(self, group: _Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Changes ``parameters``, which are not empty, and their state in place."""

    def _step_group(self, group: _Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
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
        """The tensor called ``name`` of each parameter's state, initially zero; ``z`` begins at the parameter."""
        make = torch.clone if name == "z" else torch.zeros_like
        for parameter in parameters:
            if name not in self.state[parameter]:
                self.state[parameter][name] = make(parameter, memory_format=torch.preserve_format)
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

    def _adam_directions(self, group: _Group, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
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


@final
class RmsProp(ForeachOptimizer):
    """RMSprop (Tieleman and Hinton 2012, lecture 6.5), with momentum and weight decay as in ``torch.optim.RMSprop``,
    which would wait for the device when gradients overflow.

    g <- g + wd w;  v <- alpha v + (1 - alpha) g^2;  u <- m u + g / (sqrt(v) + eps);  w <- w - lr u
    """

    def __init__(self, groups: _Groups, section: OptimizerSection, lr: float, adam: AdamConstants) -> None:
        # rules.betas does not reach its momentum, which is not one of Adam
        defaults = {"alpha": adam.beta2, "eps": adam.eps, "momentum": section.momentum}
        super().__init__(groups, {**defaults, "lr": lr, "weight_decay": 0.0})

    def _state_names(self, group: _Group) -> tuple[str, ...]:
        return ("square_avg", "momentum_buffer") if group["momentum"] else ("square_avg",)

    def _update(self, group: _Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
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


@final
class Lars(ForeachOptimizer):
    """Layer-wise adaptive rate scaling (You, Gitman and Ginsburg 2017, arXiv:1708.03888), algorithm 1.

    v <- m v + lr * eta |w| / (|g| + wd |w|) * (g + wd w);  w <- w - v
    """

    def __init__(self, groups: _Groups, section: OptimizerSection, lr: float, adam: AdamConstants) -> None:
        del adam
        defaults = {"momentum": section.momentum, "trust_coefficient": section.trust_coefficient, "adapt": True}
        super().__init__(groups, {**defaults, "lr": lr, "weight_decay": 0.0})

    def _state_names(self, _group: _Group) -> tuple[str, ...]:
        return ("momentum_buffer",)

    def _update(self, group: _Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
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

    def __init__(self, groups: _Groups, section: OptimizerSection, lr: float, adam: AdamConstants) -> None:
        del section
        defaults = {"betas": (adam.beta1, adam.beta2), "eps": adam.eps, "adapt": True}
        super().__init__(groups, {**defaults, "lr": lr, "weight_decay": 0.0})

    def _state_names(self, _group: _Group) -> tuple[str, ...]:
        return _ADAM_STATE

    def _update(self, group: _Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
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


@final
class Muon(ForeachOptimizer):
    """Muon (Jordan et al. 2024) for groups with ``matrix = True``, AdamW for the others.

    A convolution is the matrix (out, in * height * width); a parameter of a group with ``num_stacked`` = n holds n
    matrices one below the other, as attention holds those of queries, keys and values. The update has the root mean
    square of AdamW's (0.2 sqrt(max(rows, columns)), Liu et al. 2025, arXiv:2502.16982), so both parts share learning
    rate and decay.
    """

    def __init__(self, groups: _Groups, section: OptimizerSection, lr: float, adam: AdamConstants) -> None:
        del section
        defaults = {"betas": (adam.beta1, adam.beta2), "eps": adam.eps, "matrix": False, "num_stacked": 1}
        super().__init__(groups, {**defaults, "lr": lr, "weight_decay": 0.0})

    def _state_names(self, group: _Group) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["matrix"] else _ADAM_STATE

    def _update(self, group: _Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        directions = self._orthogonal_directions if group["matrix"] else self._adam_directions
        torch._foreach_add_(parameters, directions(group, parameters, gradients), alpha=-group["lr"])

    def _orthogonal_directions(self, group: _Group, parameters: list[Tensor], gradients: list[Tensor]) -> list[Tensor]:
        momentum = group["betas"][0]
        velocities = self._buffers(parameters, "momentum_buffer")
        torch._foreach_lerp_(velocities, gradients, 1 - momentum)
        ahead = torch._foreach_lerp(gradients, velocities, momentum)  # Nesterov
        count = group["num_stacked"]
        if count == 1:
            return _orthogonalize_by_shape(list(ahead))
        orthogonal = _orthogonalize_by_shape([matrix for update in ahead for matrix in update.chunk(count)])
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
class ScheduleFree(ForeachOptimizer):
    """Schedule-free SGD and AdamW (Defazio et al. 2024, arXiv:2405.15682), algorithm 1; SGD without ``adaptive``.

    y = (1 - beta) z + beta x;  g at y;  z <- z - lr (g / (sqrt(v) + eps) + wd y);  x <- (1 - c) x + c z
    with c = lr^2 / (sum of lr^2), where AdamW's lr carries sqrt(1 - beta2^t). While training the parameters hold y;
    :meth:`average` gives x, which must be evaluated and saved.
    """

    def __init__(self, groups: _Groups, section: OptimizerSection, lr: float, adam: AdamConstants) -> None:
        if not adam.beta1:
            raise InputError(f"optimizer {section.name} requires a beta1 (optimizer.momentum) above 0.")
        is_adaptive = section.name == "schedule_free"
        defaults = {"betas": (adam.beta1, adam.beta2), "eps": adam.eps, "adaptive": is_adaptive}
        super().__init__(groups, {**defaults, "lr": lr, "weight_decay": 0.0})

    def average(self, parameter: Tensor) -> Tensor:
        """x of a ``parameter``; the parameter itself before the first step and where it is not trained."""
        if "z" not in self.state.get(parameter, {}):
            return parameter.detach()
        beta = self.param_groups[0]["betas"][0]
        return parameter.detach().lerp(self.state[parameter]["z"], 1 - 1 / beta)

    def _state_names(self, group: _Group) -> tuple[str, ...]:
        return ("weight_sum", "z", "num_steps", "exp_avg_sq") if group["adaptive"] else ("weight_sum", "z")

    def _update(self, group: _Group, parameters: list[Tensor], gradients: list[Tensor]) -> None:
        beta = group["betas"][0]
        fast = self._buffers(parameters, "z")
        lr, directions = self._directions(group, parameters, gradients)
        total = self._sum(parameters, "weight_sum").add_(lr**2)
        share = torch.where(total > 0, lr**2 / total, 1.0)  # of this step in the average; 1 while the rate has been 0
        updates = torch._foreach_add(directions, parameters, alpha=group["weight_decay"])
        torch._foreach_mul_(updates, lr)
        # beta x = y - (1 - beta) z
        torch._foreach_add_(parameters, fast, alpha=beta - 1)
        torch._foreach_sub_(fast, updates)
        torch._foreach_mul_(parameters, 1 - share)
        torch._foreach_add_(parameters, torch._foreach_mul(fast, 1 - beta + beta * share))

    def _directions(
        self, group: _Group, parameters: list[Tensor], gradients: list[Tensor]
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
