"""``python -m benchmarks.forecast_calibration``: the last two constants of the forecast, from development studies.

Runs them, or reads those that the same code ran, and prints the factor and the width with which
:mod:`sweep.search.study_forecast` should adjust what it draws. Requires an idle machine, for about ten minutes.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from benchmarks.forecast_error import ROOT, StudyFigures, list_measurable, measure_study, replay_forecast
from benchmarks.forecast_studies import NUM_DEVELOPMENT
from sweep.search import study_forecast

_LEVELS = (0.05, 0.5, 0.95)
_COVERAGE = 0.9


def calibrate(found: Sequence[StudyFigures]) -> tuple[float, float]:
    """The factor on the median and the width in logarithms, so that half of the totals are above the median and the
    interval is expected to hold the total of the next study in 90 % of cases (split conformal prediction, Lei et al.
    2018, with a rank that is interpolated)."""
    low, middle, high = np.log([np.quantile(replay_forecast(one), _LEVELS) for one in found]).T
    gaps = np.log([one.total_seconds for one in found]) - middle
    factor = float(np.median(gaps))
    away = gaps - factor
    scores = np.where(away > 0, away / (high - middle), -away / (middle - low))
    rank = _COVERAGE * (len(found) + 1) - 1  # from 0
    width = float(np.interp(rank, np.arange(len(found)), np.sort(scores)))
    return study_forecast.FACTOR * float(np.exp(factor)), study_forecast.WIDTH * width


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecast_calibration", description=__doc__)
    parser.add_argument("--studies", type=int, default=NUM_DEVELOPMENT, help=f"how many ({NUM_DEVELOPMENT})")
    parser.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (cpu)")
    options = parser.parse_args(arguments)
    found = []
    for planned in list_measurable("development", options.studies, ROOT):
        found.append(measure_study(planned, options.device, ROOT))
        print(found[-1].line, file=sys.stderr, flush=True)
    factor, width = calibrate(found)
    print(f"FACTOR = {factor:.3g}, WIDTH = {width:.3g}, from {len(found)} studies")
    return 0


if __name__ == "__main__":
    sys.exit(main())
