"""Gaussian process regression with the Matern 5/2 kernel and a length scale for each feature.

Formulas: Rasmussen and Williams, Gaussian Processes for Machine Learning, 2006, chapters 2, 4 and 5.
"""

from typing import final

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular

Floats = npt.NDArray[np.float64]

_MAX_FITTED = 120  # points that the hyperparameters are fitted on: the cost grows with their cube
_JITTER = 1e-8
# Logarithms of the length scales, of the signal's and of the noise's deviation: means and deviations of their priors,
# for features that span 0 to 1 and targets of deviation 1. They regularize a fit to few points.
_LENGTH, _SIGNAL, _NOISE = (np.log(0.7), 0.8), (0.0, 0.7), (np.log(0.1), 1.2)
_BOUNDS = ((-3.5, 3.5), (-2.5, 2.5), (-7.0, 0.5))


@final
class GaussianProcess:
    """Fitted to ``x`` of shape ``[n, d]`` and ``y`` of shape ``[n]``; ``start`` are the hyperparameters of an earlier
    fit, which are then kept. ``errors``, shape ``[n]``, are standard errors of single ``y`` besides the noise of all.
    """

    def __init__(self, x: Floats, y: Floats, start: Floats | None = None, errors: Floats | None = None) -> None:
        self._x, self._mean = x, float(y.mean())
        spread = float(y.std())
        self._scale = spread if spread > 0 else 1.0
        target = (y - self._mean) / self._scale
        known = _JITTER + (np.zeros(len(y)) if errors is None else (errors / self._scale) ** 2)
        self.parameters = _fit(x, target, known) if start is None else start
        kernel = _matern(x, x, self.parameters)[0]
        kernel[np.diag_indices_from(kernel)] += np.exp(2.0 * self.parameters[-1]) + known
        self._factor = cho_factor(kernel, lower=True)
        self._weights = cho_solve(self._factor, target)

    @property
    def noise(self) -> float:
        """Standard deviation of a single ``y`` around the prediction."""
        return float(np.exp(self.parameters[-1])) * self._scale

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
        variance = np.exp(2.0 * self.parameters[-2]) - np.einsum("ij,ij->j", half, half)
        return self._mean + self._scale * mean, self._scale * np.sqrt(np.maximum(variance, 1e-12))


def _fit(x: Floats, y: Floats, known: Floats) -> Floats:
    # ``known`` are the known variances of ``y``
    from scipy.optimize import minimize  # 0.4 s, which a page without a fit does not need

    width = x.shape[1]
    if len(x) > _MAX_FITTED:
        rows = np.linspace(0, len(x) - 1, _MAX_FITTED).astype(np.int64)
        x, y, known = x[rows], y[rows], known[rows]
    center = np.array([_LENGTH[0]] * width + [_SIGNAL[0], _NOISE[0]])
    spread = np.array([_LENGTH[1]] * width + [_SIGNAL[1], _NOISE[1]])
    bounds = [_BOUNDS[0]] * width + [_BOUNDS[1], _BOUNDS[2]]
    result = minimize(
        _loss,
        center,
        args=(x, y, known, center, spread),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": 40},
    )
    return np.asarray(result.x, dtype=np.float64)


def _loss(
    parameters: Floats, x: Floats, y: Floats, known: Floats, center: Floats, spread: Floats
) -> tuple[float, Floats]:
    """Minus the logarithm of the posterior density, and its gradient (equations 5.8 and 5.9)."""
    signal, slopes = _matern(x, x, parameters, with_slopes=True)
    noise = np.exp(2.0 * parameters[-1])
    kernel = signal.copy()
    kernel[np.diag_indices_from(kernel)] += noise + known
    factor = cho_factor(kernel, lower=True)
    weights = cho_solve(factor, y)
    away = (parameters - center) / spread
    value = 0.5 * float(y @ weights) + float(np.log(np.diag(factor[0])).sum()) + 0.5 * float(away @ away)
    inner = cho_solve(factor, np.eye(len(y))) - np.outer(weights, weights)
    gradient = [0.5 * float(np.sum(inner * slope)) for slope in slopes]
    gradient += [float(np.sum(inner * signal)), noise * float(np.trace(inner))]
    return value, np.array(gradient) + away / spread


def _matern(one: Floats, other: Floats, parameters: Floats, with_slopes: bool = False) -> tuple[Floats, list[Floats]]:
    # with its slopes along the logarithms of the length scales
    scales = np.exp(-parameters[:-2])
    left, right = one * scales, other * scales
    squares = np.maximum((left**2).sum(1)[:, None] + (right**2).sum(1)[None] - 2.0 * left @ right.T, 0.0)
    root = np.sqrt(5.0 * squares)
    decay = np.exp(2.0 * parameters[-2] - root)
    kernel = (1.0 + root + root**2 / 3.0) * decay
    if not with_slopes:
        return kernel, []
    common = 5.0 / 3.0 * (1.0 + root) * decay
    return kernel, [common * np.subtract.outer(left[:, i], right[:, i]) ** 2 for i in range(one.shape[1])]
