"""Gaussian process regression with the Matern 5/2 kernel and a length scale for each feature.

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2, 4 and 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular

Floats = npt.NDArray[np.float64]

_MAX_FITTED = 120  # points that the hyperparameters are fitted on: the cost grows with their cube
_JITTER = 1e-8
# Logarithms of the length scales, of the signal's and of the noise's deviation: means and deviations of their priors
# (of the signal the deviation), for features that span 0 to 1 and targets of deviation 1. They regularize a fit to few
# points.
_LENGTH, _SIGNAL_DOUBT, _NOISE = (np.log(0.7), 0.8), 0.7, (np.log(0.1), 1.2)
_BOUNDS = ((-3.5, 3.5), (-4.0, 2.5), (-7.0, 2.5))


@dataclass(frozen=True)
class Deviation:
    """What ``y`` deviates from the smooth function by: its covariance is ``shape`` (a matrix ``[n, n]``) times the
    square of a standard deviation that is fitted. The prior of the standard deviation is lognormal with the median
    ``usual`` (in the unit of ``y``) and the standard deviation ``doubt`` of its logarithm."""

    shape: Floats
    usual: float
    doubt: float


@final
class GaussianProcess:
    """Fitted to ``x`` of shape ``[n, d]`` and ``y`` of shape ``[n]``; ``start`` are the hyperparameters of an earlier
    fit, which are then kept. ``errors``, shape ``[n]``, are known standard errors of single ``y``. ``deviations`` are
    what is fitted beside the smooth function: by default a noise that is independent for each ``y``. The prior of the
    smooth function's deviation has the median ``usual_signal``, in the unit of ``y``; by default that of ``y``.
    """

    def __init__(
        self,
        x: Floats,
        y: Floats,
        start: Floats | None = None,
        errors: Floats | None = None,
        deviations: Sequence[Deviation] = (),
        usual_signal: float | None = None,
    ) -> None:
        self._x, self._mean = x, float(y.mean())
        spread = float(y.std())
        self._scale = spread if spread > 0 else 1.0
        target = (y - self._mean) / self._scale
        known = _JITTER + (np.zeros(len(y)) if errors is None else (errors / self._scale) ** 2)
        parts = [Deviation(each.shape, each.usual / self._scale, each.doubt) for each in deviations]
        parts = parts or [Deviation(np.eye(len(y)), float(np.exp(_NOISE[0])), _NOISE[1])]
        usual = 1.0 if usual_signal is None else usual_signal / self._scale
        data = _Data(x=x, y=target, known=known, parts=parts, usual_signal=usual)
        self.parameters = _fit(data) if start is None else start
        kernel = data.covariance(self.parameters)[0]
        self._factor = cho_factor(kernel, lower=True)
        self._weights = cho_solve(self._factor, target)

    @property
    def deviations(self) -> list[float]:
        """The fitted standard deviation of each of the deviations, in the unit of ``y``."""
        return [float(size) for size in self._scale * np.exp(self.parameters[self._x.shape[1] + 1 :])]

    @property
    def mean(self) -> float:
        """The mean of the function before anything is known."""
        return self._mean

    def covariance(self, x: Floats) -> Floats:
        """The prior covariance of the function, without noise, between the rows of ``x``; shape ``[k, k]``."""
        return self._scale**2 * _matern(x, x, self.parameters)[0]

    def predict(self, x: Floats) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the function, without noise, at each row of ``x``; shapes ``[k]``."""
        cross = _matern(x, self._x, self.parameters)[0]
        mean = cross @ self._weights
        half = solve_triangular(self._factor[0], cross.T, lower=True, check_finite=False)
        variance = np.exp(2.0 * self.parameters[x.shape[1]]) - np.einsum("ij,ij->j", half, half)
        return self._mean + self._scale * mean, self._scale * np.sqrt(np.maximum(variance, 1e-12))


