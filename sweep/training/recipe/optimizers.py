"""What builds each optimizer of :data:`sweep.config.tables.recipes.OPTIMIZERS`.

Fused where torch has it: one kernel for all parameters, and with fp16 no synchronization per step to look for
overflow. The others work on lists of tensors (foreach). ``optimizer.momentum`` is beta1 of Adam.
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
from sweep.training.recipe.schedule_free import ScheduleFree

Groups = list[dict[str, Any]]


def sgd(groups: Groups, _section: OptimizerSection, lr: float, _adam: AdamConstants) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr, fused=True)


def momentum(groups: Groups, section: OptimizerSection, lr: float, _adam: AdamConstants) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr, momentum=section.momentum, fused=True)


def nesterov(groups: Groups, section: OptimizerSection, lr: float, _adam: AdamConstants) -> torch.optim.Optimizer:
    if not section.momentum:
        raise InputError("optimizer nesterov requires optimizer.momentum above 0.")
    return torch.optim.SGD(groups, lr, momentum=section.momentum, nesterov=True, fused=True)


def rmsprop(groups: Groups, section: OptimizerSection, lr: float, adam: AdamConstants) -> torch.optim.Optimizer:
    # betas_rule does not reach its momentum, which is not one of Adam
    return torch.optim.RMSprop(groups, lr, alpha=adam.beta2, eps=adam.eps, momentum=section.momentum, foreach=True)


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
    """The optimizer that ``config`` names, at the peak learning rate; weight decay spares norms and biases.

    Raises:
        InputError: for an unknown name, or a momentum that the optimizer cannot work with.
    """
    section, size = config.optimizer, config.global_batch_size
    entry = find_entry("optimizer", section.name, OPTIMIZERS)
    groups = _group_parameters(model, entry.groups, scale_weight_decay(section, size))
    if not groups:
        raise InputError("nothing is left to train: every parameter of the model is frozen.")
    optimizer: torch.optim.Optimizer = resolve(entry.build)(
        groups, section, peak_lr(config), scale_adam_constants(section, size)
    )
    return optimizer


def peak_lr(config: TrialConfig) -> float:
    """The learning rate at the top of the schedule, after ``optimizer.lr_rule``."""
    return scale_lr(config.optimizer, config.global_batch_size)


def _group_parameters(model: nn.Module, by: Literal["decay", "layers", "matrices"], weight_decay: float) -> Groups:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not weight_decay and by == "decay":
        return [{"params": parameters, "weight_decay": 0.0}] if parameters else []  # each group costs a launch
    weights = [parameter for parameter in parameters if parameter.ndim > 1]
    others = [parameter for parameter in parameters if parameter.ndim <= 1]
    groups: Groups = [{"params": weights, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    if by == "layers":
        groups[1]["adapt"] = False
    if by == "matrices":
        matrices = _matrices(model)
        groups[0]["params"] = [parameter for parameter in weights if id(parameter) not in matrices]
        inner = [parameter for parameter in weights if id(parameter) in matrices]
        groups.insert(0, {"params": inner, "weight_decay": weight_decay, "matrix": True})
    return [group for group in groups if group["params"]]


def _matrices(model: nn.Module) -> frozenset[int]:
    # Weights of linear layers and convolutions. The last linear layer is the head, which Jordan leaves to AdamW,
    # and so are embeddings: positions and class tokens.
    weights = [parameter for parameter in model.parameters() if parameter.ndim in {2, 4}]
    heads = [module.weight for module in model.modules() if type(module) is nn.Linear][-1:]
    embeddings = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    left_out = {id(parameter) for parameter in (*heads, *embeddings)}
    return frozenset(id(parameter) for parameter in weights) - left_out
