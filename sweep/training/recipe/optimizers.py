"""What builds each optimizer of :data:`sweep.config.tables.recipes.OPTIMIZERS`.

Fused where torch has it: one kernel for all parameters. The others work on lists of tensors (foreach). With fp16 none
of them waits for the device to find out whether gradients overflowed. ``optimizer.momentum`` is beta1 of Adam.
"""

from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from sweep.config.errors import InputError
from sweep.config.recipe_sections import OptimizerSection
from sweep.config.scaling import AdamConstants, scale_adam_constants, scale_lr, scale_weight_decay
from sweep.config.tables.entries import find_entry, resolve
from sweep.config.tables.recipes import OPTIMIZERS
from sweep.config.trial_config import TrialConfig
from sweep.training.recipe.layerwise import Lamb, Lars
from sweep.training.recipe.muon import Muon
from sweep.training.recipe.rmsprop import RmsProp
from sweep.training.recipe.schedule_free import ScheduleFree

Groups = list[dict[str, Any]]


def sgd(groups: Groups, _section: OptimizerSection, lr: float, _adam: AdamConstants) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr, fused=True)


def momentum(groups: Groups, section: OptimizerSection, lr: float, _adam: AdamConstants) -> torch.optim.Optimizer:
    return _begin_at_rest(torch.optim.SGD(groups, lr, momentum=section.momentum, fused=True))


def nesterov(groups: Groups, section: OptimizerSection, lr: float, _adam: AdamConstants) -> torch.optim.Optimizer:
    if not section.momentum:
        raise InputError("optimizer nesterov requires optimizer.momentum above 0.")
    return _begin_at_rest(torch.optim.SGD(groups, lr, momentum=section.momentum, nesterov=True, fused=True))


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


def rmsprop(groups: Groups, section: OptimizerSection, lr: float, adam: AdamConstants) -> torch.optim.Optimizer:
    # rules.betas does not reach its momentum, which is not one of Adam
    return RmsProp(groups, lr, adam.beta2, adam.eps, section.momentum)


def adam(groups: Groups, _section: OptimizerSection, lr: float, adam: AdamConstants) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr, betas=(adam.beta1, adam.beta2), eps=adam.eps, fused=True)


def adamw(groups: Groups, _section: OptimizerSection, lr: float, adam: AdamConstants) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr, betas=(adam.beta1, adam.beta2), eps=adam.eps, fused=True)


def lars(groups: Groups, section: OptimizerSection, lr: float, _adam: AdamConstants) -> torch.optim.Optimizer:
    return Lars(groups, lr, section.momentum, section.trust_coefficient)


def lamb(groups: Groups, _section: OptimizerSection, lr: float, adam: AdamConstants) -> torch.optim.Optimizer:
    return Lamb(groups, lr, (adam.beta1, adam.beta2), adam.eps)


def muon(groups: Groups, _section: OptimizerSection, lr: float, adam: AdamConstants) -> torch.optim.Optimizer:
    return Muon(groups, lr, (adam.beta1, adam.beta2), adam.eps)


def schedule_free(
    groups: Groups, section: OptimizerSection, lr: float, adam: AdamConstants, *, adaptive: bool = True
) -> torch.optim.Optimizer:
    if not adam.beta1:
        raise InputError(f"optimizer {section.name} requires a beta1 (optimizer.momentum) above 0.")
    return ScheduleFree(groups, lr, (adam.beta1, adam.beta2), adam.eps, adaptive=adaptive)


schedule_free_sgd = partial(schedule_free, adaptive=False)


def build_optimizer(config: TrialConfig, model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer that ``config`` names, with the peak learning rate as its default; weight decay spares norms,
    biases and embeddings.

    Raises:
        InputError: for an unknown name, or a momentum that the optimizer cannot work with.
    """
    section, rules, size = config.optimizer, config.rules, config.global_batch_size
    entry = find_entry("optimizer", section.name, OPTIMIZERS)
    groups = _group_parameters(model, entry.groups, scale_weight_decay(section, rules, size))
    if not groups:
        raise InputError("nothing is left to train: every parameter of the model is frozen.")
    optimizer: torch.optim.Optimizer = resolve(entry.build)(
        groups, section, scale_lr(section, rules, size), scale_adam_constants(section, rules, size)
    )
    return optimizer


def _group_parameters(model: nn.Module, by: Literal["decay", "layers", "matrices"], weight_decay: float) -> Groups:
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
    found = {id(parameter): 1 for parameter in model.parameters() if parameter.ndim in {2, 4}}
    # queries, keys and values
    fused = [module.in_proj_weight for module in modules if isinstance(module, nn.MultiheadAttention)]
    found |= {id(parameter): 3 for parameter in fused if parameter is not None}
    return {key: count for key, count in found.items() if key not in left_out}
