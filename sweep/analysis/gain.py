"""The quality of a study as a gain. Within the analysis more is better, whatever the metric: a metric of which less is
better has the other sign there, and its own again in every result."""

import numpy as np
import pandas as pd

from sweep.analysis.statistics import SCALES, Interval, Scale, Values, read_numbers
from sweep.config.metrics import NoiseScale, Quality, find_unit

_ASSUMED_PART = 0.25  # of the usual deviation between configurations: the spread of a number that no seed repeats


def turn_trials(trials: pd.DataFrame, quality: Quality) -> pd.DataFrame:
    """``trials`` with the quality as a gain."""
    return trials if quality.sign > 0 else trials.assign(**{quality.column: -1.0 * trials[quality.column]})


def limit_gains(trials: pd.DataFrame, quality: Quality, target: float | None) -> pd.DataFrame:
    """``trials`` in which a gain beyond the ``target`` of all trainings counts as the target: how far the evaluation
    that ended a training passed it is chance."""
    if target is None:
        return trials
    return trials.assign(**{quality.column: np.minimum(read_numbers(trials, quality.column), target)})


def turn_interval(value: Interval, quality: Quality) -> Interval:
    """A gain, or a difference of two, as the study's metric."""
    return value if quality.sign > 0 else Interval(-value.median, -value.high, -value.low, value.n)


def find_gain_scale(quality: Quality) -> Scale:
    """The scale on which the noise of the gain is even."""
    scale = SCALES[quality.scale]
    if quality.sign > 0:
        return scale
    return Scale(lambda gains: -scale.forward(-gains), lambda positions: -scale.backward(-positions))


def assume_spread(quality: Quality, centers: Values) -> float:
    """The standard deviation between seeds, on the scale, where no configuration was repeated; of a plain number, whose
    size says nothing, from how configurations with these ``centers`` (shape ``[n]``) deviate."""
    kind: NoiseScale = quality.scale
    if quality.unit != "number" or kind == "log" or not np.isfinite(centers).any():
        return find_unit(quality.unit).assumed_sd
    away = np.abs(centers - np.nanmedian(centers))
    return _ASSUMED_PART * float(np.nanmedian(away)) or find_unit(quality.unit).assumed_sd
