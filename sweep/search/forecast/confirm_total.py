"""The seconds of the confirming trials in many random cases: the one place of the forecast that follows the rule of
:mod:`sweep.search.seed_allocation`."""

import math

import numpy as np

from sweep.config.study import FEWEST_SEEDS, StudySpec
from sweep.search.forecast.study_costs import Floats, StudyCosts

# Mean and deviation of the share of its time that the confirming uses; the rest is left when the answer is settled, or
# is shorter than a training. From 24 replays (see ``study_total``).
_USED, _DEVIATION = 0.71, 0.24


def count_planned(spec: StudySpec) -> tuple[int, int]:
    """The fewest confirming trials that the rule takes, those with which one configuration can be named, and the most
    by the numbers of configurations and seeds; the time for them may be less."""
    most = spec.confirm.most_trials
    return min(FEWEST_SEEDS, spec.confirm.seeds, most), most


def count_expected(spec: StudySpec, num_search: int) -> int:
    """How many confirming trials the time for them suffices for after ``num_search`` search trials, if a confirming
    trial takes as long as a search trial; within the limits of :func:`count_planned`."""
    least, most = count_planned(spec)
    return min(most, max(math.ceil(spec.confirm.share * num_search), least))


def draw_confirm_seconds(costs: StudyCosts, search_seconds: Floats, rng: np.random.Generator) -> Floats:
    """Seconds of all confirming trials where the search trials to come take ``search_seconds``; both of shape
    ``[draws]``."""
    if costs.most_confirm == 0 or len(costs.confirm_seconds) == 0:
        return np.zeros(len(search_seconds))
    budget = costs.confirm_left_seconds + costs.confirm_share * search_seconds
    used = np.clip(rng.normal(_USED, _DEVIATION, len(search_seconds)), 0.0, 1.0) * np.maximum(budget, 0.0)
    cheap, usual = float(costs.confirm_seconds.min()), float(costs.confirm_seconds.mean())
    drawn: Floats = np.clip(used, costs.least_confirm * cheap, costs.most_confirm * usual)
    return drawn
