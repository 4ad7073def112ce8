"""How much the machine itself differed between two runs, estimated from work that was the same in both.

The times of two runs differ also where the code is equal, because the machine had another clock or another load. The
spread between the seeds of a run shows nothing of that. Each run is one draw of the machine's pace, and the variance of
such draws is taken from what measured the pace in both runs: the reference work before each trial, over stretches of
each run, and probes of equal shapes by equal code.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from sweep.analysis.costs import has_sure_time
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import Estimate
from sweep.analysis.statistics.intervals import CONFIDENCE, t_quantile
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.records.frames.study_frames import Frames

_NUM_STRETCHES = 3  # of a run, in the order of its trials: a machine's pace drifts within a run as well
# Facts of an environment that make times those of another device.
_DEVICE_FACTS = ("device", "driver", "cuda", "power_limit_watts")
_NO_EVIDENCE = "the two runs were made at different times, and no work that is equal in both was timed"


@dataclass(frozen=True, kw_only=True)
class PaceDifference:
    """``error`` is the standard error, with ``degrees`` of freedom, of the logarithm of the ratio of times of equal
    code in the two runs; NaN where nothing is known of it, for the ``reason``. ``ratio``: the reference work in B over
    that in A."""

    error: float = np.nan
    degrees: float = 0
    ratio: float = np.nan
    num_references: tuple[int, int] = (0, 0)
    num_probes: int = 0
    reason: str = ""

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of a ratio of times of equal code, as a share of it."""
        return float(np.expm1(t_quantile(CONFIDENCE, self.degrees) * self.error))

    def widen(self, estimate: Estimate) -> Estimate:
        """``estimate`` of a logarithm of a ratio of times with both errors (Welch 1947, Satterthwaite 1946)."""
        within, between = estimate.error**2, self.error**2
        if not (estimate.degrees > 0 and self.degrees > 0):
            return estimate._replace(error=np.nan, degrees=0)
        total = within + between
        parts = within**2 / estimate.degrees + between**2 / self.degrees
        degrees = total**2 / parts if parts > 0 else min(estimate.degrees, self.degrees)
        return estimate._replace(error=float(np.sqrt(total)), degrees=float(degrees))


def measure_pace_difference(a: Frames, b: Frames) -> PaceDifference:
    """The difference of pace between the runs of ``a`` and ``b``. Each stretch of a run is a draw of the pace, and each
    pair of probes are two; a reused trial is evidence of neither run."""
    if reason := _compare_devices(a, b):
        return PaceDifference(reason=reason)
    references = (_reference_logs(a), _reference_logs(b))
    return estimate_pace_difference(references, _probe_ratios(a, b))


def estimate_pace_difference(references: tuple[Values, Values], probes: Values) -> PaceDifference:
    """From logarithms: of the times of the reference work in each run, in the order of its trials, and of the ratios of
    probes, B over A, shape ``[probes]``."""
    squares, degrees, ratio = float(np.sum(probes**2)) / 2, len(probes), np.nan
    if all(map(len, references)):
        stretches = np.concatenate([_stretch_means(logs) for logs in references])
        squares += float(np.sum((stretches - stretches.mean()) ** 2))
        degrees += len(stretches) - 1
        ratio = float(np.exp(references[1].mean() - references[0].mean()))
    if not degrees:
        return PaceDifference(reason=_NO_EVIDENCE)
    return PaceDifference(
        error=float(np.sqrt(2 * squares / degrees)),
        degrees=degrees,
        ratio=ratio,
        num_references=(len(references[0]), len(references[1])),
        num_probes=len(probes),
    )


def _compare_devices(a: Frames, b: Frames) -> str:
    facts = [_device_facts(frames) for frames in (a, b)]
    for name in _DEVICE_FACTS:
        values = [found.get(name, set()) for found in facts]
        if any(len(each) > 1 for each in values):
            return f"trials of a study ran with several values of {name}"
        if all(values) and values[0] != values[1]:
            return f"the two runs differ in {name}, so that a ratio of times is of that and of the code together"
    return ""


def _device_facts(frames: Frames) -> dict[str, set[str]]:
    # of the run's own trials: a reused one may be of another device, but nothing rests on its time
    own, table = frames.trials[_is_own(frames.trials)], frames.environments
    table = table[table["environment_digest"].isin(set(read_text(own, "environment_digest").tolist()))]
    found = {name: set(read_text(table, name).tolist()) - {""} for name in _DEVICE_FACTS}
    return found | {"device": set(read_text(own, "device").tolist()) - {""}}


def _is_own(trials: pd.DataFrame) -> Mask:
    return np.asarray(read_text(trials, "reused_from") == "", dtype=np.bool_)


def _reference_logs(frames: Frames) -> Values:
    # in the order of the trials
    trials = frames.trials
    seconds = read_numbers(trials, "reference_seconds")
    known = _is_own(trials) & np.isfinite(seconds) & (seconds > 0)
    order = np.argsort(read_numbers(trials, "number")[known], kind="stable")
    return np.log(seconds[known][order])


def _stretch_means(logs: Values) -> Values:
    return np.array([part.mean() for part in np.array_split(logs, min(_NUM_STRETCHES, len(logs)))])


def _probe_ratios(a: Frames, b: Frames) -> Values:
    # logarithms, B over A, of shapes that were probed by equal code for each of the two; a shared probe is no evidence
    known = [_probed(frames) for frames in (a, b)]
    pairs = [(known[0][key], known[1][key]) for key in known[0].keys() & known[1].keys()]
    return np.array([np.log(two / one) for (one, at), (two, later) in pairs if at != later])


def _probed(frames: Frames) -> dict[str, tuple[float, str]]:
    # step seconds and time of the probes without a doubt about them, by the key of shape and code
    probes = frames.probes
    is_good = (read_text(probes, "outcome") == "complete") & has_sure_time(probes)
    seconds = read_numbers(probes, "step_seconds_median")
    keys, times = read_text(probes, "shape_key"), read_text(probes, "probed_at")
    rows = np.flatnonzero(is_good & (seconds > 0))
    return {str(keys[row]): (float(seconds[row]), str(times[row])) for row in rows}
