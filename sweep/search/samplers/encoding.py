"""Features of points, between 0 and 1, for the models of accuracy and of cost.

Accuracy and cost depend on different parameters. Where normalization is per sample, the split of a global batch into
micro batches changes no update, so that the accuracy has only the global batch as a feature. Time and memory do not
depend on the learning rate or the weight decay.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from sweep.analysis.statistics.gaussian_process import Floats
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.tables.models import has_batch_statistics
from sweep.config.trial_config import flatten_config
from sweep.probing.shape import NO_SHAPE, SWITCHES

_BATCH = ("batch.micro", "batch.accumulation", "batch.global")
_WIDE = 8.0  # a choice of numbers that spans more than this factor is encoded by its logarithm
Values = Mapping[str, Any]
Feature = Callable[[Values], list[float]]


@final
class Encoding:
    """Features of the points of a study's space."""

    def __init__(self, spec: StudySpec) -> None:
        self._base = flatten_config(spec.config(next(spec.corners())))
        rest = {path: item for path, item in spec.space.items() if path not in _BATCH}
        has_batch = len(rest) < len(spec.space)
        encoded = {path: _feature(path, item) for path, item in rest.items()}
        is_until_target = self._base["budget.target_accuracy"] is not None or "budget.target_accuracy" in spec.space
        self._of_accuracy = list(encoded.values())
        self._of_cost = [
            _switch(path) if path in SWITCHES and not is_until_target else feature
            for path, feature in encoded.items()
            if is_until_target or path not in NO_SHAPE or path.startswith("budget.")
        ]
        if has_batch:
            self._sizes = _log_range(spec)
            self._of_accuracy.append(self._accuracy_batch)
            self._of_cost.append(self._cost_batch)

    def accuracy(self, points: Sequence[Values]) -> Floats:
        """Features of accuracy, shape ``[n, d]``."""
        return _table(points, self._of_accuracy)

    def cost(self, points: Sequence[Values]) -> Floats:
        """Features of time and memory, shape ``[n, e]``."""
        return _table(points, self._of_cost)

    def group(self, values: Values) -> tuple[str, int]:
        """The model of a point and the power of two next to its effective batch size: its place on the curves."""
        return str(values.get("model.name", self._base["model.name"])), round(math.log2(self._batch(values)[1]))

    def _accuracy_batch(self, values: Values) -> list[float]:
        micro, whole = self._batch(values)
        return [self._scaled(whole), self._scaled(micro) if self._depends_on_micro(values) else 0.0]

    def _cost_batch(self, values: Values) -> list[float]:
        micro, whole = self._batch(values)
        return [self._scaled(micro), self._scaled(whole), float(whole > micro)]

    def _batch(self, values: Values) -> tuple[float, float]:
        micro, split, whole = (values.get(path, self._base[path]) for path in _BATCH)
        if "batch.accumulation" not in values and "batch.global" in values:
            split = None
        if micro == "auto":
            micro = whole
        return float(micro), float(micro * split if split else whole)

    def _depends_on_micro(self, values: Values) -> bool:
        name = str(values.get("model.name", self._base["model.name"]))
        norm = str(values.get("model.norm", self._base["model.norm"]))
        return has_batch_statistics(name, norm) is not False  # None: the model does not declare it

    def _scaled(self, size: float) -> float:
        low, high = self._sizes
        return (math.log(size) - low) / (high - low)


def _log_range(spec: StudySpec) -> tuple[float, float]:
    configs = [spec.config(next(spec.corners()) | values) for values in spec.corners("batch")]
    whole = [config.global_batch_size for config in configs]
    low = min(config.batch.micro if isinstance(config.batch.micro, int) else 1 for config in configs)
    return math.log(low), max(math.log(max(whole)), math.log(low) + 1.0)


def _table(points: Sequence[Values], features: list[Feature]) -> Floats:
    rows = [[number for feature in features for number in feature(point)] or [0.0] for point in points]
    return np.array(rows, dtype=np.float64)


def _switch(path: str) -> Feature:
    return lambda values: [float(bool(values[path]))]


def _feature(path: str, parameter: Parameter) -> Feature:
    if parameter.choice is None:
        return lambda values: [parameter.share(values[path])]
    numbers = [value for value in parameter.choice if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) == len(parameter.choice) > 1:
        return _number(path, numbers)
    # each value is a corner of a simplex, so that all have the distance 1 from each other
    choices = list(parameter.choice)
    corners = (np.eye(len(choices)) / math.sqrt(2.0)).tolist()
    return lambda values: list(corners[choices.index(values[path])])


def _number(path: str, numbers: list[int | float]) -> Feature:
    low, high = min(numbers), max(numbers)
    if low > 0 and high / low >= _WIDE:
        span = math.log(high / low)
        return lambda values: [math.log(values[path] / low) / span]
    return lambda values: [(values[path] - low) / (high - low)]
