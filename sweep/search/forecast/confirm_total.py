"""The seconds of the confirming trials in many random cases: the one place of the forecast that follows the rule of
:mod:`sweep.search.seed_allocation`."""

import numpy as np

from sweep.config.study import StudySpec
from sweep.search.forecast.study_costs import Floats, StudyCosts, draw_sums

# From the replays (see ``study_total``), by the number of objectives, the last for more. Of the seeds between the
# fewest and the planned ones, the share that was trained, which candidates that change in between raise above 1; and
# the deviation of all confirming trials from that, as a share of the planned ones.
_SHARES = {1: 1.36, 2: 0.76, 3: 0.2}
_DEVIATIONS = {1: 0.24, 2: 0.21, 3: 0.13}
# Mean and deviation of the degree to which slow configurations are confirmed (see ``draw_sums``), without and with
# speed as an objective: those of a front are fast.
_LEANS = ((-4.1, 3.2), (-7.0, 3.9))


def count_planned(spec: StudySpec) -> tuple[int, int]:
    """The fewest confirming trials that the rule takes, and those of every candidate with every seed: each candidate
    gets a first seed, and the two cheapest a second one."""
    candidates, seeds = spec.confirm.max_configurations, spec.confirm.seeds
    most = candidates * seeds
    return min(candidates + 2, most) if seeds else 0, most


def draw_confirm_seconds(costs: StudyCosts, num_draws: int, rng: np.random.Generator) -> Floats:
    """Seconds of all confirming trials, shape ``[num_draws]``."""
    least, most = costs.least_confirm, costs.most_confirm
    if most == 0:
        return np.zeros(num_draws)
    kind = min(costs.num_objectives, max(_SHARES))
    expected = least + _SHARES[kind] * (most - least)
    counts = np.rint(np.maximum(rng.normal(expected, _DEVIATIONS[kind] * most, num_draws), min(least, 1)))
    leans = rng.normal(*_LEANS[costs.favors_speed], num_draws)
    return draw_sums(costs.confirm_seconds, counts.astype(np.int64), leans, rng)
