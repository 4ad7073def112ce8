"""Proposes the point with the largest expected gain of hypervolume for each second that it will take.

Accuracy, and whatever else only training shows, is modelled over all that varies. Time and memory follow from the
shape: their models see nothing else, and are sharp as soon as a few shapes were measured. What a trial is worth is
then weighed against what it costs, so cheap points come first, and dear ones when they promise enough.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median
from typing import Any, final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr
from threadpoolctl import ThreadpoolController

from sweep.analysis.statistics.pareto import non_dominated
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.records.messages import INFEASIBLE
from sweep.records.trial_record import TrialRecord
from sweep.search.samplers.base import PREDICTED_METRICS, PredictCost, Sampler, select_window
from sweep.search.samplers.candidate_points import CandidatePoints, Point, SobolPoints, make_point_key
from sweep.search.samplers.encoding import Encoding
from sweep.search.samplers.gaussian_process import Floats
from sweep.search.samplers.hypervolume_gain import GaussianPrediction, OpenSpace
from sweep.search.samplers.surrogates import Learner, is_of_shape

WINDOW = 300  # trials that the models learn from: their cost grows with the cube
_SLACK = 50
_NUM_FIRST = 3  # proposals before the models have anything to go by: they soon know better what to ask
_MAX_SHAPES = 100  # that probes are asked about
_CHOICE = 16  # quasi-random points of which each of them is the one nearest to the middle
_PRICES = ("total_seconds", "train_seconds")  # what a trial costs, the first that was measured
_LEAST_CHANCE = 1e-9  # of being feasible
_CURIOSITY = 1e-9  # what knowing more is worth, as a share of the hypervolume: less than any gain in sight


@final
class CostAwareSampler(Sampler):
    """See the module. Its first proposals lie about the middle of the space.

    ``known`` gives seconds and bytes of configurations whose shapes were probed.
    """

    def __init__(self, spec: StudySpec, records: Sequence[TrialRecord], known: PredictCost | None = None) -> None:
        self._spec, self._encoding = spec, Encoding(spec)
        self._candidates, self._quasi_random = CandidatePoints(spec), SobolPoints(spec.space, spec.seed)
        self._names = {path for path, item in spec.space.items() if any(isinstance(v, str) for v in item.choice or ())}
        self._threads = ThreadpoolController()
        self._seen: set[str] = set()
        self._records: list[TrialRecord] = []
        names = dict.fromkeys((*spec.objectives, *_PRICES))
        self._learners = {name: Learner(name, self._encoding, is_of_shape(name, spec)) for name in names}
        self._feasible = Learner("", self._encoding, of_shape=False)
        if known:
            self._foretell(known)
        for record in records:
            self.learn(record)

    def _foretell(self, known: PredictCost) -> None:
        """Tells the models of time and memory what probes say of a point of each shape."""
        points = self._candidates.at(0, [], set())
        _, first = np.unique(self._encoding.cost(points), axis=0, return_index=True)
        shapes = [points[row] for row in sorted(first)[:_MAX_SHAPES]]
        configs = [self._spec.config(point) for point in shapes]
        for name, learner in self._learners.items():
            if name in PREDICTED_METRICS and learner.of_shape:
                told = [(point, known(name, config)) for point, config in zip(shapes, configs, strict=True)]
                costs = [(point, cost) for point, cost in told if cost is not None]
                learner.foretell([point for point, _ in costs], [cost for _, cost in costs])

    def learn(self, record: TrialRecord) -> None:
        if record.number >= 0:  # what another study has tried is known here, but not on this record
            self._seen.add(make_point_key(self._point(record)))
        self._records.append(record)
        if len(self._records) > WINDOW + _SLACK:
            self._records = select_window(self._records, self._spec, WINDOW)

    def propose(self, index: int) -> dict[str, Any] | None:
        # the other processors belong to the trial that trains; threads that wait for them take longer than one alone
        with self._threads.limit(limits=1):
            chosen = self._first(index) or self._best(index)
        if chosen is not None:
            self._seen.add(make_point_key(chosen))
        return chosen

    def _point(self, record: TrialRecord) -> Point:
        return {path: record.values[path] for path in self._spec.space}

    # ------------------------------------------------------------------ before there is anything to go by

    def _first(self, index: int) -> Point | None:
        if index >= _NUM_FIRST:
            return None
        numbers = range(index * _CHOICE, (index + 1) * _CHOICE)
        left = [point for point in map(self._quasi_random, numbers) if make_point_key(point) not in self._seen]
        if not left:
            return None
        # extremes are named so that they can be excluded; what is good seldom lies there
        order = np.lexsort((self._distances(left), self._prices_of_names(left), self._turns(left)))
        return left[int(order[0])]

    def _prices_of_names(self, points: Sequence[Point]) -> Floats:
        """The median price of those of ``points`` that choose the same names, shape ``[n]``: a dear model is not tried
        twice before there is a reason to."""
        prices: dict[str, list[float]] = defaultdict(list)
        names = [make_point_key({path: point[path] for path in self._names}) for point in points]
        for name, price in zip(names, self._prices(points), strict=True):
            prices[name].append(price)
        return np.array([median(prices[name]) for name in names])

    def _distances(self, points: Sequence[Point]) -> Floats:
        """How far each point is from the middle of what is a number, shape ``[n]``."""
        numbers = {path: item for path, item in self._spec.space.items() if path not in self._names}
        away = [[item.share(point[path]) - 0.5 for path, item in numbers.items()] for point in points]
        return np.asarray(np.linalg.norm(np.array(away).reshape(len(points), len(numbers)), axis=1), dtype=np.float64)

    def _turns(self, points: Sequence[Point]) -> npt.NDArray[np.int64]:
        """How often the names that a point chooses were tried: each gets its turn, for no model reaches over from one
        name to another. Shape ``[n]``."""
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
        worth = self._gains(points, costs, index) * self._chances(points) / self._prices(points)
        return points[int(np.argmax(worth))]

    def _complete(self) -> tuple[list[TrialRecord], Floats]:
        # what was reached is taken as the models see it, which do not believe in lucky seeds
        names = self._spec.objectives
        complete = [
            record
            for record in self._records
            if record.number >= 0
            and record.outcome == "complete"
            and all(name in record.measurements for name in names)
        ]
        if not complete:
            return [], np.empty((0, len(names)))
        points = [self._point(record) for record in complete]
        columns = []
        for name in names:
            measured = METRICS[name].sign * np.array([float(record.measurements[name]) for record in complete])
            learner = self._learners[name]
            is_modelled = not learner.of_shape and learner.fit(self._records)
            columns.append(learner.axis.costs(learner.predict(points).mean) if is_modelled else measured)
        return complete, np.stack(columns, axis=1)

    def _gains(self, points: list[Point], costs: Floats, index: int) -> Floats:
        if not len(costs):
            return np.ones(len(points))
        beliefs: list[GaussianPrediction] = []
        for name in self._spec.objectives:
            self._learners[name].fit(self._records)
            beliefs.append(self._learners[name].predict(points))
        gains = OpenSpace(costs, beliefs, self._spec.seed + index).gains()
        # where next to nothing is to be gained any more, what is least known comes first
        unknown = beliefs[0].deviation
        return np.asarray(gains + _CURIOSITY * unknown / unknown.max())

    def _prices(self, points: Sequence[Point]) -> Floats:
        for name in _PRICES:
            if self._learners[name].fit(self._records):
                belief = self._learners[name].predict(points)
                return belief.axis.costs(belief.mean)
        return np.ones(len(points))

    def _chances(self, points: list[Point]) -> Floats:
        judged = [record for record in self._records if record.outcome in INFEASIBLE | {"complete", "pruned"}]
        labels = [float(record.outcome not in INFEASIBLE) for record in judged]
        if all(labels):
            return np.ones(len(points))
        self._feasible.fit_to([self._point(record) for record in judged], np.array(labels))
        belief = self._feasible.predict(points)
        chances: Floats = ndtr((belief.mean - 0.5) / np.maximum(belief.deviation, 0.05))
        return np.maximum(chances, _LEAST_CHANCE)
