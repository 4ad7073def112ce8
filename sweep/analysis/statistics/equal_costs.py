"""Trials of equal cost: which they are, and which of their times are observations of their own."""

from collections.abc import Collection

import numpy as np
import pandas as pd

from sweep.analysis.statistics import Grouping, Numbers, Values, configuration_groups, read_numbers, read_text
from sweep.analysis.statistics.time_evidence import count_copies, has_time_evidence, select_evidence
from sweep.config.metrics import METRICS, list_following
from sweep.config.trial_config import keys_of_cost

# What changes no cost; and data.root, because the same data may be elsewhere on another machine.
_FREE_KEYS = keys_of_cost("none") | {"data.root"}
_SWITCHES = keys_of_cost("switch")


def equal_cost_groups(trials: pd.DataFrame, ignored: Collection[str] = ()) -> Numbers:
    """The same number for trials whose steps cost the same, whatever the values of the keys ``ignored``; shape
    ``[len(trials)]``. Of a switch, such as momentum, only whether it is on counts."""
    return configuration_groups(trials, _FREE_KEYS.union(ignored), _SWITCHES)


def find_cost_groups(name: str, done: pd.DataFrame) -> Numbers:
    """The same number for trials whose metric ``name`` is to be equal; shape ``[trials]``."""
    # where time depends on the learning itself, as time to a target does, only trials of one configuration are equal
    is_own = METRICS[name].is_speed and depends_on_learning(done)
    return configuration_groups(done) if is_own else equal_cost_groups(done)


def depends_on_learning(done: pd.DataFrame) -> bool:
    """Whether how long a training takes follows from how well it learns."""
    by_target = np.isfinite(read_numbers(done, "config.budget.target_accuracy")).any()
    return bool(by_target or {"noise_scale", "plateau"} & set(read_text(done, "config.batch.schedule")))


def average_costs(values: Values, costs: Numbers, own_errors: Values) -> tuple[Values, Values]:
    """The mean of each group of equal cost, and its error, both of shape ``[groups]``. Errors are in standard
    deviations of the spread; ``own_errors`` are those of the single values, which come on top of it."""
    finite = np.isfinite(values)
    size = int(costs.max(initial=-1)) + 1
    weights = 1 / (1 + own_errors[finite] ** 2)
    sums = np.bincount(costs[finite], weights, minlength=size)
    known = np.where(sums > 0, sums, np.nan)
    return np.bincount(costs[finite], weights * values[finite], minlength=size) / known, 1 / np.sqrt(known)


def pool_doubtful_times(done: pd.DataFrame) -> pd.DataFrame:
    """The complete trials ``done`` with the times that are no evidence replaced by the geometric mean of those of the
    trials of equal cost on the same device, where there are any; the others unchanged."""
    is_evidence = has_time_evidence(done)
    if is_evidence.all():
        return done
    devices = pd.factorize(read_text(done, "device"))[0]
    groups = find_cost_groups("train_seconds", done) * (int(devices.max()) + 1) + devices
    is_replaced = ~select_evidence(is_evidence, groups)
    columns = {}
    for name in filter(done.columns.__contains__, list_following("train_seconds", "probe")):
        values = read_numbers(done, name)
        logarithms = np.log(np.where(is_evidence & (values > 0), values, np.nan))
        means, _ = average_costs(logarithms, groups, np.zeros(len(done)))
        columns[name] = np.where(is_replaced, np.exp(means[groups]), values)
    return done.assign(**columns)


def drop_copied_times(done: pd.DataFrame, values: Values) -> Values:
    """``values`` of a metric that follows time, shape ``[trials]``, without those that are no observations:
    NaN for all but one of the trials of equal cost that have the time of one probe, and for a time that is no evidence
    where others of its group are."""
    costs = find_cost_groups("train_seconds", done)
    counted = np.where(select_evidence(has_time_evidence(done), costs), values, np.nan)
    return drop_copies(done, counted, costs)


def read_own(name: str, done: pd.DataFrame, grouping: Grouping) -> Values:
    """The metric ``name`` of each trial, shape ``[trials]``; of the trials of one configuration that have the time of
    one probe it is NaN for all but the first."""
    values = read_numbers(done, name)
    if not METRICS[name].is_speed or depends_on_learning(done):
        return values
    return drop_copies(done, values, 2 * grouping.members + grouping.is_basis)


def drop_copies(done: pd.DataFrame, values: Values, groups: Numbers) -> Values:
    """``values`` (shape ``[trials]``), NaN for all but the first of the trials of a group that have a probe's time."""
    is_copy = count_copies(done, groups) > 0
    is_repeated = is_copy & pd.Series(groups).where(is_copy).duplicated().to_numpy(np.bool_)
    return np.where(is_repeated, np.nan, values)
