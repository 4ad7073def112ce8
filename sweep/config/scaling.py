"""How the values of a recipe follow the global batch: each rule's formula and its source."""

import math
from typing import NamedTuple

from sweep.config.data_sections import BatchSection, BudgetSection
from sweep.config.recipe_sections import ModelSection, OptimizerSection, RegularizationSection, Rule, ScheduleSection
from sweep.config.tables.recipes import OPTIMIZERS

# The power of the batch in the rules that have a fixed one.
RULE_POWERS: dict[str, float] = {"none": 0.0, "linear": 1.0, "sqrt": 0.5}


class AdamConstants(NamedTuple):
    """What an optimizer of the Adam family requires besides its learning rate."""

    beta1: float
    beta2: float
    eps: float


def compute_batch_ratio(section: OptimizerSection, global_batch: int) -> float:
    """The global batch over ``optimizer.reference_batch``, which all rules count from."""
    return global_batch / section.reference_batch


def resolve_lr_rule(section: OptimizerSection) -> Rule:
    """The rule with ``auto`` resolved by the entry of the optimizer."""
    if section.lr_rule != "auto":
        return section.lr_rule
    return OPTIMIZERS[section.name].lr_rule


def scale_lr(section: OptimizerSection, global_batch: int) -> float:
    """The learning rate at the top of the schedule for that global batch, accumulation and ranks counted in.

    ``linear`` (Goyal et al. 2017, arXiv:1706.02677) or ``sqrt`` (Krizhevsky 2014, arXiv:1404.5997; for Adam Malladi
    et al. 2022, arXiv:2205.10287) in the global batch over ``optimizer.reference_batch``, or ``power``, of which these
    are cases: McCandlish et al. 2018 (arXiv:1812.06162) measure powers from 0.5 to 1.
    """
    return section.lr * _factor(resolve_lr_rule(section), section.lr_power, compute_batch_ratio(section, global_batch))


def follow_growth(batch: BatchSection, section: OptimizerSection, first: int, global_batch: int) -> float:
    """The learning rate at the top of the schedule while a batch that was ``first`` is ``global_batch``.

    ``seesaw``: lr / sqrt(global_batch / first). Where a schedule would divide the rate by a, the batch is multiplied by
    a and the rate divided by sqrt(a) (Meterez et al. 2025, arXiv:2510.14717, for Adam, by normalized SGD).
    """
    if batch.schedule_lr == "rule":
        return scale_lr(section, global_batch)
    return scale_lr(section, first) / (math.sqrt(global_batch / first) if batch.schedule_lr == "seesaw" else 1.0)


def scale_weight_decay(section: OptimizerSection, global_batch: int) -> float:
    """Weight decay for that global batch, by ``optimizer.weight_decay_rule``.

    ``timescale``: wd = wd_reference * k * lr_reference / lr for k times the reference batch. AdamW's weights are an
    average of its updates over about B / (lr * wd * N) epochs of N images, which are then the same at every batch B
    (Wang and Aitchison 2024, arXiv:2405.13698, section 2).
    """
    ratio = compute_batch_ratio(section, global_batch)
    if section.weight_decay_rule == "timescale":
        return section.weight_decay * ratio * section.lr / scale_lr(section, global_batch)
    return section.weight_decay * _factor(section.weight_decay_rule, section.weight_decay_power, ratio)


def scale_adam_constants(section: OptimizerSection, global_batch: int) -> AdamConstants:
    """Betas and epsilon for k times the reference batch.

    ``sqrt``: as square-root scaling of the learning rate requires, 1 - beta -> k (1 - beta) and eps -> eps / sqrt(k)
    (Malladi et al. 2022, arXiv:2205.10287, definition 5.1). ``linear``, ``power``: 1 - beta -> k^p (1 - beta), p = 1 or
    ``betas_power``, eps stays. ``half_life``: beta2 -> beta2^k, so that the half-life of the second moment in
    samples stays (Marek et al. 2025, arXiv:2507.07101); beta1 and eps stay. A beta that would be negative is 0;
    :func:`find_lost_beta` names it where the rule is ``linear`` or ``power``.
    """
    entry = OPTIMIZERS[section.name]
    beta2 = entry.beta2 if section.beta2 is None else section.beta2
    eps = entry.eps if section.eps is None else section.eps
    ratio = compute_batch_ratio(section, global_batch)
    if section.betas_rule == "none":
        return AdamConstants(section.momentum, beta2, eps)
    if section.betas_rule == "half_life":
        return AdamConstants(section.momentum, beta2**ratio, eps)
    rule = "linear" if section.betas_rule == "sqrt" else section.betas_rule
    growth = _factor(rule, section.betas_power, ratio)
    beta1, beta2 = (max(0.0, 1 - growth * (1 - beta)) for beta in (section.momentum, beta2))
    return AdamConstants(beta1, beta2, eps / math.sqrt(ratio) if section.betas_rule == "sqrt" else eps)


