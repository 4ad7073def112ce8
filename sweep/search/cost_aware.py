"""Proposes the point with the largest expected gain per predicted second. The gain is in the tuned accuracy at the
point's batch size. Time and memory depend on little else, so that what is best at each batch size makes the Pareto
front.

Accuracy, and whatever else only training determines, is modeled over all swept parameters. Time and memory follow from
the shape of a configuration: their models have no other features, and are accurate after a few measured shapes. As the
improvement is divided by the cost, cheap points come first, and expensive ones when enough improvement is expected.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, final

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import ndtr
from threadpoolctl import ThreadpoolController

from sweep.analysis.candidates import ACCURACY_MARGIN
from sweep.analysis.response import GaussianProcess, encode_decades, find_encoder, list_batches
from sweep.analysis.statistics import LINEAR, SCALES, Mask, Numbers, Scale, non_dominated
from sweep.analysis.statistics import Values as Floats
from sweep.config.metrics import IMAGES, METRICS, Quality, find_metric
from sweep.config.space import Parameter
from sweep.config.study import FEWEST_CONFIGURATIONS, TRIAL_SECONDS, StudySpec
from sweep.config.tables import has_batch_statistics
from sweep.config.trial import flatten_config
from sweep.probing.shape import NO_SHAPE, SWITCHES
from sweep.records.messages import INFEASIBLE
from sweep.records.records import TrialRecord
from sweep.search.sampler import (
    PREDICTED_METRICS,
    CandidatePoints,
    Point,
    PredictCost,
    Sampler,
    SobolPoints,
    make_point_key,
    select_window,
)
from sweep.search.seeds import collect_costs

_BATCH = ("batch.micro", "batch.accumulation", "batch.global", "distributed.world_size")
Values = Mapping[str, Any]
_Feature = Callable[[Sequence[Values]], Floats]  # of n points, shape [n, d]
_LEAST = 1e-300  # a lower bound of all seconds and bytes
_USEFUL_SHARE = 0.1  # of the range of another metric than accuracy: what is farther behind the best is no gain
_GROWTH = 1.15  # hyperparameters are fitted again when the number of points has grown by this factor
_FIRST_FIT = 6
WINDOW = 300  # trials that the models are fitted on: the cost grows with the cube
_SLACK = 50
_LEAST_FIRST = 3  # proposals before the models are used
_FEW = 8  # trials of a search that cannot spare any for the extremes of the space
_MOST_GROUPS = 128  # quasi-random points that are looked at for the batch sizes of a space
_LEARNED = 0.05  # accuracy: what has learned more than that beyond the lower of chance and the worst is no failure
_BREAKDOWN = 0.3  # below the best angle of the accuracy: that it broke down is all that a worse one tells
_MANY_MEDIANS = 3.0  # the same of another quality: so many times as far behind the best as the median
_APART = 0.05  # a tenth of a decade of a rate: points that are closer cannot be told apart
_MAX_SHAPES = 100  # whose cost is predicted from probes
_CHOICE = 32  # quasi-random points among which a first proposal is the one farthest from the others
_UNLIKELY, _LEAST_CHANCE = 0.1, 1e-9  # of being feasible: what is unlikely comes when nothing else is left
_HOPELESS = 0.05  # probability of being useful
_CURIOSITY = 1e-9  # weight of uncertainty: below any other improvement


@final
class Encoding:
    """Features of the points of a study's space."""

    def __init__(self, spec: StudySpec) -> None:
        self._base, self.quality = flatten_config(spec.corners.first), spec.quality
        self._batch = {path: self._base[path] for path in _BATCH}
        rest = {path: item for path, item in spec.space.items() if path not in _BATCH[:3]}
        has_batch = len(rest) < len(spec.space)
        encoded = {path: _feature(path, item) for path, item in rest.items()}
        target = "budget.target"
        self._is_until_target = self._base[target] is not None or target in spec.space
        self._of_accuracy = list(encoded.values())
        self._of_cost = [
            _switch(path) if path in SWITCHES and not self._is_until_target else feature
            for path, feature in encoded.items()
            if self._is_until_target or path not in NO_SHAPE or path.startswith("budget.")
        ]
        if has_batch:
            self._of_accuracy.append(self._accuracy_batch)
            self._of_cost.append(self._cost_batch)

    def accuracy(self, points: Sequence[Values]) -> Floats:
        """Features of accuracy, shape ``[n, d]``."""
        return _encode(points, self._of_accuracy)

    def cost(self, points: Sequence[Values]) -> Floats:
        """Features of time and memory, shape ``[n, e]``."""
        return _encode(points, self._of_cost)

    def is_of_shape(self, name: str) -> bool:
        """Whether the metric depends on the configuration's shape and budget alone."""
        metric = METRICS[name]
        return metric.is_memory or (metric.is_speed and not metric.until_target and not self._is_until_target)

    def group(self, points: Sequence[Values]) -> list[tuple[str, int, int]]:
        """The model of each point and the powers of two next to its micro and effective batch size: its position on the
        curves of what the best setting gives, of which time and memory depend on little else."""
        powers = np.rint(np.log2(self._batches(points)[:, :2])).astype(int).tolist()
        return [(name, *each) for name, each in zip(self._list_models(points), powers, strict=True)]

    def name_batches(self, points: Sequence[Values]) -> list[tuple[str, int]]:
        """The model of each point and its effective batch size."""
        return list(zip(self._list_models(points), self._batches(points)[:, 1].astype(int).tolist(), strict=True))

    def _list_models(self, points: Sequence[Values]) -> list[str]:
        return [str(values.get("model.name", self._base["model.name"])) for values in points]

    def _accuracy_batch(self, points: Sequence[Values]) -> Floats:
        micro, whole, _ = encode_decades(self._batches(points)).T
        depends = [self._depends_on_micro(values) for values in points]
        return np.stack([whole, np.where(depends, micro, 0.0)], axis=1)

    def _cost_batch(self, points: Sequence[Values]) -> Floats:
        micro, whole, ranks = self._batches(points).T
        return np.stack([encode_decades(micro), encode_decades(whole), whole > micro * ranks], axis=1)

    def _batches(self, points: Sequence[Values]) -> Floats:
        # the micro and the effective batch sizes and the ranks, shape [n, 3]
        table = []
        for values in points:
            micro, split, whole, ranks = (values.get(path, base) for path, base in self._batch.items())
            if "batch.global" in values and "batch.accumulation" not in values:
                split = None
            micro = whole if micro == "auto" else micro
            table.append((micro, micro * split * ranks if split else whole, ranks))
        return np.array(table, dtype=np.float64).reshape(-1, 3)

    def _depends_on_micro(self, values: Values) -> bool:
        name = str(values.get("model.name", self._base["model.name"]))
        norm = str(values.get("model.norm", self._base["model.norm"]))
        return has_batch_statistics(name, norm) is not False  # None: the model does not declare it