@dataclass(frozen=True, kw_only=True)
class _Data:
    """What is fitted: places ``[n, d]``, targets ``[n]`` of deviation 1, their known variances ``[n]``, the parts of
    their deviations, and the usual deviation of the smooth function."""

    x: Floats
    y: Floats
    known: Floats
    parts: Sequence[Deviation]
    usual_signal: float

    def pick(self, rows: npt.NDArray[np.int64]) -> "_Data":
        parts = [Deviation(each.shape[np.ix_(rows, rows)], each.usual, each.doubt) for each in self.parts]
        return replace(self, x=self.x[rows], y=self.y[rows], known=self.known[rows], parts=parts)

    def covariance(self, parameters: Floats, with_slopes: bool = False) -> tuple[Floats, list[Floats]]:
        """Of the targets, shape ``[n, n]``, with its slopes along the ``parameters``: the logarithms of the length
        scales, of the signal's deviation and of those of the parts."""
        signal, slopes = _matern(self.x, self.x, parameters, with_slopes)
        sizes = np.exp(2.0 * parameters[self.x.shape[1] + 1 :])
        added = [size * part.shape for size, part in zip(sizes, self.parts, strict=True)]
        whole = signal + np.sum(added, axis=0)
        whole[np.diag_indices_from(whole)] += self.known
        return whole, [*slopes, 2.0 * signal, *(2.0 * each for each in added)] if with_slopes else []


def _fit(data: _Data) -> Floats:
    from scipy.optimize import minimize  # 0.4 s, which a page without a fit does not need

    width = data.x.shape[1]
    if len(data.x) > _MAX_FITTED:
        data = data.pick(np.linspace(0, len(data.x) - 1, _MAX_FITTED).astype(np.int64))
    center = np.array(
        [_LENGTH[0]] * width + [float(np.log(data.usual_signal))] + [float(np.log(part.usual)) for part in data.parts]
    )
    spread = np.array([_LENGTH[1]] * width + [_SIGNAL_DOUBT] + [part.doubt for part in data.parts])
    bounds = [_BOUNDS[0]] * width + [_BOUNDS[1]] + [_BOUNDS[2]] * len(data.parts)
    limits = np.array(bounds)
    result = minimize(
        _loss,
        np.clip(center, limits[:, 0], limits[:, 1]),
        args=(data, center, spread),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 40},
    )
    return np.asarray(result.x, dtype=np.float64)


def _loss(parameters: Floats, data: _Data, center: Floats, spread: Floats) -> tuple[float, Floats]:
    """Minus the logarithm of the posterior density, and its gradient (equations 5.8 and 5.9)."""
    kernel, slopes = data.covariance(parameters, with_slopes=True)
    factor = cho_factor(kernel, lower=True)
    weights = cho_solve(factor, data.y)
    away = (parameters - center) / spread
    value = 0.5 * float(data.y @ weights) + float(np.log(np.diag(factor[0])).sum()) + 0.5 * float(away @ away)
    inner = cho_solve(factor, np.eye(len(data.y))) - np.outer(weights, weights)
    return value, np.array([0.5 * float(np.sum(inner * slope)) for slope in slopes]) + away / spread


def _matern(one: Floats, other: Floats, parameters: Floats, with_slopes: bool = False) -> tuple[Floats, list[Floats]]:
    # with its slopes along the logarithms of the length scales; what follows the signal's deviation is not read
    width = one.shape[1]
    scales = np.exp(-parameters[:width])
    left, right = one * scales, other * scales
    squares = np.maximum((left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2.0 * left @ right.T, 0.0)
    root = np.sqrt(5.0 * squares)
    decay = np.exp(2.0 * parameters[width] - root)
    kernel = (1.0 + root + root**2 / 3.0) * decay
    if not with_slopes:
        return kernel, []
    common = 5.0 / 3.0 * (1.0 + root) * decay
    return kernel, [common * np.subtract.outer(left[:, i], right[:, i]) ** 2 for i in range(width)]
