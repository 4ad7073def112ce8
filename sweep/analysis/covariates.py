"""Settings that vary beside the batch and the learning rate, as columns of a regression that holds them equal."""

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
import pandas as pd

from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.grouping import varying_keys
from sweep.analysis.statistics.pareto import Values
from sweep.config.key_labels import key_label

# The keys that divide the samples of a step into micro batches.
MICRO_KEYS = ("batch.micro", "batch.accumulation", "batch.global")
# The batch and the rate enter a regression on their own; the others change nothing of what is learned.
_APART = frozenset({
    *MICRO_KEYS, "optimizer.lr", "rules.lr", "rules.reference_batch",
    "batch.memory_low", "batch.memory_high", "data.root", "data.placement", "data.workers", "data.prefetch",
    "diagnostics.ledger", "diagnostics.noise_scale", "diagnostics.sharpness",
    "distributed.world_size",
    "precision.channels_last", "precision.compile", "precision.checkpointing", "precision.cuda_graphs",
})  # fmt: skip


class Covariates(NamedTuple):
    """``columns`` of shape ``[n, k]``, each with mean 0 and standard deviation 1, and the ``keys`` that they code."""

    keys: tuple[str, ...]
    columns: Values

    def describe(self) -> str:
        """The keys in words that follow a description, "" for none."""
        return f", at equal {self.name_keys()}" if self.keys else ""

    def name_keys(self) -> str:
        """The keys in words."""
        return ", ".join(map(key_label, self.keys))


def code_settings(frame: pd.DataFrame, ignored: Collection[str] = ()) -> Covariates:
    """The settings that vary over the configurations ``frame`` (``config.*``), but for batch and rate and the keys
    ``ignored``: numbers as one column, by their logarithm where all are above 0; two numbers, or anything else, as a
    column for each value but one."""
    keys = tuple(key for key in varying_keys(frame) if key not in _APART and key not in ignored)
    coded = [_code(frame, f"config.{key}") for key in keys]
    return Covariates(keys, standardize(np.column_stack([np.zeros((len(frame), 0)), *coded])))


def standardize(columns: Values) -> Values:
    """``columns`` (shape ``[n, k]``) with mean 0 and standard deviation 1, without those that do not vary."""
    varies = np.ptp(columns, axis=0) > 0 if len(columns) else np.zeros(columns.shape[1], dtype=np.bool_)
    kept = columns[:, varies]
    return np.asarray((kept - kept.mean(axis=0)) / kept.std(axis=0))


def _code(frame: pd.DataFrame, name: str) -> Values:
    numbers, names = read_numbers(frame, name), read_text(frame, name).astype(str)
    if np.isfinite(numbers).all() and len(np.unique(numbers)) > 2:
        return np.log(numbers) if numbers.min() > 0 else numbers
    levels = sorted(set(names))
    return np.column_stack([np.asarray(names == level, dtype=np.float64) for level in levels[1:]])
