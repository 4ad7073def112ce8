"""How the values of a recipe follow the global batch: each rule's formula and its source."""

import math
from typing import NamedTuple

from sweep.config.sections import BatchSection, OptimizerSection, RulesSection
from sweep.config.tables import OPTIMIZERS

# The power of the batch in the rules that have a fixed one.
RULE_POWERS: dict[str, float] = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


class AdamConstants(NamedTuple):
    """What an optimizer of the Adam family requires besides its learning rate."""

    beta1: float
    beta2: float
    eps: float


def resolve_lr_rule(optimizer: str, rules: RulesSection) -> str | float:
    """The rule of the learning rate, with ``auto`` resolved by the entry of the ``optimizer``."""
    return OPTIMIZERS[optimizer].lr_rule if rules.lr == "auto" else rules.lr


def scale_lr(section: OptimizerSection, rules: RulesSection, global_batch: int) -> float:
    """The learning rate at the top of the schedule for that global batch, accumulation and ranks counted in.

    ``linear`` (Goyal et al. 2017, arXiv:1706.02677) or ``sqrt`` (Krizhevsky 2014, arXiv:1404.5997; for Adam Malladi
    et al. 2022, arXiv:2205.10287) in the global batch over ``rules.reference_batch``, or any other power: McCandlish
    et al. 2018 (arXiv:1812.06162) measure powers from 0.5 to 1.
    """
    return section.lr * _factor(resolve_lr_rule(section.name, rules), _ratio(rules, global_batch))


def follow_growth(
    batch: BatchSection, section: OptimizerSection, rules: RulesSection, peak_lr: float, first: int, global_batch: int
) -> float:
    """The learning rate at the top of the schedule while a batch that was ``first``, with ``peak_lr``, is
    ``global_batch``.

    ``seesaw``: lr / sqrt(global_batch / first). Where a schedule would divide the rate by a, the batch is multiplied by
    a and the rate divided by sqrt(a) (Meterez et al. 2025, arXiv:2510.14717, for Adam, by normalized SGD).
    """
    if global_batch != first and batch.schedule_lr == "rule":
        return scale_lr(section, rules, global_batch)
    return peak_lr / math.sqrt(global_batch / first) if batch.schedule_lr == "seesaw" else peak_lr


def scale_weight_decay(section: OptimizerSection, rules: RulesSection, global_batch: int) -> float:
    """Weight decay for that global batch, by ``rules.weight_decay``.

    ``timescale``: wd = wd_reference * k * lr_reference / lr for k times the reference batch. AdamW's weights are an
    average of its updates over about B / (lr * wd * N) epochs of N images, which are then the same at every batch B
    (Wang and Aitchison 2024, arXiv:2405.13698, section 2).
    """
    ratio = _ratio(rules, global_batch)
    if rules.weight_decay == "timescale":
        return section.weight_decay * ratio * section.lr / scale_lr(section, rules, global_batch)
    return section.weight_decay * _factor(rules.weight_decay, ratio)


def scale_adam_constants(section: OptimizerSection, rules: RulesSection, global_batch: int) -> AdamConstants:
    """Betas and epsilon for k times the reference batch.

    ``sqrt``: as square-root scaling of the learning rate requires, 1 - beta -> k (1 - beta) and eps -> eps / sqrt(k)
    (Malladi et al. 2022, arXiv:2205.10287, definition 5.1). ``linear`` or a power p: 1 - beta -> k^p (1 - beta), eps
    stays. ``half_life``: beta2 -> beta2^k, so that the half-life of the second moment in samples stays (Marek et al.
    2025, arXiv:2507.07101); beta1 and eps stay. A beta that would be negative is 0; :func:`find_lost_beta` names it
    where the rule is ``linear`` or a power.
    """
    entry = OPTIMIZERS[section.name]
    beta2 = entry.beta2 if section.beta2 is None else section.beta2
    eps = entry.eps if section.eps is None else section.eps
    ratio = _ratio(rules, global_batch)
    if rules.betas == "none":
        return AdamConstants(section.momentum, beta2, eps)
    if rules.betas == "half_life":
        return AdamConstants(section.momentum, beta2**ratio, eps)
    growth = _factor("linear" if rules.betas == "sqrt" else rules.betas, ratio)
    beta1, beta2 = (max(0.0, 1 - growth * (1 - beta)) for beta in (section.momentum, beta2))
    return AdamConstants(beta1, beta2, eps / math.sqrt(ratio) if rules.betas == "sqrt" else eps)


def find_lost_beta(section: OptimizerSection, rules: RulesSection, global_batch: int) -> tuple[str, float] | None:
    """The beta that its rule makes unusable, with its value: beta2 where it is not between 0 and 1, beta1 of a
    schedule-free optimizer where it is 0; else None. With ``sqrt`` a beta of 0 is accepted."""
    entry = OPTIMIZERS[section.name]
    if rules.betas in ("none", "sqrt") or not entry.has_betas:
        return None
    constants = scale_adam_constants(section, rules, global_batch)
    if section.beta2 != 0.0 and not 0.0 < constants.beta2 < 1.0:
        return "beta2", constants.beta2
    return ("beta1", 0.0) if entry.averages_weights and section.momentum and not constants.beta1 else None


def scale_ema_decay(decay: float | None, rules: RulesSection, global_batch: int) -> float:
    """The decay of the weights' average for that global batch; 0 where there is no average.

    ``power``: decay ** k for k times the reference batch, so that a sample is forgotten after as many samples
    (Busbridge et al. 2023, arXiv:2307.13813).
    """
    decay = decay or 0.0
    return decay ** _ratio(rules, global_batch) if rules.ema == "power" else decay


def scale_regularizer(value: float, rule: str, most: float, rules: RulesSection, global_batch: int) -> float:
    """Dropout or label smoothing for that global batch, raised by a ``rule`` to ``most`` at most: a rule of thumb, by
    which a larger batch, whose gradients are less noisy, is regularized more."""
    return value if rule == "none" else min(value * _factor(rule, _ratio(rules, global_batch)), max(value, most))


def grade_warmup(warmup: float, rules: RulesSection, global_batch: int) -> float:
    """The warm-up for k times the reference batch: its share is (log2 k - 1) / 3, from 0 at 2 to 1 at 16.

    By a rule of thumb a warm-up is not necessary at 2 times the batch, perhaps at 4, yes at 8, and essential at 16; the
    straight line over log2 k through its ends has no source. Goyal et al. 2017 (arXiv:1706.02677) take 5
    epochs at k = 32.
    """
    if rules.warmup == "none":
        return warmup
    return warmup * min(1.0, max(0.0, (math.log2(_ratio(rules, global_batch)) - 1) / 3))


def scale_epochs(epochs: float | None, rules: RulesSection, global_batch: int) -> float | None:
    """Epochs for that global batch; None where the budget has none.

    A rule of thumb has 1.5 to 2 times the epochs at 4 times the batch: powers from log4(1.5) = 0.29 to log4(2) = 0.5.
    Power 0 is equal epochs, power 1 equal steps.
    """
    if epochs is None or rules.epochs == "none":
        return epochs
    return epochs * _factor(rules.epochs, _ratio(rules, global_batch))


def _ratio(rules: RulesSection, global_batch: int) -> float:
    return global_batch / rules.reference_batch


def _factor(rule: str | float, ratio: float) -> float:
    exponent = RULE_POWERS[rule] if isinstance(rule, str) else rule
    return 1.0 if exponent == 0.0 else ratio**exponent
