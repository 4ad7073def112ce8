"""What the rules of a recipe have made of its values, for the record of a trial."""

from sweep.config.scaling import (compute_weight_decay_timescale, scale_adam_constants, scale_weight_decay)
from sweep.config.tables.recipes import (OPTIMIZERS)
from sweep.config.trial_config import (TrialConfig)


def list_recipe_facts(config: TrialConfig, num_train: int, peak_lr: float) -> dict[str, float]:
    """By name of :mod:`sweep.config.metrics`, the values that a training on ``num_train`` images begins with."""
    section, rules, size = config.optimizer, config.rules, config.global_batch_size
    resolved = config.apply_rules()
    facts = {
        "scaled_dropout": resolved.model.dropout,
        "scaled_label_smoothing": resolved.regularization.label_smoothing,
        "peak_learning_rate": peak_lr,
        "scaled_weight_decay": scale_weight_decay(section, rules, size),
    }
    if (timescale := compute_weight_decay_timescale(section, rules, size, num_train)) is not None:
        facts["weight_decay_timescale"] = timescale
    if OPTIMIZERS[section.name].has_betas:
        constants = scale_adam_constants(section, rules, size)
        facts |= {"scaled_beta1": constants.beta1, "scaled_beta2": constants.beta2}
    return facts
