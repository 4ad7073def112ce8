"""What the rules of a recipe have made of its values, for the record of a trial."""

from sweep.config.scaling import scale_adam_constants, scale_weight_decay
from sweep.config.tables.recipes import OPTIMIZERS
from sweep.config.trial_config import TrialConfig


def list_recipe_facts(config: TrialConfig, peak_lr: float) -> dict[str, float]:
    """By name of :mod:`sweep.config.metrics`, the values that a training begins with."""
    section, rules, size = config.optimizer, config.rules, config.global_batch_size
    facts = {"peak_learning_rate": peak_lr, "scaled_weight_decay": scale_weight_decay(section, rules, size)}
    if OPTIMIZERS[section.name].has_betas:
        facts["scaled_beta2"] = scale_adam_constants(section, rules, size).beta2
    return facts
