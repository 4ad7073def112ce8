"""The seconds of a whole study in many random cases: which configurations an adaptive sampler proposes, which are
confirmed and where a trial ends early is not known beforehand.

The constants are measured: "replays" are 80 studies of many shapes, replayed on recorded trainings by ``python -m
benchmarks.forecast_replays``; "development studies" are those of ``python -m benchmarks.forecast_calibration``, which
are apart from the studies that the forecast is validated on (``python -m benchmarks forecast``).
"""

import numpy as np

from sweep.analysis.statistics.extrapolation import NUM_NEAREST
from sweep.search.forecast.confirm_total import draw_confirm_seconds
from sweep.search.forecast.study_costs import Floats, StudyCosts, draw_sums

_NUM_DRAWS = 4000
# Mean and deviation of the degree t to which a sampler prefers slow configurations (see ``study_costs.draw_sums``),
# without and with speed as an objective; from the replays. Fixed sequences prefer none.
_LEANS = {
    "cost_aware": ((-1.9, 1.0), (-3.9, 0.7)),
    "gp": ((-1.3, 1.2), (-2.3, 0.7)),
    "nsga2": ((-1.2, 1.0), (-1.7, 0.8)),
    "tpe": ((-1.4, 0.4), (-1.6, 0.3)),
}
_NO_LEAN = ((0.0, 0.3), (0.0, 0.3))
# Mean of the share of the search's time that pruning saves once it can judge, roughly an exponential one; from 32
# replays of 25 to 110 trials, of which none saved more than 0.55.
_PRUNED, _MOST_PRUNED = 0.22, 0.6
_MIN_TO_TARGET = 0.05  # of a training until a target accuracy, as a share of its cap
# How far predictions may be off for all trials alike, as the standard deviation of the logarithm: by the speed of the
# machine and between the probed sizes; where another model was probed, by nearly a factor of two.
_SPREAD, _GUESS_SPREAD = 0.1, 0.6
# Set on the first 16 development studies, so that half of their totals are above the median and 90 % in the interval.
FACTOR, WIDTH = 1.21, 1.26
_SEED = 20_260_101


def draw_study_seconds(costs: StudyCosts) -> Floats:
    """Seconds of the whole study in each of many random cases, shape ``[draws]``."""
    rng = np.random.default_rng(_SEED)
    search_seconds = _draw_search_seconds(costs, rng)
    seconds = search_seconds + draw_confirm_seconds(costs, search_seconds, rng)
    spread = _SPREAD + (_GUESS_SPREAD - _SPREAD) * costs.share_guessed
    totals = seconds * np.exp(rng.normal(0.0, spread, _NUM_DRAWS)) / costs.slots
    if costs.is_cap:
        totals *= rng.uniform(_MIN_TO_TARGET, 1.0, _NUM_DRAWS)
    clipped: Floats = np.minimum(_adjust(totals), np.minimum(_draw_limits(costs, rng), costs.limit_seconds))
    return clipped


def _draw_limits(costs: StudyCosts, rng: np.random.Generator) -> Floats:
    # where the search ends by its time limit, what remains to be drawn is the confirming after it
    searching = np.full(_NUM_DRAWS, costs.search_limit_seconds * costs.slots)
    if not np.isfinite(costs.search_limit_seconds):
        return searching
    return np.asarray((searching + draw_confirm_seconds(costs, searching, rng)) / costs.slots)


def _draw_search_seconds(costs: StudyCosts, rng: np.random.Generator) -> Floats:
    if costs.is_exact:
        mean = costs.search_seconds.sum() / max(len(costs.search_seconds), 1)
        seconds = np.full(_NUM_DRAWS, costs.num_trials * mean)
    else:
        leans = rng.normal(*_LEANS.get(costs.sampler, _NO_LEAN)[costs.favors_speed], _NUM_DRAWS)
        seconds = draw_sums(costs.search_seconds, np.full(_NUM_DRAWS, costs.num_trials), leans, rng)
    if costs.is_pruned and costs.num_trials > NUM_NEAREST:
        saved = np.minimum(rng.exponential(_PRUNED, _NUM_DRAWS), _MOST_PRUNED)
        seconds = seconds * (1 - saved * (1 - NUM_NEAREST / costs.num_trials))
    return seconds


def _adjust(totals: Floats) -> Floats:
    # as the development studies came out: the median by a factor, and the logarithms about it by another
    median = float(np.median(totals))
    adjusted: Floats = FACTOR * median * (totals / median) ** WIDTH if median > 0 else totals
    return adjusted