def find_lost_beta(section: OptimizerSection, global_batch: int) -> tuple[str, float] | None:
    """The beta that its rule makes unusable, with its value: beta2 where it is not between 0 and 1, beta1 of a
    schedule-free optimizer where it is 0; else None. With ``sqrt`` a beta of 0 is accepted."""
    entry = OPTIMIZERS[section.name]
    if section.betas_rule in ("none", "sqrt") or not entry.has_betas:
        return None
    constants = scale_adam_constants(section, global_batch)
    if section.beta2 != 0.0 and not 0.0 < constants.beta2 < 1.0:
        return "beta2", constants.beta2
    return ("beta1", 0.0) if entry.averages_weights and section.momentum and not constants.beta1 else None


def scale_ema_decay(regularization: RegularizationSection, section: OptimizerSection, global_batch: int) -> float:
    """The decay of the weights' average for that global batch; 0 where there is no average.

    ``power``: decay ** k for k times the reference batch, so that a sample is forgotten after as many samples
    (Busbridge et al. 2023, arXiv:2307.13813).
    """
    decay = regularization.ema_decay or 0.0
    return decay ** compute_batch_ratio(section, global_batch) if regularization.ema_rule == "power" else decay


def scale_dropout(section: ModelSection, ratio: float) -> float:
    """Dropout for ``ratio`` times the reference batch, at most ``dropout_cap``: a rule of thumb, by which a larger
    batch, whose gradients are less noisy, is regularized more."""
    if section.dropout_rule == "none":
        return section.dropout
    return min(section.dropout * _factor(section.dropout_rule, 0.0, ratio), section.dropout_cap)


def scale_label_smoothing(section: RegularizationSection, ratio: float) -> float:
    """Label smoothing, as :func:`scale_dropout`; at most ``label_smoothing_cap``, whose default is twice the 0.1 of
    Szegedy et al. 2015 (arXiv:1512.00567)."""
    if section.label_smoothing_rule == "none":
        return section.label_smoothing
    return min(section.label_smoothing * _factor(section.label_smoothing_rule, 0.0, ratio), section.label_smoothing_cap)


def grade_warmup(section: ScheduleSection, ratio: float) -> float:
    """The warm-up for k = ``ratio`` times the reference batch: its share is (log2 k - 1) / 3, from 0 at 2 to 1 at 16.

    By a rule of thumb a warm-up is not necessary at 2 times the batch, perhaps at 4, yes at 8, and essential at 16; the
    straight line over log2 k through its ends has no source. Goyal et al. 2017 (arXiv:1706.02677) take 5
    epochs at k = 32.
    """
    if section.warmup_rule == "none":
        return section.warmup
    return section.warmup * min(1.0, max(0.0, (math.log2(ratio) - 1) / 3))


def scale_epochs(section: BudgetSection, ratio: float) -> float | None:
    """Epochs for ``ratio`` times the reference batch; None where the budget has none.

    A rule of thumb has 1.5 to 2 times the epochs at 4 times the batch: powers from log4(1.5) = 0.29 to log4(2) = 0.5.
    Power 0 is equal epochs, power 1 equal steps.
    """
    if section.epochs is None or section.epochs_rule == "none":
        return section.epochs
    return section.epochs * float(ratio**section.epochs_power)


def _factor(rule: Rule, power: float, ratio: float) -> float:
    exponent = power if rule == "power" else RULE_POWERS[rule]
    return 1.0 if exponent == 0.0 else ratio**exponent
