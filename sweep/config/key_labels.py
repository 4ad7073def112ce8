"""Configuration keys in words, for people."""

_LABELS = {  # where the last part of the key is not its name
    "batch.global": "effective batch size",
    "batch.micro": "micro batch",
    "batch.schedule": "batch schedule",
    "data.name": "data",
    "global_batch_size": "effective batch size",
    "model.name": "model",
    "model.norm": "normalization",
    "optimizer.lr": "learning rate",
    "optimizer.name": "optimizer",
    "precision.dtype": "precision",
    "precision.checkpointing": "activation checkpointing",
    "rules.betas": "betas rule",
    "rules.dropout": "dropout rule",
    "rules.ema": "EMA rule",
    "rules.epochs": "epochs rule",
    "rules.label_smoothing": "label smoothing rule",
    "rules.lr": "learning rate rule",
    "rules.warmup": "warm-up rule",
    "rules.weight_decay": "weight decay rule",
    "schedule.name": "schedule",
    "schedule.warmup": "warm-up",
    "schedule.warmup_unit": "warm-up unit",
}


def key_label(key: str) -> str:
    """A configuration key in words: ``optimizer.weight_decay`` -> "weight decay"."""
    return _LABELS.get(key, key.rpartition(".")[2].replace("_", " "))


def name_key(key: str) -> str:
    """A configuration key in words with the key itself: "weight decay (optimizer.weight_decay)"."""
    return f"{key_label(key)} ({key})"