def _encode(points: Sequence[Values], features: list[_Feature]) -> Floats:
    return np.hstack([feature(points) for feature in features] or [np.zeros((len(points), 1))])


def _switch(path: str) -> _Feature:
    return lambda points: np.array([[float(bool(values[path]))] for values in points])


def _feature(path: str, parameter: Parameter) -> _Feature:
    if parameter.log is not None:
        return lambda points: encode_decades(np.array([[values[path]] for values in points]))
    if parameter.choice is None:
        return lambda points: np.array([[parameter.share(values[path])] for values in points])
    encode = find_encoder(parameter.choice)
    return lambda points: np.array([encode(values[path]) for values in points])


@final
@dataclass(frozen=True)
class CostAxis:
    """The metric ``name`` as a cost (smaller is better), on the scale on which its noise is even; an empty name is a
    plain number. ``quality`` is the study's."""

    name: str
    quality: Quality = IMAGES

    def of_values(self, values: Floats) -> Floats:
        """Measured values, in the metric's unit, on this axis; not finite outside the scale."""
        return np.asarray(self._sign * self._scale.forward(values))

    def of_costs(self, costs: Floats) -> Floats:
        """Costs (values, negative for a metric to be maximized) on this axis, clipped to it."""
        values = self._sign * costs
        return self.of_values(np.maximum(values, _LEAST) if self._scale.is_ratio else values)

    def costs(self, positions: Floats) -> Floats:
        """The costs at positions on this axis."""
        return np.asarray(self._sign * self._scale.backward(self._sign * positions))

    @property
    def _scale(self) -> Scale:
        return SCALES[find_metric(self.name, self.quality).scale] if self.name else LINEAR

    @property
    def _sign(self) -> float:
        return find_metric(self.name, self.quality).sign if self.name else 1.0


