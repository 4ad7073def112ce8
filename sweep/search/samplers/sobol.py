"""Quasi-random points of a space, drawn by index."""

from typing import Any, final

from sweep.config.space import Space


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
        from scipy.stats import qmc  # half a second, which studies with another sampler need not wait

        self._engine = qmc.Sobol(max(len(self._space), 1), scramble=True, rng=self._seed)
        self._next = 0
