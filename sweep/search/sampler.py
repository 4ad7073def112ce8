"""The protocol of samplers, and the bounded window of records that model-based ones learn from."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import numpy as np

from sweep.analysis.statistics import non_dominated
from sweep.config.space import Space
from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig
from sweep.records.records import TrialRecord
from sweep.search.seeds import collect_costs

_NUM_ANYWHERE = 300
_NUM_NEAR = 200
_STEP = 0.15  # deviation of a near point, as a share of a parameter's range
Point = dict[str, Any]
# MO-TPE takes 400 ms a proposal at 10,000 trials. Beyond 250 trials it counts no more of them as good, so
# further ones add detail about bad points only.
WINDOW = 600
# The metrics that probes predict before any trial, and a function that predicts one; None where no probe covers it.
PREDICTED_METRICS = ("train_seconds", "total_seconds", "peak_memory_bytes")
PredictCost = Callable[[str, TrialConfig], float | None]


@final
class CandidatePoints:
    """The candidates of a study: all points of a small grid, otherwise random points and points near the best."""

    def __init__(self, spec: StudySpec) -> None:
        self._space, self._seed = spec.space, spec.seed
        self._grid = spec.list_points()

    def at(self, index: int, best: Sequence[Mapping[str, Any]], seen: set[str]) -> list[Point]:
        """Candidates for search trial ``index`` that are not among ``seen`` (see :func:`make_point_key`), some of them
        near ``best`` unless the space is a small grid. Empty if there is no point left."""
        points = self._draw(index, best) if self._grid is None else self._grid
        if any(item.grid_values is None for item in self._space.values()):
            return points  # a float is not drawn twice
        by_key = {make_point_key(point): point for point in points}
        return [point for key, point in by_key.items() if key not in seen]

    def _draw(self, index: int, best: Sequence[Mapping[str, Any]]) -> list[Point]:
        rng = np.random.default_rng((self._seed, index))
        shares = [rng.random(len(self._space)) for _ in range(_NUM_ANYWHERE)]
        if best:
            centers = [np.array([item.share(point[path]) for path, item in self._space.items()]) for point in best]
            shares += [_moved(centers[int(rng.integers(len(centers)))], rng) for _ in range(_NUM_NEAR)]
        columns = zip(self._space.values(), np.array(shares).T.tolist(), strict=True)
        rows = zip(*(item.list_at(column) for item, column in columns), strict=True)
        return [dict(zip(self._space, row, strict=True)) for row in rows]


def make_point_key(values: Mapping[str, Any]) -> str:
    """Equal for equal points."""
    return repr([(path, float(value) if _is_number(value) else value) for path, value in sorted(values.items())])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _moved(center: np.ndarray[tuple[int], np.dtype[np.float64]], rng: np.random.Generator) -> Any:
    # Along one parameter or two, because a good point seldom improves by changing all of them at once.
    moved = center.copy()
    for axis in rng.integers(len(center), size=rng.integers(1, 3)):
        moved[axis] += rng.normal(0.0, _STEP)
    return np.clip(moved, 0.0, np.nextafter(1.0, 0.0))


@final
class SobolPoints:
    """Scrambled Sobol points (Owen 1998). The next point costs the same however many were drawn before it."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space, self._seed = space, seed
        self._next = 0
        self._restart()

    def __call__(self, index: int) -> dict[str, Any]:
        """Values by dotted path at ``index``, the same whatever was drawn before."""
        if index < self._next:
            self._restart()
        if index > self._next:
            self._engine.fast_forward(index - self._next)
        shares = self._engine.random(1)[0]
        self._next = index + 1
        return {path: parameter.at(float(u)) for (path, parameter), u in zip(self._space.items(), shares, strict=False)}

    def _restart(self) -> None:
        from scipy.stats import qmc  # half a second, which studies with other samplers do not need

        self._engine = qmc.Sobol(max(len(self._space), 1), scramble=True, rng=self._seed)
        self._next = 0


class Sampler(ABC):
    """Proposes points of the space and learns from ended trials."""

    @abstractmethod
    def propose(self, index: int) -> dict[str, Any] | None:
        """Values for search trial ``index``; None when there are no more points."""

    def learn(self, record: TrialRecord) -> None:  # noqa: B027
        """Takes an ended search trial into account, if the points depend on results."""

    def require(self, batches: frozenset[tuple[str, int]] | None) -> None:  # noqa: B027
        """Takes into account at which models and effective batch sizes the answer lacks trials; None: not known."""


@final
class PointSampler(Sampler):
    """A sequence whose points depend on the index alone."""

    def __init__(self, point: Callable[[int], dict[str, Any] | None]) -> None:
        self._point = point

    def propose(self, index: int) -> dict[str, Any] | None:
        return self._point(index)


def select_window(records: list[TrialRecord], spec: StudySpec, size: int = WINDOW) -> list[TrialRecord]:
    """At most ``size`` records in their order: the front (an even spread of a large one), the latest half, and an even
    spread of the rest."""
    if len(records) <= size:
        return records
    complete, costs = collect_costs(records, spec.objectives, spec.quality)
    front = [record.number for record, keep in zip(complete, non_dominated(costs), strict=True) if keep]
    kept = {record.number for record in records[-(size // 2) :]} | _spread(front, size // 4)
    rest = [record.number for record in records if record.number not in kept]
    kept |= _spread(rest, size - len(kept))
    return [record for record in records if record.number in kept]


def _spread(numbers: Sequence[int], count: int) -> set[int]:
    return {numbers[int(index)] for index in np.linspace(0, len(numbers) - 1, min(count, len(numbers)))}