@dataclass(frozen=True)
class GaussianPrediction:
    """Means and deviations of one objective for each candidate, shape ``[k]``, on the ``axis`` where it is normal."""

    mean: Floats
    deviation: Floats
    axis: CostAxis


@final
class Surrogate:
    """A Gaussian process of the metric ``name`` on its axis; an empty name is a plain number."""

    def __init__(self, name: str, encoding: Encoding) -> None:
        self._name, self._encoding = name, encoding
        self.of_shape = bool(name) and encoding.is_of_shape(name)
        self.axis = CostAxis(name, encoding.quality)
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
            points, costs, errors = self._read(records)
            points, costs = self._add_predictions(points, costs)
            if not points:
                self._model = None
                return False
            if self._name == self._encoding.quality.column:
                costs = np.minimum(costs, costs.min() + self._find_breakdown(costs))
            self.fit_to(points, costs, np.append(errors, np.zeros(len(points) - len(errors))))  # predictions are exact
        return self._model is not None

    def _read(self, records: Sequence[TrialRecord]) -> tuple[Sequence[Values], Floats, Floats]:
        """The points of the records that have the metric, and on its axis their costs and the standard errors of those
        that were extrapolated; those that were measured have 0."""
        # A pruned trial has a likely final accuracy, but its time is not the time of a whole training.
        ends = ("complete",) if self.of_shape else ("complete", "pruned")
        records = [record for record in records if self._name in record.measurements and record.outcome in ends]
        values = np.array([record.measurements[self._name] for record in records], dtype=np.float64)
        errors = np.array([record.errors.get(self._name, 0.0) for record in records])
        middle = self.axis.of_values(values)
        # The larger side counts, because on the other one the scale may end.
        sides = [np.abs(self.axis.of_values(values + side * errors) - middle) for side in (-1.0, 1.0)]
        known = np.isfinite(middle) & np.isfinite(errors)
        points = [record.values for record, keep in zip(records, known, strict=True) if keep]
        return points, middle[known], np.fmax(*sides)[known]

    def _find_breakdown(self, costs: Floats) -> float:
        if self.axis.quality.unit == "fraction":
            return _BREAKDOWN
        return _MANY_MEDIANS * float(np.median(costs) - costs.min()) or float(np.ptp(costs))

    def _add_predictions(self, points: Sequence[Values], costs: Floats) -> tuple[Sequence[Values], Floats]:
        """With the predicted costs of other points, corrected by the median error of the predictions."""
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
        return [*points, *new], np.append(costs, predicted[is_new] + (median(errors) if errors else 0.0))

    def fit_to(self, points: Sequence[Values], costs: Floats, errors: Floats | None = None) -> None:
        """Fits these values at these points, with their standard errors besides the noise; equal points count as one
        with their mean."""
        features, errors = self._features(points), np.zeros(len(points)) if errors is None else errors
        number = _last_fit(len(features))
        if number != self._num_fitted or self._hyperparameters is None:
            self._num_fitted = number
            rows, means, deviations = _merged(features[:number], costs[:number], errors[:number])
            self._hyperparameters = GaussianProcess(rows, means, errors=deviations).parameters
        rows, means, deviations = _merged(features, costs, errors)
        self._model = GaussianProcess(rows, means, self._hyperparameters, deviations)

    def predict(self, points: Sequence[Values]) -> GaussianPrediction:
        """The prediction at these points; only after a fit."""
        assert self._model is not None
        return GaussianPrediction(*self._model.predict(self._features(points)), self.axis)

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
    """Distinct points, the mean of each and its error. If some values of a point were measured, only these count."""
    rows, inverse = np.unique(features, axis=0, return_inverse=True)
    inverse = inverse.ravel()
    is_measured = errors == 0
    has_measured = np.bincount(inverse, is_measured) > 0
    weights = np.where(has_measured[inverse], is_measured, True).astype(np.float64)
    counts = np.bincount(inverse, weights)
    variances = np.bincount(inverse, weights * errors**2)
    return rows, np.bincount(inverse, weights * costs) / counts, np.sqrt(variances) / counts


