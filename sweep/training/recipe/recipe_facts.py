"""What the rules of a recipe have made of its values, for the record of a trial."""

from sweep.config.scaling import scale_adam_constants, scale_weight_decay
from sweep.config.tables.recipes import OPTIMIZERS
from sweep.config.trial_config import TrialConfig
from sweep.training.recipe.optimizers import compute_peak_lr


def list_recipe_facts(config: TrialConfig) -> dict[str, float]:
    """By name of :mod:`sweep.config.metrics`, the values that a training begins with."""
    section, size = config.optimizer, config.global_batch_size
    facts = {"peak_learning_rate": compute_peak_lr(config), "scaled_weight_decay": scale_weight_decay(section, size)}
    if OPTIMIZERS[section.name].has_betas:
        facts["scaled_beta2"] = scale_adam_constants(section, size).beta2
    return facts
