"""The combinations of scaling rules that are ranked, and the recipe that one gives at a batch size."""

import itertools
from typing import NamedTuple, Self

from sweep.config.scaling import (
    RULE_POWERS,
    compute_batch_ratio,
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
    """A rule for each value that may follow the batch, in the words of the configuration keys; "power 0.25" is the
    rule ``power`` with that power. Each leaves its value as it is at the reference batch."""

    lr: str = "none"
    weight_decay: str = "none"
    betas: str = "none"
    dropout: str = "none"
    label_smoothing: str = "none"
    ema: str = "none"

    @classmethod
    def of(cls, config: TrialConfig) -> Self:
        """The rules of a configuration. Betas of an optimizer that has none follow none."""
        section, has_betas = config.optimizer, OPTIMIZERS[config.optimizer.name].has_betas
        return cls(
            lr=_name_rule(resolve_lr_rule(section), section.lr_power),
            weight_decay=_name_rule(section.weight_decay_rule, section.weight_decay_power),
            betas=_name_rule(section.betas_rule, section.betas_power) if has_betas else "none",
            dropout=config.model.dropout_rule,
            label_smoothing=config.regularization.label_smoothing_rule,
            ema=config.regularization.ema_rule,
        )

    def apply(self, config: TrialConfig) -> TrialConfig:
        """``config`` with these rules; its reference batch stays."""
        optimizer: dict[str, str | float] = {}
        for name in ("lr", "weight_decay", "betas"):
            rule, _, power = getattr(self, name).partition(" ")
            optimizer |= {f"{name}_rule": rule} | ({f"{name}_power": float(power)} if power else {})
        regularization = {"label_smoothing_rule": self.label_smoothing, "ema_rule": self.ema}
        return config.model_copy(
            update={
                "optimizer": config.optimizer.model_copy(update=optimizer),
                "model": config.model.model_copy(update={"dropout_rule": self.dropout}),
                "regularization": config.regularization.model_copy(update=regularization),
            }
        )


LR_POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
WEIGHT_DECAY_RULES = ("none", "sqrt", "linear", "timescale")
BETAS_RULES = ("none", "sqrt", "half_life")


def _name_rule(rule: str, power: float) -> str:
    if rule != "power":
        return rule
    return _NAMED_POWERS.get(power, f"{_POWER}{power:g}")


COMBINATIONS = tuple(
    Combination(_name_rule("power", power), decay, betas)
    for power, decay, betas in itertools.product(LR_POWERS, WEIGHT_DECAY_RULES, BETAS_RULES)
)


def scale_recipe(config: TrialConfig, batch: int) -> Recipe:
    """The recipe of ``config`` at the effective batch size ``batch``, to 6 digits: equal recipes are equal objects."""
    section, ratio = config.optimizer, compute_batch_ratio(config.optimizer, batch)
    constants = scale_adam_constants(section, batch)
    has_betas = OPTIMIZERS[section.name].has_betas
    values = Recipe(
        lr=scale_lr(section, batch),
        weight_decay=scale_weight_decay(section, batch),
        beta1=constants.beta1 if has_betas else section.momentum,
        beta2=constants.beta2 if has_betas else section.beta2,
        eps=constants.eps if has_betas else section.eps,
        warmup=grade_warmup(config.schedule, ratio),
        dropout=scale_dropout(config.model, ratio),
        label_smoothing=scale_label_smoothing(config.regularization, ratio),
        ema_decay=scale_ema_decay(config.regularization, section, batch),
    )
    return Recipe._make(None if value is None else float(f"{value:.{_DIGITS}g}") for value in values)


def start_from(config: TrialConfig, recipe: Recipe, reference: int) -> TrialConfig:
    """``config`` with ``recipe`` at the batch ``reference``, from which rules scale it, and no rule yet."""
    optimizer = {
        "lr": recipe.lr, "weight_decay": recipe.weight_decay, "momentum": recipe.beta1, "beta2": recipe.beta2,
        "eps": recipe.eps, "reference_batch": reference,
    }  # fmt: skip
    regularization = {"label_smoothing": recipe.label_smoothing, "ema_decay": recipe.ema_decay or None}
    started = config.model_copy(
        update={
            "optimizer": config.optimizer.model_copy(update=optimizer),
            "model": config.model.model_copy(update={"dropout": recipe.dropout}),
            "schedule": config.schedule.model_copy(update={"warmup": recipe.warmup, "warmup_rule": "none"}),
            "regularization": config.regularization.model_copy(update=regularization),
        }
    )
    return Combination().apply(started)