def find_curve_gains(
    groups: Sequence[Hashable], prediction: GaussianPrediction, best: dict[Hashable, float], least_useful: float
) -> Floats:
    """The expected improvement of each of k candidates over the best of its group, on the axis of ``prediction``; shape
    ``[k]``. ``best`` holds the lowest position on the axis of each group that was tried, ``least_useful`` the position
    below which an improvement counts."""
    limits = np.array([min(best.get(group, least_useful), least_useful) for group in groups])
    deviations = np.maximum(prediction.deviation, 1e-12)
    distances = (limits - prediction.mean) / deviations
    density = np.exp(-0.5 * distances**2) / np.sqrt(2.0 * np.pi)
    return np.asarray(np.maximum(deviations * (distances * ndtr(distances) + density), 0.0))


@final
class CostAwareSampler(Sampler):
    """The first proposals fill the space, later ones follow the models. ``predict`` gives seconds and bytes of
    configurations whose shapes were probed, ``chance`` is the accuracy of a model that has learned nothing, used in a
    search of at most ``_FEW`` trials."""

    def __init__(
        self,
        spec: StudySpec,
        records: Sequence[TrialRecord],
        predict: PredictCost | None = None,
        chance: float | None = None,
    ) -> None:
        self._spec, self._encoding = spec, Encoding(spec)
        self._is_short = spec.trials <= _FEW
        # with chance known, longer searches began to follow their models earlier, and lost more
        self._chance = chance if self._is_short else None
        self._candidates, self._quasi_random = CandidatePoints(spec), SobolPoints(spec.space, spec.seed)
        self._names = {path for path, item in spec.space.items() if any(isinstance(v, str) for v in item.choice or ())}
        self._threads = ThreadpoolController()
        self._seen: set[str] = set()
        groups = set(self._encoding.group([self._quasi_random(index) for index in range(_MOST_GROUPS)]))
        models = spec.space["model.name"].grid_values if "model.name" in spec.space else None
        models = models or [spec.corners.first.model.name]
        planned = {(name, batch) for name in map(str, models) for batch in list_batches(spec, name)}
        # the ones that the answer requires to be tuned, if the trials suffice for that
        self._planned = planned if len(planned) * FEWEST_CONFIGURATIONS <= spec.trials else set()
        self._required: frozenset[tuple[str, int]] | None = None  # of these, by the answer
        self._num_first = max(min(len(groups), spec.trials // 2), _LEAST_FIRST)
        self._records: list[TrialRecord] = []
        self._seconds = 0.0  # that the trials of this run took
        names = dict.fromkeys((*spec.objectives, *TRIAL_SECONDS))
        self._learners = {name: Surrogate(name, self._encoding) for name in names}
        # tuning is about the quality, otherwise about the first objective that only training determines
        ranks = [(name != spec.quality.column, self._learners[name].of_shape) for name in spec.objectives]
        self._quality = ranks.index(min(ranks))
        self._feasible = Surrogate("", self._encoding)
        if predict:
            self._predict_shapes(predict)
        for record in records:
            self.learn(record)
        self._seconds = 0.0  # each run has the whole search_timeout

    def _predict_shapes(self, predict: PredictCost) -> None:
        """Gives the models of time and memory the predictions from probes for a point of each shape."""
        points = self._candidates.at(0, [], set())
        _, first = np.unique(self._encoding.cost(points), axis=0, return_index=True)
        shapes = [points[row] for row in sorted(first)[:_MAX_SHAPES]]
        configs = [self._spec.config(point) for point in shapes]
        for name, learner in self._learners.items():
            if name in PREDICTED_METRICS and learner.of_shape:
                predicted = [(point, predict(name, config)) for point, config in zip(shapes, configs, strict=True)]
                costs = [(point, cost) for point, cost in predicted if cost is not None]
                learner.set_predictions([point for point, _ in costs], [cost for _, cost in costs])

    def learn(self, record: TrialRecord) -> None:
        self._seen.add(make_point_key(self._point(record)))
        self._records.append(record)
        if not record.reused_from:
            known = (record.measurements[name] for name in TRIAL_SECONDS if name in record.measurements)
            self._seconds += next(known, 0.0)
        if len(self._records) > WINDOW + _SLACK:
            self._records = select_window(self._records, self._spec, WINDOW)

    def require(self, batches: frozenset[tuple[str, int]] | None) -> None:
        self._required = batches

    def propose(self, index: int) -> dict[str, Any] | None:
        # The other cores are busy with trials; threads that wait for them take longer than a single one.
        with self._threads.limit(limits=1):
            point = self._first(index) or self._best(index)
        if point is not None:
            self._seen.add(make_point_key(point))
        return point

    def _point(self, record: TrialRecord) -> Point:
        return {path: record.values[path] for path in self._spec.space}

    # ------------------------------------------------------------------ before the models are used

    def _first(self, index: int) -> Point | None:
        """A point of the batch size and the names that were tried least. None after ``_num_first`` proposals if
        something has learned, after twice as many in any case, and where no new point is left."""
        if index >= self._num_first and (self._has_learned() or index >= 2 * self._num_first):
            return None
        numbers = range(index * _CHOICE, (index + 1) * _CHOICE)
        points = [point for point in map(self._quasi_random, numbers) if make_point_key(point) not in self._seen]
        if not points:
            return None
        tried = [self._point(record) for record in self._records]
        turns = self._turns(points, tried)
        keys = (-self._find_ranks(points, tried), self._prices_of_names(points), turns, self._chances(points) < 0.5)
        order = np.lexsort(keys)  # the last counts first
        return points[int(order[0])]

    def _find_ranks(self, points: Sequence[Point], tried: Sequence[Point]) -> Floats:
        """Larger is better, shape ``[n]``. The first trial of all is near the center of the space, whose extremes are
        seldom good; the others are far from all that was tried. In a short search the first trial of a batch size is
        near the best trial in all other keys, unless that one has learned nothing: what is good at one batch size is
        seldom bad at the next, and the extremes would take most of the trials."""
        paths = list(self._spec.space)
        if not tried:
            return np.asarray(-cdist(self._shares(points, paths), np.full((1, len(paths)), 0.5))[:, 0])
        far, name = self._distances(points, tried), self._spec.quality.column
        known = [each for each in self._records if name in each.measurements]
        if not known or not self._is_short:
            return far
        # without chance, a single trial counts as having learned: nothing tells otherwise
        is_single = len(known) == 1 and self._chance is None
        if not is_single and not self._has_learned():
            return far
        best = max(known, key=lambda each: self._spec.quality.sign * float(each.measurements[name]))
        paths = [path for path in paths if path not in _BATCH]
        away = cdist(self._shares(points, paths), self._shares([self._point(best)], paths))[:, 0]
        groups = set(self._encoding.group(tried))
        is_old = [group in groups for group in self._encoding.group(points)]
        return np.where(is_old, far, far.max() + away.max() - away)  # a new batch size comes first

    def _shares(self, points: Sequence[Point], paths: Sequence[str]) -> Floats:
        """The positions in the ranges of ``paths``, shape ``[n, len(paths)]``."""
        space = self._spec.space
        shares = [[space[path].share(point[path]) for path in paths] for point in points]
        return np.array(shares, dtype=np.float64).reshape(len(points), len(paths))

    def _has_learned(self) -> bool:
        name, quality = self._spec.quality.column, self._spec.quality
        values = [float(each.measurements[name]) for each in self._records if name in each.measurements]
        least = quality.resize(_LEARNED, self._spec.tolerance or 0.0)
        if not values:
            return True
        return max(values) > min([*values, math.inf if self._chance is None else self._chance]) + least

    def _turns(self, points: Sequence[Point], tried: Sequence[Point]) -> Numbers:
        """How often the batch size of each point was tried, and the names that it chooses, shape ``[n]``: the models
        do not generalize from one name to another."""
        turns = Counter(self._encoding.group(tried))
        named = Counter((path, other[path]) for other in tried for path in self._names)
        return np.array([
            turns[group] + sum(named[path, point[path]] for path in self._names)
            for point, group in zip(points, self._encoding.group(points), strict=True)
        ])  # fmt: skip

    def _prices_of_names(self, points: Sequence[Point]) -> Floats:
        """The median cost of the ``points`` that choose the same names, shape ``[n]``: an expensive model is not
        tried twice without a reason."""
        prices: dict[str, list[float]] = defaultdict(list)
        names = [make_point_key({path: point[path] for path in self._names}) for point in points]
        for name, price in zip(names, self._prices(points), strict=True):
            prices[name].append(price)
        return np.array([median(prices[name]) for name in names])

    def _distances(self, points: Sequence[Point], tried: Sequence[Point]) -> Floats:
        """The distance of each point from the closest one that was tried, shape ``[n]``; infinite without any."""
        if not tried:
            return np.full(len(points), np.inf)
        return np.asarray(cdist(self._encoding.accuracy(points), self._encoding.accuracy(tried)).min(axis=1))

    # ------------------------------------------------------------------ by the models

    def _best(self, index: int) -> Point | None:
        complete, costs = self._complete()
        front = [self._point(complete[row]) for row in np.flatnonzero(non_dominated(costs))]
        points = self._candidates.at(index, front, self._seen)
        if not points:
            return None
        apart = self._distances(points, [self._point(record) for record in self._records]) >= _APART
        points = [point for point, keep in zip(points, apart, strict=True) if keep] or points
        chances, prices = self._chances(points), self._prices(points)
        utilities = chances / prices
        learner = self._learners[self._spec.objectives[self._quality]]
        if complete and learner.fit(self._records):
            prediction, costs = learner.predict(points), costs[:, self._quality]
            utilities *= self._find_gains(points, complete, costs, prediction)
            useful = ndtr((self._least_useful(costs, prediction.axis) - prediction.mean) / prediction.deviation)
            useful = np.where(chances < _UNLIKELY, np.nan, useful)
            utilities *= self._reserve(self._spec.trials - index, points, complete, useful, prices)
        return points[int(np.argmax(utilities))]

    def _reserve(
        self, num_left: int, points: list[Point], complete: list[TrialRecord], useful: Floats, prices: Floats
    ) -> Mask:
        """Which of the ``points`` may be proposed: all, while trials and seconds suffice to tune each batch size that
        may be useful; then those at batch sizes that lack configurations. ``useful`` are probabilities, NaN of what
        hardly fits; ``prices`` are seconds."""
        limit, most = self._spec.search_timeout, FEWEST_CONFIGURATIONS * len(self._planned)
        if not self._planned or num_left < 1 or (num_left > most and limit is None):
            return np.ones(len(points), dtype=np.bool_)
        batches = self._encoding.name_batches(points)
        counts = Counter(self._encoding.name_batches([self._point(record) for record in complete]))
        # one training tells little about the other rates, and the answer has named all others that it lacks
        rest = _HOPELESS if self._required is None else 1.0
        least = {batch: rest if counts[batch] > 1 else 0.0 for batch in self._planned}
        # what the answer requires, whatever the models of the search say, unless it hardly fits
        least |= dict.fromkeys(self._required or (), -1.0)
        hopeful = {batch for batch, chance in zip(batches, useful, strict=True) if chance > least.get(batch, 1.0)}
        lacking = {batch: max(FEWEST_CONFIGURATIONS - counts[batch], 0) for batch in self._planned & hopeful}
        is_lacking = np.array([lacking.get(batch, 0) > 0 for batch in batches], dtype=np.bool_)
        priced: dict[tuple[str, int], list[float]] = defaultdict(list)
        for batch, price in zip(batches, prices.tolist(), strict=True):
            priced[batch].append(price)
        needed = sum(count * median(priced[batch]) for batch, count in lacking.items())
        # the next trial, whatever it is, must leave the rest of them possible
        has_time = limit is None or limit - self._seconds > needed + prices.max()
        if not is_lacking.any() or (has_time and num_left > sum(lacking.values())):
            return np.ones(len(points), dtype=np.bool_)
        return is_lacking

    def _complete(self) -> tuple[list[TrialRecord], Floats]:
        """The complete trials and their costs: the smoothed values of the models, which lucky seeds affect less."""
        complete, costs = collect_costs(self._records, self._spec.objectives, self._spec.quality)
        points = [self._point(record) for record in complete]
        for column, name in enumerate(self._spec.objectives if complete else ()):
            learner = self._learners[name]
            if not learner.of_shape and learner.fit(self._records):
                costs[:, column] = learner.axis.costs(learner.predict(points).mean)
        return complete, costs

    def _find_gains(
        self, points: list[Point], complete: list[TrialRecord], costs: Floats, prediction: GaussianPrediction
    ) -> Floats:
        """The expected gains of what the best setting gives at each position of the curves, on the axis of the metric;
        ``costs`` are of the ``complete`` trials. What stays far behind the best of all is no gain."""
        best: dict[Hashable, float] = {}
        groups = self._encoding.group([self._point(record) for record in complete])
        for group, position in zip(groups, prediction.axis.of_costs(costs).tolist(), strict=True):
            best[group] = min(position, best.get(group, np.inf))
        least_useful = self._least_useful(costs, prediction.axis)
        gains = find_curve_gains(self._encoding.group(points), prediction, best, least_useful)
        # If hardly any improvement is left, the most uncertain point comes first.
        return np.asarray(gains + _CURIOSITY * prediction.deviation / prediction.deviation.max())

    def _least_useful(self, costs: Floats, axis: CostAxis) -> float:
        margin, tolerance = _USEFUL_SHARE * float(np.ptp(costs)), self._spec.tolerance
        if axis.name == axis.quality.column and tolerance is not None:
            margin = axis.quality.resize(ACCURACY_MARGIN, tolerance)
        return float(axis.of_costs(costs.min(keepdims=True) + margin)[0])

    def _prices(self, points: Sequence[Point]) -> Floats:
        for name in TRIAL_SECONDS:
            if self._learners[name].fit(self._records):
                prediction = self._learners[name].predict(points)
                return prediction.axis.costs(prediction.mean)
        return np.ones(len(points))

    def _chances(self, points: list[Point]) -> Floats:
        judged = [record for record in self._records if record.outcome in INFEASIBLE | {"complete", "pruned"}]
        labels = [float(record.outcome not in INFEASIBLE) for record in judged]
        if all(labels):
            return np.ones(len(points))
        self._feasible.fit_to([self._point(record) for record in judged], np.array(labels))
        prediction = self._feasible.predict(points)
        chances: Floats = ndtr((prediction.mean - 0.5) / np.maximum(prediction.deviation, 0.05))
        return np.where(chances < _UNLIKELY, _LEAST_CHANCE, chances)
