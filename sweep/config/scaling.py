"""How learning rate, weight decay, betas and averaging follow the global batch."""

import math
from typing import NamedTuple

from sweep.config.recipe_sections import OptimizerSection, RegularizationSection, Rule
from sweep.config.tables.recipes import OPTIMIZERS


class AdamConstants(NamedTuple):
    """What an optimizer of the Adam family requires besides its learning rate."""

    beta1: float
    beta2: float
    eps: float


def resolve_lr_rule(section: OptimizerSection) -> Rule:
    """The rule with ``auto`` resolved by the entry of the optimizer."""
    if section.lr_rule != "auto":
        return section.lr_rule
    return OPTIMIZERS[section.name].lr_rule


def scale_lr(section: OptimizerSection, global_batch: int) -> float:
    """The learning rate at the top of the schedule for that global batch, accumulation and ranks counted in.

    ``linear`` (Goyal et al. 2017, arXiv:1706.02677) or ``sqrt`` (Krizhevsky 2014, arXiv:1404.5997; for Adam Malladi
    et al. 2022, arXiv:2205.10287) in the global batch over ``optimizer.reference_batch``.
    """
    return section.lr * _factor(resolve_lr_rule(section), section, global_batch)


def scale_weight_decay(section: OptimizerSection, global_batch: int) -> float:
    """Weight decay for that global batch, by ``optimizer.weight_decay_rule``."""
    return section.weight_decay * _factor(section.weight_decay_rule, section, global_batch)


def scale_adam_constants(section: OptimizerSection, global_batch: int) -> AdamConstants:
    """Betas and epsilon; with ``betas_rule = "sqrt"`` as the square-root rule requires for k times the reference batch.

    1 - beta -> k (1 - beta) and eps -> eps / sqrt(k) (Malladi et al. 2022, arXiv:2205.10287, definition 5.1); a beta
    ends at 0.
    """
    entry = OPTIMIZERS[section.name]
    beta2 = entry.beta2 if section.beta2 is None else section.beta2
    eps = entry.eps if section.eps is None else section.eps
    if section.betas_rule == "none":
        return AdamConstants(section.momentum, beta2, eps)
    ratio = global_batch / section.reference_batch
    beta1, beta2 = (max(0.0, 1 - ratio * (1 - beta)) for beta in (section.momentum, beta2))
    return AdamConstants(beta1, beta2, eps / math.sqrt(ratio))


def scale_ema_decay(regularization: RegularizationSection, section: OptimizerSection, global_batch: int) -> float:
    """The decay of the weights' average for that global batch; 0 where there is no average.

    ``power``: decay ** k for k times the reference batch, so that a sample is forgotten after as many samples
    (Busbridge et al. 2023, arXiv:2307.13813).
    """
    decay = regularization.ema_decay or 0.0
    return decay ** (global_batch / section.reference_batch) if regularization.ema_rule == "power" else decay


def _factor(rule: Rule, section: OptimizerSection, global_batch: int) -> float:
    ratio = global_batch / section.reference_batch
    return {"none": 1.0, "linear": ratio, "sqrt": math.sqrt(ratio)}[rule]
