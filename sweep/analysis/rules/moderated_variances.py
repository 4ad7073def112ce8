"""Variances of few values each, moderated by those of the others."""

import numpy as np
from scipy.special import digamma, polygamma

from sweep.analysis.statistics import Values

_MOST_DEGREES = 1000.0  # of the prior: where the variances differ no more than by chance, they are taken to be equal
_LEAST = 1e-5  # of the median: a variance of 0 is that of equal values by chance


def moderate_variances(variances: Values, degrees: Values) -> tuple[Values, Values]:
    """Each of the ``variances`` drawn to a common one, and the degrees of freedom that it then has; both, and the
    ``degrees`` of the variances as they are, of shape ``[n]``.

    Smyth 2004 (Stat. Appl. Genet. Mol. Biol. 3, article 3), sections 3 and 6.2: the variances are taken to scatter
    about the common one by a scaled inverse chi-squared distribution, whose degrees follow from the scatter of their
    logarithms.
    Fewer than 3 variances, or none above 0, stay as they are.
    """
    positive = variances[variances > 0]
    if len(variances) < 3 or not len(positive):
        return variances, degrees
    floored = np.maximum(variances, _LEAST * np.median(positive))
    half = degrees / 2
    logs = np.log(floored) - digamma(half) + np.log(half)
    excess = float(np.var(logs, ddof=1) - np.mean(polygamma(1, half)))
    prior = min(2 * _invert_trigamma(excess), _MOST_DEGREES) if excess > 0 else _MOST_DEGREES
    common = np.exp(np.mean(logs) + digamma(prior / 2) - np.log(prior / 2))
    return (prior * common + degrees * floored) / (prior + degrees), degrees + prior


def _invert_trigamma(value: float) -> float:
    # Newton's method on 1 / trigamma, which is convex and nearly linear (Smyth 2004, appendix)
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if -step / x < 1e-8:
            break
    return x
