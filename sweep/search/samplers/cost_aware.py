"""Proposes the point with the largest expected gain per second of its predicted cost: that of hypervolume, and that of
the tuned accuracy at its batch size.

Accuracy, and whatever else only training determines, is modeled over all swept parameters. Time and memory follow from
the shape of a configuration: their models have no other features, and are accurate after a few measured shapes. As the
improvement is divided by the cost, cheap points come first, and expensive ones when enough improvement is expected.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from statistics import median
from typing import Any, final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr
from threadpoolctl import ThreadpoolController

from sweep.analysis.answer.candidates import ACCURACY_MARGIN
from sweep.analysis.comparable_trials import ACCURACY
from sweep.analysis.statistics.gaussian_process import Floats
from sweep.analysis.statistics.pareto import non_dominated
from sweep.config.study import StudySpec
from sweep.records.messages import INFEASIBLE
from sweep.records.trial_record import TrialRecord
from sweep.search.samplers.base import PREDICTED_METRICS, PredictCost, Sampler, select_window
from sweep.search.samplers.candidate_points import CandidatePoints, Point, SobolPoints, make_point_key
from sweep.search.samplers.curve_gain import find_curve_gains
from sweep.search.samplers.encoding import Encoding
from sweep.search.samplers.hypervolume_gain import GaussianPrediction, UndominatedSpace
from sweep.search.samplers.surrogates import Surrogate, is_of_shape
from sweep.search.seed_allocation.confirmation import collect_costs

WINDOW = 300  # trials that the models are fitted on: the cost grows with the cube
_SLACK = 50
_NUM_FIRST = 3  # proposals before the models are used
_MAX_SHAPES = 100  # whose cost is predicted from probes
_CHOICE = 16  # quasi-random points, of which a first proposal is the one nearest to the center
_PRICES = ("total_seconds", "train_seconds")  # cost of a trial: the first of them that was measured
_LEAST_CHANCE = 1e-9  # of being feasible
_CURIOSITY = 1e-9  # weight of uncertainty, as a share of the hypervolume: below any other improvement


@final
class CostAwareSampler(Sampler):
    """See the module. The first proposals are near the center of the space.

    ``predict`` gives seconds and bytes of configurations whose shapes were probed.
    """

    def __init__(self, spec: StudySpec, records: Sequence[TrialRecord], predict: PredictCost | None = None) -> None:
        self._spec, self._encoding = spec, Encoding(spec)
        self._candidates, self._quasi_random = CandidatePoints(spec), SobolPoints(spec.space, spec.seed)
        self._names = {path for path, item in spec.space.items() if any(isinstance(v, str) for v in item.choice or ())}
        self._threads = ThreadpoolController()
        self._seen: set[str] = set()
        self._records: list[TrialRecord] = []
        names = dict.fromkeys((*spec.objectives, *_PRICES))
        self._learners = {name: Surrogate(name, self._encoding, is_of_shape(name, spec)) for name in names}
        self._feasible = Surrogate("", self._encoding, of_shape=False)
        self._gain: float | None = None
        if predict:
            self._predict_shapes(predict)
        for record in records:
            self.learn(record)

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
        if record.number >= 0:  # negative numbers are trials of other studies, whose points may be proposed again
            self._seen.add(make_point_key(self._point(record)))
        self._records.append(record)
        if len(self._records) > WINDOW + _SLACK:
            self._records = select_window(self._records, self._spec, WINDOW)

    def estimate_gain(self) -> float | None:
        with self._threads.limit(limits=1):
            self._best(len(self._records))
        return self._gain

    def propose(self, index: int) -> dict[str, Any] | None:
        # the other cores are busy with trials; threads that wait for them take longer than a single one
        with self._threads.limit(limits=1):
            chosen = self._first(index) or self._best(index)
        if chosen is not None:
            self._seen.add(make_point_key(chosen))
        return chosen

    def _point(self, record: TrialRecord) -> Point:
        return {path: record.values[path] for path in self._spec.space}

    # ------------------------------------------------------------------ before the models are used

    def _first(self, index: int) -> Point | None:
        if index >= _NUM_FIRST:
            return None
        numbers = range(index * _CHOICE, (index + 1) * _CHOICE)
        left = [point for point in map(self._quasi_random, numbers) if make_point_key(point) not in self._seen]
        if not left:
            return None
        # the extremes of a space are seldom good
        order = np.lexsort((self._distances(left), self._prices_of_names(left), self._turns(left)))
        return left[int(order[0])]

    def _prices_of_names(self, points: Sequence[Point]) -> Floats:
        """The median cost of those of ``points`` that choose the same names, shape ``[n]``: an expensive model is not
        tried twice without a reason."""
        prices: dict[str, list[float]] = defaultdict(list)
        names = [make_point_key({path: point[path] for path in self._names}) for point in points]
        for name, price in zip(names, self._prices(points), strict=True):
            prices[name].append(price)
        return np.array([median(prices[name]) for name in names])

    def _distances(self, points: Sequence[Point]) -> Floats:
        """The distance of each point from the center over the numeric parameters, shape ``[n]``."""
        numbers = {path: item for path, item in self._spec.space.items() if path not in self._names}
        away = [[item.share(point[path]) - 0.5 for path, item in numbers.items()] for point in points]
        return np.asarray(np.linalg.norm(np.array(away).reshape(len(points), len(numbers)), axis=1), dtype=np.float64)

    def _turns(self, points: Sequence[Point]) -> npt.NDArray[np.int64]:
        """How often the names that a point chooses were tried, shape ``[n]``. Each name is tried in turn, because the
        models do not generalize from one name to another."""
        tried = [self._point(record) for record in self._records if record.number >= 0]
        return np.array(
            [sum(other[path] == point[path] for other in tried for path in self._names) for point in points]
        )

    # ------------------------------------------------------------------ by the models

    def _best(self, index: int) -> Point | None:
        complete, costs = self._complete()
        front = [self._point(complete[row]) for row in np.flatnonzero(non_dominated(costs))]
        points = self._candidates.at(index, front, self._seen)
        if not points:
            return None
        utilities = self._gains(points, complete, costs, index) * self._chances(points) / self._prices(points)
        return points[int(np.argmax(utilities))]

    def _complete(self) -> tuple[list[TrialRecord], Floats]:
        """The complete trials and their costs: the smoothed values of the models, which lucky seeds affect less."""
        complete, costs = collect_costs([each for each in self._records if each.number >= 0], self._spec.objectives)
        points = [self._point(record) for record in complete]
        for column, name in enumerate(self._spec.objectives if complete else ()):
            learner = self._learners[name]
            if not learner.of_shape and learner.fit(self._records):
                costs[:, column] = learner.axis.costs(learner.predict(points).mean)
        return complete, costs

    def _gains(self, points: list[Point], complete: list[TrialRecord], costs: Floats, index: int) -> Floats:
        if not len(costs):
            return np.ones(len(points))
        predictions: list[GaussianPrediction] = []
        for name in self._spec.objectives:
            self._learners[name].fit(self._records)
            predictions.append(self._learners[name].predict(points))
        gains = UndominatedSpace(costs, predictions, self._spec.seed + index).gains()
        if ACCURACY in self._spec.objectives:
            place = self._spec.objectives.index(ACCURACY)
            gains = gains + self._curve_gains(points, complete, costs[:, place], predictions[place])
        # where hardly any improvement is left, the most uncertain point comes first
        unknown = predictions[0].deviation
        return np.asarray(gains + _CURIOSITY * unknown / unknown.max())

    def _curve_gains(
        self, points: list[Point], complete: list[TrialRecord], costs: Floats, prediction: GaussianPrediction
    ) -> Floats:
        # as a share of the axis, like the gains of hypervolume; ``costs`` are those of the complete trials
        axis = prediction.axis
        tried = axis.of_costs(costs)
        least_useful = float(axis.of_costs(costs.min(keepdims=True) + ACCURACY_MARGIN)[0])
        known: dict[Hashable, float] = {}
        for record, place in zip(complete, tried.tolist(), strict=True):
            group = self._encoding.group(self._point(record))
            known[group] = min(place, known.get(group, np.inf))
        reach = axis.of_costs(prediction.reach)
        span = max(float(tried.max()), float(reach.max())) - min(float(tried.min()), float(reach.min()))
        groups = [self._encoding.group(point) for point in points]
        improvements = find_curve_gains(groups, prediction, known, least_useful)
        best = tried.min() - np.array([0.0, improvements.max()])
        self._gain = float(-np.diff(axis.costs(best))[0])
        return improvements / (len({*groups, *known}) * max(span, 1e-12))

    def _prices(self, points: Sequence[Point]) -> Floats:
        for name in _PRICES:
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
        return np.maximum(chances, _LEAST_CHANCE)
