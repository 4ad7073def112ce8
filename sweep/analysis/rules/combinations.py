"""The combinations of scaling rules that are ranked, and the recipe that one gives at a batch size."""

import itertools
from typing import NamedTuple, Self

from sweep.config.scaling import (
    RULE_POWERS,
    grade_warmup,
    resolve_lr_rule,
    scale_adam_constants,
    scale_dropout,
    scale_ema_decay,
    scale_label_smoothing,
    scale_lr,
    scale_weight_decay,
)
from sweep.config.tables.recipes import OPTIMIZERS
from sweep.config.trial_config import TrialConfig

_NAMED_POWERS = {power: rule for rule, power in RULE_POWERS.items()}
_POWER = "power "
_DIGITS = 6  # to which two recipes agree that are the same


class Recipe(NamedTuple):
    """What a training at one batch size is done with, after all rules; None where the optimizer has no such value."""

    lr: float
    weight_decay: float
    beta1: float
    beta2: float | None
    eps: float | None
    warmup: float
    dropout: float
    label_smoothing: float
    ema_decay: float


class Combination(NamedTuple):
    """A rule for each value that may follow the batch, in the words of the section ``rules``; "power 0.25" is the
    number 0.25 there. Each leaves its value as it is at the reference batch."""

    lr: str = "none"
    weight_decay: str = "none"
    betas: str = "none"
    dropout: str = "none"
    label_smoothing: str = "none"
    ema: str = "none"

    @classmethod
    def of(cls, config: TrialConfig) -> Self:
        """The rules of a configuration. Betas of an optimizer that has none follow none."""
        rules, name = config.rules, config.optimizer.name
        return cls(
            lr=_name_rule(resolve_lr_rule(name, rules)),
            weight_decay=_name_rule(rules.weight_decay),
            betas=_name_rule(rules.betas) if OPTIMIZERS[name].has_betas else "none",
            dropout=rules.dropout,
            label_smoothing=rules.label_smoothing,
            ema=rules.ema,
        )

    def apply(self, config: TrialConfig) -> TrialConfig:
        """``config`` with these rules; its reference batch stays."""
        rules = {
            name: float(rule.removeprefix(_POWER)) if rule.startswith(_POWER) else rule
            for name, rule in self._asdict().items()
        }
        return config.model_copy(update={"rules": config.rules.model_copy(update=rules)})


LR_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
WEIGHT_DECAY_RULES = ("none", "sqrt", "linear", "timescale")
BETAS_RULES = ("none", "sqrt", "half_life")


def _name_rule(rule: str | float) -> str:
    return rule if isinstance(rule, str) else _NAMED_POWERS.get(rule, f"{_POWER}{rule:g}")


COMBINATIONS = tuple(
    Combination(_name_rule(power), decay, betas)
    for power, decay, betas in itertools.product(LR_POWERS, WEIGHT_DECAY_RULES, BETAS_RULES)
)


def scale_recipe(config: TrialConfig, batch: int) -> Recipe:
    """The recipe of ``config`` at the effective batch size ``batch``, to 6 digits: equal recipes are equal objects."""
    section, rules = config.optimizer, config.rules
    constants = scale_adam_constants(section, rules, batch)
    has_betas = OPTIMIZERS[section.name].has_betas
    values = Recipe(
        lr=scale_lr(section, rules, batch),
        weight_decay=scale_weight_decay(section, rules, batch),
        beta1=constants.beta1 if has_betas else section.momentum,
        beta2=constants.beta2 if has_betas else section.beta2,
        eps=constants.eps if has_betas else section.eps,
        warmup=grade_warmup(config.schedule.warmup, rules, batch),
        dropout=scale_dropout(config.model.dropout, rules, batch),
        label_smoothing=scale_label_smoothing(config.regularization.label_smoothing, rules, batch),
        ema_decay=scale_ema_decay(config.regularization.ema_decay, rules, batch),
    )
    return Recipe._make(None if value is None else float(f"{value:.{_DIGITS}g}") for value in values)


def start_from(config: TrialConfig, recipe: Recipe, reference: int) -> TrialConfig:
    """``config`` with ``recipe`` at the batch ``reference``, from which rules scale it, and no rule yet."""
    optimizer = {
        "lr": recipe.lr, "weight_decay": recipe.weight_decay, "momentum": recipe.beta1, "beta2": recipe.beta2,
        "eps": recipe.eps,
    }  # fmt: skip
    regularization = {"label_smoothing": recipe.label_smoothing, "ema_decay": recipe.ema_decay or None}
    started = config.model_copy(
        update={
            "optimizer": config.optimizer.model_copy(update=optimizer),
            "model": config.model.model_copy(update={"dropout": recipe.dropout}),
            "schedule": config.schedule.model_copy(update={"warmup": recipe.warmup}),
            "regularization": config.regularization.model_copy(update=regularization),
            "rules": config.rules.model_copy(update={"reference_batch": reference, "warmup": "none"}),
        }
    )
    return Combination().apply(started)
