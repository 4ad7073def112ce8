"""Pareto dominance: which rows of a table of objectives no other row dominates, and the hypervolume of a front.

``values`` has shape ``[n, m]``. ``signs`` has shape ``[m]``, -1 where larger is better (``Metric.sign``); without it
smaller is better everywhere. A row with a missing or infinite value is never on a front.
"""

import moocore
import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


def non_dominated(values: Values, signs: npt.ArrayLike | None = None) -> Mask:
    """Rows that no other row dominates, being better in one objective and at least equal in all; equal rows are kept.

    Returns shape ``[n]``. O(n log n) for up to three objectives.
    """
    costs, finite = _costs(values, signs)
    mask = np.zeros(len(costs), dtype=np.bool_)
    if finite.any():
        mask[finite] = moocore.is_nondominated(costs[finite], keep_weakly=True)
    return mask


def front_rank(values: Values, signs: npt.ArrayLike | None = None) -> npt.NDArray[np.int64]:
    """0 on the front, 1 on the front of the rest, and so on; -1 for rows with a missing value. Shape ``[n]``."""
    costs, finite = _costs(values, signs)
    ranks = np.full(len(costs), -1, dtype=np.int64)
    if finite.any():
        ranks[finite] = moocore.pareto_rank(costs[finite])
    return ranks


def reference_point(values: Values, signs: npt.ArrayLike | None = None, margin: float = 0.1) -> Values:
    """The worst finite value of each objective, moved out by ``margin`` of its range; shape ``[m]``, signs undone.

    Hypervolumes can be compared only under one reference point.

    Raises:
        ValueError: no row is complete.
    """
    costs, finite = _costs(values, signs)
    if not finite.any():
        raise ValueError("a reference point requires one row without missing values")
    known = costs[finite]
    worst, spread = known.max(axis=0), np.ptp(known, axis=0)
    step = np.where(spread > 0, spread, np.maximum(np.abs(worst), 1.0)) * margin
    return np.asarray((worst + step) * _signs(signs, costs.shape[1]), dtype=np.float64)


def hypervolume(values: Values, reference: npt.ArrayLike, signs: npt.ArrayLike | None = None) -> float:
    """The volume between the front of ``values`` and ``reference``, in the product of the objectives' units.

    Exact (C. M. Fonseca, L. Paquete, M. Lopez-Ibanez, 2006, as implemented by moocore); 0.0 when nothing reaches the
    reference point.
    """
    costs, finite = _costs(values, signs)
    limit = np.asarray(reference, dtype=np.float64) * _signs(signs, costs.shape[1])
    inside = finite & (costs < limit).all(axis=1)
    return float(moocore.hypervolume(costs[inside], ref=limit)) if inside.any() else 0.0


def front_probabilities(draws: Values, signs: npt.ArrayLike | None = None) -> Values:
    """The probability of each configuration of being on the Pareto front: the share of ``draws`` (shape ``[draws, n,
    m]``) of plausible true values in which it is. Shape ``[n]``."""
    hits = np.zeros(draws.shape[1])
    for draw in draws:
        hits += non_dominated(draw, signs)
    return np.asarray(hits / max(len(draws), 1), dtype=np.float64)


def _signs(signs: npt.ArrayLike | None, width: int) -> Values:
    if signs is None:
        return np.ones(width)
    given = np.asarray(signs, dtype=np.float64)
    if given.shape != (width,):
        raise ValueError(f"{width} objectives require {width} signs, not {given.size}")
    return given


def _costs(values: Values, signs: npt.ArrayLike | None) -> tuple[Values, Mask]:
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2:
        raise ValueError(f"values require the shape [n, m], not {list(table.shape)}")
    costs = table * _signs(signs, table.shape[1])
    return costs, np.asarray(np.isfinite(costs).all(axis=1), dtype=np.bool_)
