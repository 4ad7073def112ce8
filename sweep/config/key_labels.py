"""Configuration keys in words, for people."""

_LABELS = {  # where the last part of the key is not its name
    "batch.global": "effective batch size",
    "batch.micro": "micro batch",
    "data.name": "data",
    "global_batch_size": "effective batch size",
    "model.name": "model",
    "model.norm": "normalization",
    "optimizer.lr": "learning rate",
    "optimizer.name": "optimizer",
    "precision.dtype": "precision",
    "precision.checkpointing": "activation checkpointing",
    "schedule.name": "schedule",
}


def key_label(key: str) -> str:
    """A configuration key in words: ``optimizer.weight_decay`` -> "weight decay"."""
    return _LABELS.get(key, key.rpartition(".")[2].replace("_", " "))
