"""Curves fitted by least squares, or nothing where the points do not tell the parameters."""

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from sweep.analysis.statistics.pareto import Values


def fit_curve(
    law: Callable[..., Values],
    x: Values,
    y: Values,
    start: Sequence[float],
    bounds: tuple[object, object] | None = None,
) -> tuple[Values, Values] | None:
    """Parameters of ``law(x, *parameters)`` and their standard errors, both of shape ``[len(start)]``."""
    from scipy import optimize  # a third of a second, which a report without curves need not wait

    with warnings.catch_warnings():
        warnings.simplefilter("error", optimize.OptimizeWarning)
        try:
            limits = (-np.inf, np.inf) if bounds is None else bounds
            found, covariance = optimize.curve_fit(law, x, y, p0=start, bounds=limits, maxfev=5000)
        except (RuntimeError, ValueError, optimize.OptimizeWarning):
            return None
    errors = np.sqrt(np.diag(covariance))
    return (found, errors) if np.isfinite(errors).all() else None
