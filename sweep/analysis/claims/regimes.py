"""Steps to a target against the batch: perfect scaling, diminishing returns, floor."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.analysis.statistics.estimates import fit_curve
from sweep.analysis.statistics.intervals import CONFIDENCE, t_quantile
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.scales import LOG

_MIN_BATCHES = 4
# Data that the fit misses by more (root mean square of the logarithm) do not follow the law.
_MAX_MISFIT = 0.25


@dataclass(frozen=True, kw_only=True)
class Regimes:
    """S = S_min (1 + B_crit / B): (S / S_min - 1)(E / E_min - 1) = 1 solved for S, with E = S B and B_crit =
    E_min / S_min (McCandlish et al. 2018, arXiv:1812.06162). ``log_error`` is the standard error of log B_crit.
    """

    min_steps: float
    min_samples: float
    critical_batch: float
    log_error: float
    degrees: int
    misfit: float

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the critical batch."""
        half = t_quantile(CONFIDENCE, self.degrees) * self.log_error
        low, high = (self.critical_batch * LOG.backward(np.array([-half, half]))).tolist()
        return low, high


def fit_regimes(batches: Values, steps: Values) -> Regimes | None:
    """The law fitted in the logarithm of steps; both of shape ``[b]``. None with fewer than 4 batches or no fit."""
    known = np.isfinite(batches) & np.isfinite(steps) & (steps > 0)
    x, y = np.log(batches[known]), np.log(steps[known])
    if len(x) < _MIN_BATCHES or np.ptp(y) == 0:
        return None

    def law(log_batch: Values, log_steps: float, log_critical: float) -> Values:
        return np.asarray(log_steps + np.logaddexp(0.0, log_critical - log_batch))

    fitted = fit_curve(law, x, y, (y.min() - 0.5, x.mean()))
    if fitted is None:
        return None
    (log_steps, log_critical), errors = fitted
    misfit = float(np.sqrt(np.mean((law(x, log_steps, log_critical) - y) ** 2)))
    if misfit > _MAX_MISFIT:
        return None
    fewest, critical = LOG.backward(np.array([log_steps, log_critical])).tolist()
    return Regimes(
        min_steps=fewest,
        min_samples=fewest * critical,
        critical_batch=critical,
        log_error=float(errors[1]),
        degrees=len(x) - 2,
        misfit=misfit,
    )


def fewest_steps(records: ComparableTrials, chosen: Mask) -> tuple[Values, Values, float]:
    """For each effective batch size the fewest steps to one accuracy among the trials ``chosen`` (shape ``[done]``),
    both of shape ``[b]``, and that accuracy: what each trial was to reach where it had a target, otherwise the highest
    that every batch reached."""
    trials, evaluations = records.done[chosen], records.frames.evaluations
    batches, measured = read_numbers(trials, "global_batch_size"), read_numbers(trials, "steps_to_target")
    targets = read_numbers(trials, "config.budget.target_accuracy")
    if np.isfinite(measured).any():
        target = float(np.nanmedian(targets))
        return *_fewest(batches, np.where(targets == target, measured, np.nan)), target
    if evaluations is None or not len(evaluations) or not len(trials):
        return np.zeros(0), np.zeros(0), np.nan
    # NaN where no accuracy is on record, which no evaluation reaches
    target = float(pd.Series(read_numbers(trials, "val_accuracy")).groupby(batches).max().min())
    return *_fewest(batches, _first_steps(trials, evaluations, target)), target


def _fewest(batches: Values, steps: Values) -> tuple[Values, Values]:
    fewest = pd.Series(steps).groupby(batches).min().dropna()
    return np.asarray(fewest.index, dtype=np.float64), np.asarray(fewest, dtype=np.float64)


def _first_steps(trials: pd.DataFrame, evaluations: pd.DataFrame, target: float) -> Values:
    # the first evaluation that reached the target, by trial
    reached = evaluations.loc[read_numbers(evaluations, "val_accuracy") >= target - 1e-9, ["study", "number", "step"]]
    first = reached.groupby(["study", "number"], sort=False)["step"].min()
    keys = pd.MultiIndex.from_arrays([trials["study"], trials["number"]])
    return np.asarray(first.reindex(keys).to_numpy(dtype=np.float64, na_value=np.nan))
