"""Points of a space: quasi-random ones by index, and the candidates among which a model chooses the next."""

from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from sweep.config.space import Space, count_grid_points, pick_grid_point
from sweep.config.study import StudySpec

_MAX_GRID = 3000
_NUM_ANYWHERE = 300
_NUM_NEAR = 200
_STEP = 0.15  # deviation of a near point, as a share of a parameter's range
Point = dict[str, Any]


@final
class CandidatePoints:
    """The candidates of a study: all points of a small grid, otherwise random points and points near the best."""

    def __init__(self, spec: StudySpec) -> None:
        self._space, self._seed = spec.space, spec.seed
        size = count_grid_points(spec.space)
        is_small = size is not None and size <= _MAX_GRID
        self._grid = [pick_grid_point(spec.space, index) for index in range(size or 0)] if is_small else None

    def at(self, index: int, best: Sequence[Mapping[str, Any]], seen: set[str]) -> list[Point]:
        """Candidates for search trial ``index`` that are not among ``seen`` (see :func:`make_point_key`); near ``best``
        where the space is not a small grid. Empty when there is no point left."""
        if self._grid is None:
            drawn = {make_point_key(point): point for point in self._draw(index, best)}
            return [point for key, point in drawn.items() if key not in seen]
        return [point for point in self._grid if make_point_key(point) not in seen]

    def _draw(self, index: int, best: Sequence[Mapping[str, Any]]) -> list[Point]:
        rng = np.random.default_rng((self._seed, index))
        shares = [rng.random(len(self._space)) for _ in range(_NUM_ANYWHERE)]
        if best:
            centers = [np.array([item.share(point[path]) for path, item in self._space.items()]) for point in best]
            shares += [_moved(centers[int(rng.integers(len(centers)))], rng) for _ in range(_NUM_NEAR)]
        parameters = self._space.items()
        return [{path: item.at(float(u)) for (path, item), u in zip(parameters, row, strict=True)} for row in shares]


def make_point_key(values: Mapping[str, Any]) -> str:
    """Equal for equal points."""
    return repr([(path, float(value) if _is_number(value) else value) for path, value in sorted(values.items())])


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _moved(center: np.ndarray[tuple[int], np.dtype[np.float64]], rng: np.random.Generator) -> Any:
    # along one parameter or two, because a good point seldom improves by changing all of them at once
    moved = center.copy()
    for place in rng.integers(len(center), size=rng.integers(1, 3)):
        moved[place] += rng.normal(0.0, _STEP)
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
