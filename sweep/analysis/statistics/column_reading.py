"""Columns of frames as NumPy and Python read them, whatever is missing."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from sweep.analysis.statistics.pareto import Values
from sweep.config.trial_config import Scalar

Texts = npt.NDArray[np.object_]


def read_numbers(frame: pd.DataFrame, name: str) -> Values:
    """A numeric column as floats, NaN where it is missing; all NaN without such a column. Shape ``[len(frame)]``."""
    if name not in frame.columns:
        return np.full(len(frame), np.nan)
    values = frame[name]
    if values.dtype == np.float64:
        return values.to_numpy()
    return pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)


def read_text(frame: pd.DataFrame, name: str) -> Texts:
    """A column of text, "" where it is missing; all "" without such a column. Shape ``[len(frame)]``."""
    if name not in frame.columns:
        return np.full(len(frame), "", dtype=object)
    return frame[name].to_numpy(dtype=object, na_value="")


def most_common(values: Texts) -> tuple[str, int]:
    """The most frequent of ``values`` (shape ``[n]``), in alphabetical order among equals, and how many are others."""
    names, counts = np.unique(values.astype(str), return_counts=True)
    if not len(names):
        return "", 0
    return str(names[np.argmax(counts)]), int(counts.sum() - counts.max())


def plain_value(value: object) -> Scalar:
    """A cell of a configuration as Python's own type; None for what is missing."""
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    plain = value.item() if isinstance(value, np.generic) else value
    return plain if isinstance(plain, str | int | float | bool) else str(plain)
