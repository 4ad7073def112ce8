"""Surrogate models: one for each quantity that a sampler predicts for untried points."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import final

import numpy as np

from sweep.analysis.statistics.gaussian_process import Floats, GaussianProcess
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.records.trial_record import TrialRecord
from sweep.search.samplers.encoding import Encoding, Values
from sweep.search.samplers.hypervolume_gain import CostAxis, GaussianPrediction

_GROWTH = 1.15  # hyperparameters are fitted again when the number of points has grown by this factor
_FIRST_FIT = 6


def is_of_shape(name: str, spec: StudySpec) -> bool:
    """Whether the metric depends on the configuration's shape and budget alone."""
    until_target = spec.base.get("budget.target_accuracy") is not None or "budget.target_accuracy" in spec.space
    metric = METRICS[name]
    return metric.is_memory or (metric.is_speed and not metric.until_target and not until_target)


@final
class Surrogate:
    """A Gaussian process of the metric ``name`` on its axis."""

    def __init__(self, name: str, encoding: Encoding, of_shape: bool) -> None:
        self._name, self._encoding, self.of_shape = name, encoding, of_shape
        self.axis = CostAxis(name)
        self._model: GaussianProcess | None = None
        self._num_fitted = 0
        self._hyperparameters: Floats | None = None
        self._learned: tuple[int, int] = (-1, -1)
        self._predicted: tuple[list[Values], Floats] = ([], np.empty(0))

    def set_predictions(self, points: Sequence[Values], costs: Sequence[float]) -> None:
        """Sets predictions from probes, in the metric's unit, which hold until trials of equal features measured it."""
        self._predicted = (list(points), self.axis.of_values(np.array(costs, dtype=np.float64)))
        self._learned = (-1, -1)

    def fit(self, records: Sequence[TrialRecord]) -> bool:
        """Fits the records that have the metric; returns whether there is a model. Without new records nothing is
        computed."""
        state = (len(records), records[-1].number if records else -1)
        if state != self._learned:
            self._learned = state
            usable = [record for record in records if self._is_usable(record)]
            points, costs = self._collect_data(usable)
            if not points:
                self._model = None
                return False
            errors = self._axis_errors(usable)
            self.fit_to(points, costs, np.append(errors, np.zeros(len(points) - len(errors))))
        return self._model is not None

    def _collect_data(self, usable: Sequence[TrialRecord]) -> tuple[list[Values], Floats]:
        """Measured costs, and the predicted costs of other points, corrected by the median error of the predictions."""
        points: list[Values] = [record.values for record in usable]
        costs = self.axis.of_values(np.array([float(record.measurements[self._name]) for record in usable]))
        others, predicted = self._predicted
        if not others or not points:
            return (points, costs) if points else (list(others), predicted)
        measured: dict[bytes, list[float]] = defaultdict(list)
        for row, cost in zip(self._features(points), costs, strict=True):
            measured[row.tobytes()].append(float(cost))
        rows = [row.tobytes() for row in self._features(others)]
        errors = [median(measured[row]) - cost for row, cost in zip(rows, predicted, strict=True) if row in measured]
        is_new = np.array([row not in measured for row in rows])
        new = [point for point, keep in zip(others, is_new, strict=True) if keep]
        return points + new, np.append(costs, predicted[is_new] + (median(errors) if errors else 0.0))

    def fit_to(self, points: Sequence[Values], costs: Floats, errors: Floats | None = None) -> None:
        """Fits these values at these points, with their standard errors besides the noise; equal points count as one
        with their mean."""
        features, errors = self._features(points), np.zeros(len(points)) if errors is None else errors
        number = _last_fit(len(features))
        if number != self._num_fitted or self._hyperparameters is None:
            self._num_fitted = number
            first = _merged(features[:number], costs[:number], errors[:number])
            self._hyperparameters = GaussianProcess(first[0], first[1], errors=first[2]).parameters
        rows, means, known = _merged(features, costs, errors)
        self._model = GaussianProcess(rows, means, self._hyperparameters, known)

    def predict(self, points: Sequence[Values]) -> GaussianPrediction:
        """The prediction at these points; only after a fit."""
        assert self._model is not None
        return GaussianPrediction(*self._model.predict(self._features(points)), self.axis)

    def _is_usable(self, record: TrialRecord) -> bool:
        value = record.measurements.get(self._name)
        is_known = value is not None and bool(np.isfinite(self.axis.of_values(np.array([float(value)]))[0]))
        if not np.isfinite(record.errors.get(self._name, 0.0)):
            return False
        # a pruned trial has a likely final accuracy, but its time is not that of a whole training
        return is_known and (record.outcome == "complete" or (record.outcome == "pruned" and not self.of_shape))

    def _axis_errors(self, usable: Sequence[TrialRecord]) -> Floats:
        # standard errors of what was extrapolated, 0 of what was measured
        values = np.array([float(record.measurements[self._name]) for record in usable])
        errors = np.array([record.errors.get(self._name, 0.0) for record in usable])
        middle = self.axis.of_values(values)
        # the larger side: on the other one the scale may end
        sides = [np.abs(self.axis.of_values(values + side * errors) - middle) for side in (-1.0, 1.0)]
        return np.asarray(np.nanmax(sides, axis=0)) if len(usable) else np.empty(0)

    def _features(self, points: Sequence[Values]) -> Floats:
        return self._encoding.cost(points) if self.of_shape else self._encoding.accuracy(points)


def _last_fit(number: int) -> int:
    """The latest size, of those that grow by a constant factor, at which hyperparameters are fitted. It depends on
    the number alone, so that a resumed study fits the same as an uninterrupted one."""
    size = _FIRST_FIT
    while int(size * _GROWTH) + 1 <= number:
        size = int(size * _GROWTH) + 1
    return min(size, number)


def _merged(features: Floats, costs: Floats, errors: Floats) -> tuple[Floats, Floats, Floats]:
    # the mean of equal points and its error; where some were measured, those alone
    rows, places = np.unique(features, axis=0, return_inverse=True)
    places = places.ravel()
    is_measured = errors == 0
    with_any = np.bincount(places, is_measured) > 0
    weights = np.where(with_any[places], is_measured, True).astype(np.float64)
    counts = np.bincount(places, weights)
    variances = np.bincount(places, weights * errors**2)
    return rows, np.bincount(places, weights * costs) / counts, np.sqrt(variances) / counts
