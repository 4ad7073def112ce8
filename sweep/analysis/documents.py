"""Results of an analysis as JSON documents."""

import math
from dataclasses import is_dataclass
from typing import Any

from pydantic import BaseModel

from sweep.analysis.statistics import Interval


def to_document(value: Any) -> Any:
    """``value`` as JSON holds it: dataclasses and intervals are objects, tuples lists, and NaN and infinity null."""
    if is_dataclass(value):
        value = vars(value)
    elif isinstance(value, BaseModel):
        value = value.model_dump()
    elif isinstance(value, Interval):
        value = value._asdict()
    if isinstance(value, dict):
        return {key: to_document(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [to_document(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
