"""The gradient noise scale of each configuration over its training, and what is missing of it."""

from typing import NamedTuple

import numpy as np

from sweep.analysis.comparable import ComparableTrials
from sweep.analysis.statistics import Mask, Values, read_numbers
from sweep.config.units import format_count

# The estimates of single steps scatter by more than their mean, and the ratio of few is biased.
_MIN_STEPS = 10
_OTHERS = "further configuration"


class NoiseScales(NamedTuple):
    """``values`` in samples (B_simple, McCandlish et al. 2018), NaN where there is none: where |G|^2 cannot be told
    from 0 (``is_undefined``), or too few steps were measured (``is_short``). All of shape ``[configurations]``."""

    values: Values
    is_undefined: Mask
    is_short: Mask

    def describe_missing(self, among: Mask) -> str:
        """What is missing of the configurations ``among`` (shape ``[configurations]``), "" for nothing."""
        undefined, short = int(np.sum(among & self.is_undefined)), int(np.sum(among & self.is_short))
        parts = [f"in {format_count(undefined, _OTHERS)} the estimate of |G|^2 is not above 0"] if undefined else []
        parts += [f"in {format_count(short, _OTHERS)} fewer than {_MIN_STEPS} steps were measured"] if short else []
        return "; ".join(parts)


def read_noise_scales(records: ComparableTrials) -> NoiseScales:
    """The noise scales over the training, each the median of the trials that a configuration's values rest on."""
    values, _ = records.grouping.medians(read_numbers(records.done, "noise_scale_run"))
    steps, _ = records.grouping.medians(read_numbers(records.done, "num_noise_steps"))
    is_enough = steps >= _MIN_STEPS
    return NoiseScales(np.where(is_enough, values, np.nan), is_enough & ~(values > 0), steps < _MIN_STEPS)
