"""The time of a whole study as a spread of what it may come to."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sweep.search.forecast.remaining_work import RemainingWork
from sweep.search.forecast.trial_cost import CostModel, TrialCost

_NUM_DRAWS = 4000
# How far a prediction may be off for all trials alike, as the deviation of its logarithm: the machine's pace, what is
# between the probed sizes; where another model's figures stand in, nearly a factor of two.
_SPREAD = 0.1
_GUESS_SPREAD = 0.6
_LEAST_UNPRUNED = 0.4  # of the search, where trials without a chance are stopped
_LEAST_CONFIRMED = 0.5  # of the confirming trials: few may be worth it, or a few seeds may settle it; rather more
_SEED = 20_260_101

Floats = npt.NDArray[np.float64]


def study_seconds(outlook: RemainingWork, costs: CostModel, fits: npt.NDArray[np.bool_]) -> Floats | None:
    """Seconds that the whole study may take, one for each of many ways it may go."""
    trained = [int(index) for index in np.flatnonzero(fits) if index not in outlook.reused]
    found = [costs.predict(outlook.sample[index]) for index in trained]
    known = [cost for cost in found if cost is not None]
    if not known:
        return np.zeros(1) if not trained else None
    rng = np.random.default_rng(_SEED)
    share = len(trained) / max(int(fits.sum()), 1)
    once = _each(outlook, known)
    search = _search(once, round(outlook.num_trials * share), outlook, rng)
    confirming = [costs.predict(outlook.sample[index], reads_test=True) for index in trained]
    confirm = _drawn(_each(outlook, [cost for cost in confirming if cost]), outlook.num_confirm, outlook, rng)
    share_guessed = sum(cost.is_guess for cost in known) / len(known)
    spread = _SPREAD + (_GUESS_SPREAD - _SPREAD) * share_guessed
    if outlook.is_pruned:
        search *= rng.uniform(_LEAST_UNPRUNED, 1.0, _NUM_DRAWS)
    confirm *= _LEAST_CONFIRMED + (1 - _LEAST_CONFIRMED) * np.sqrt(rng.uniform(size=_NUM_DRAWS))
    totals = (search + confirm) * np.exp(rng.normal(0.0, spread, _NUM_DRAWS)) / outlook.slots
    if any(cost.is_cap for cost in known):
        totals *= rng.uniform(0.05, 1.0, _NUM_DRAWS)  # when a target is reached nobody knows
    clipped: Floats = np.minimum(totals, outlook.limit_seconds)
    return clipped


def _each(outlook: RemainingWork, costs: Sequence[TrialCost]) -> Floats:
    return np.minimum([cost.seconds for cost in costs], outlook.trial_limit_seconds)


def _search(seconds: Floats, num_trials: int, outlook: RemainingWork, rng: np.random.Generator) -> Floats:
    if outlook.is_exact:
        return np.full(_NUM_DRAWS, seconds.sum() * num_trials / max(len(seconds), 1))
    return _drawn(seconds, num_trials, outlook, rng)


def _drawn(seconds: Floats, count: int, outlook: RemainingWork, rng: np.random.Generator) -> Floats:
    """Sums of ``count`` trials from a sample, by a sampler that leans to the fast or the slow, nobody knows how much.

    A lean of t weighs the trial at rank u in [0, 1] of slowness by exp(t u); t is uniform in [-2, 2], so that at the
    ends more than half of the trials come from the fastest, or the slowest, third. Where speed is an objective the
    fast are looked for, and t begins at -4.
    """
    if count == 0 or len(seconds) == 0:
        return np.zeros(_NUM_DRAWS)
    ordered = np.sort(seconds)
    ranks = np.linspace(0.0, 1.0, len(ordered)) if len(ordered) > 1 else np.zeros(1)
    weights = np.exp(rng.uniform(-4.0 if outlook.pays_for_speed else -2.0, 2.0, _NUM_DRAWS)[:, None] * ranks)
    weights /= weights.sum(axis=1, keepdims=True)
    mean = weights @ ordered
    variance = np.maximum(weights @ ordered**2 - mean**2, 0.0)
    sums = count * mean + np.sqrt(count * variance) * rng.normal(size=_NUM_DRAWS)
    clipped: Floats = np.maximum(sums, count * ordered[0])
    return clipped
