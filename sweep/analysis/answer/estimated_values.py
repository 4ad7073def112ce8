"""The values of a configuration: one estimate with its interval for each metric, wherever it is printed."""

import numpy as np

from sweep.analysis.answer.answer import ConfigurationEstimate
from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.costs import read_own
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.analysis.statistics.intervals import Interval, seed_interval
from sweep.analysis.statistics.pareto import Values
from sweep.analysis.statistics.scales import scale_of

MEASURED = ("test_accuracy",)  # medians over a configuration's own trials, because no use is decided by them
_QUANTILES = (0.025, 0.5, 0.975)


def list_estimates(candidates: Candidates) -> tuple[ConfigurationEstimate, ...]:
    """The values of every candidate, in the order of their first trials."""
    return tuple(
        ConfigurationEstimate(
            number=candidates.number(place),
            num_seeds=int(candidates.num_seeds[place]),
            values={name: value for name in candidates.names if (value := estimate_value(candidates, place, name)).n},
            measured=measure_values(candidates, place),
            front_probability=0.0 if len(candidates.rows) == 1 else float(candidates.p_front[place]),
        )
        for place in range(len(candidates.rows))
    )


def estimate_value(candidates: Candidates, place: int, name: str) -> Interval:
    """The metric ``name`` of the candidate at ``place``, in its unit; NaN with ``n`` = 0 where it was not measured.

    Times and memory are those of all trials of equal cost where these are pooled, and ``n`` is their number. Everything
    else has the median and the quantiles of the draws that the probabilities are counted in, so that the interval
    holds after the configuration was picked; ``n`` is the number of the configuration's own trials.
    """
    if name not in candidates.names:
        return Interval(np.nan, np.nan, np.nan, 0)
    pooled = candidates.records.posterior(name).pooled_interval(int(candidates.rows[place]))
    if pooled is not None:
        return pooled
    drawn = candidates.values(name, candidates.draws)[:, place]
    return describe_draws(drawn, int(np.isfinite(_own_values(candidates, place, name)).sum()))


def describe_draws(drawn: Values, n: int) -> Interval:
    """The median and the 95 % interval of ``drawn``, shape ``[draws]``; NaN with ``n`` = 0 where it is not known."""
    if not np.isfinite(drawn).all():
        return Interval(np.nan, np.nan, np.nan, 0)
    low, middle, high = np.quantile(drawn, _QUANTILES).tolist()
    return Interval(middle, low, high, n)


def measure_values(candidates: Candidates, place: int) -> dict[str, Interval]:
    """The metrics of :data:`MEASURED` that are no candidate's estimate: the median over the configuration's own trials,
    with an interval by the spread between seeds and the number of images."""
    found, records = {}, candidates.records
    for name in (name for name in MEASURED if name not in candidates.names):
        values, scale = _own_values(candidates, place, name), scale_of(name)
        if not np.isfinite(values).any():
            continue
        spread = records.grouping.seed_spread(scale.forward(read_numbers(records.done, name)))
        num_images = records.images.num_test
        # of the error that the images leave on new ones; 0 where their number is not known
        variance = 1.0 / (4.0 * num_images) if num_images else 0.0
        _, low, high, n = seed_interval(scale.forward(values), spread, known_variance=variance)
        low, high = scale.backward(np.array([low, high])).tolist()
        found[name] = Interval(float(np.nanmedian(values)), low, high, n)
    return found


def _own_values(candidates: Candidates, place: int, name: str) -> Values:
    records = candidates.records
    return read_own(name, records.done, records.grouping)[candidates.basis_of(place)]
