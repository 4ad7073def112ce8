"""Which trials one process can train together: those whose models and micro batches have equal shapes."""

import json

from sweep.config.tables.models import MODELS
from sweep.config.trial_config import TrialConfig
from sweep.records.messages import TrialTask

# Of each trial of a stack its own; everything else must be equal.
_OWN_SECTIONS = frozenset({"optimizer", "schedule", "seed"})
_OWN_REGULARIZATION = frozenset({"grad_clip", "ema_decay", "ema_rule"})


def find_stack_key(task: TrialTask) -> str | None:
    """A text that is equal for trials that can be trained together; None for a trial that can only be trained alone."""
    if task.memory_limit_bytes is not None or explain_alone(task.config):
        return None
    content = task.config.apply_rules().model_dump(mode="json", exclude=set(_OWN_SECTIONS))
    shared = {key: value for key, value in content["regularization"].items() if key not in _OWN_REGULARIZATION}
    return json.dumps({**content, "regularization": shared, "plugin": task.plugin}, sort_keys=True)


def explain_alone(config: TrialConfig) -> str:
    """Why ``config`` cannot be trained together with others; empty if it can."""
    model, precision, diagnostics = config.model, config.precision, config.diagnostics
    entry = MODELS.get(model.name)
    obstacles = {
        f"model.name = {model.name}": entry is None or not entry.is_stackable,
        "model.dropout": model.dropout > 0.0,  # the draws of one trial would depend on the others
        "model.stochastic_depth": model.stochastic_depth > 0.0,
        "precision.dtype = fp16": precision.dtype == "fp16",
        "precision.channels_last": precision.channels_last,
        "precision.compile": precision.compile,
        "precision.checkpointing": precision.checkpointing,
        "precision.cuda_graphs": precision.cuda_graphs,
        "diagnostics.ledger": diagnostics.ledger != "phases",
        "diagnostics.memory_snapshot": diagnostics.memory_snapshot,
        "diagnostics.noise_scale": diagnostics.noise_scale,
        "diagnostics.sharpness": diagnostics.sharpness,
        "diagnostics.branch_after": diagnostics.branch_after is not None,
        "batch.micro = auto": config.batch.is_auto,
        "batch.schedule": config.batch.schedule != "constant",
        "distributed.world_size": config.distributed.world_size > 1,
    }
    return ", ".join(name for name, is_there in obstacles.items() if is_there)
