"""The law of steps to a target on the public reference convergence points of MLPerf, and extensions by the warm-up.

``python -m benchmarks.reference_points``: for each law the leave-one-out error, and the error of the batches beyond
13,056 by the others. The points (``reference_points.json``) are of other recipes at each batch, tuned by their authors.

* ``plain``: E = E_min + S_min B in epochs, which is S = S_min (1 + B_crit / B) (McCandlish et al. 2018).
* ``warmup_c``: E = E_min + S_min B + c W, where W epochs of warm-up delay the training by the share c. A step at the
  share r of the best rate gains r (2 - r) of what the best gains (equation 2.6 there), on average 2/3 over a linear
  warm-up: c = 1/3. By the sum of the rates c = 1/2. With c = 1 the warm-up brings nothing. ``warmup_fitted``: c is the
  third parameter.
* ``power``: E = E_min (1 + (B / B_crit)^p), a third parameter without a theory.

Each is fitted in the logarithm by least squares, and with the loss soft-L1, which gives an outlier less weight.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import least_squares

from benchmarks.results import FOLDER
from sweep.analysis.statistics import Values
from sweep.measurement.environment import describe_environment

POINTS = Path(__file__).with_name("reference_points.json")
_LAST_NEAR = 13_056  # the batches beyond are 2.5 to 5.2 times as large
_SOFT = 0.01  # of the logarithm, from which on soft-L1 is linear


@dataclass(frozen=True)
class Points:
    """Batch sizes, epochs to the target (means over seeds) and epochs of warm-up; all of shape ``[n]``."""

    batches: Values
    epochs: Values
    warmups: Values

    def pick(self, chosen: Any) -> "Points":
        """Those that a mask or index of shape ``[n]`` selects."""
        return Points(self.batches[chosen], self.epochs[chosen], self.warmups[chosen])


@dataclass(frozen=True)
class Law:
    """``predict(parameters, points)`` in epochs, shape ``[n]``; ``start`` are parameters for the first points."""

    predict: Callable[[Values, Points], Values]
    start: Callable[[Points], list[float]]


def _plain_start(points: Points) -> list[float]:
    return [float(np.log(0.8 * points.epochs.min())), float(np.log(points.epochs.min() / points.batches.max()))]


def _delay(share: float) -> Law:
    return Law(lambda p, at: np.exp(p[0]) + np.exp(p[1]) * at.batches + share * at.warmups, _plain_start)


LAWS = {
    "plain": _delay(0.0),
    "warmup_third": _delay(1 / 3),
    "warmup_half": _delay(1 / 2),
    "warmup_whole": _delay(1.0),
    "warmup_fitted": Law(
        lambda p, at: np.exp(p[0]) + np.exp(p[1]) * at.batches + np.exp(p[2]) * at.warmups,
        lambda points: [*_plain_start(points), -0.5],
    ),
    "power": Law(
        lambda p, at: np.exp(p[0]) * (1 + (at.batches * np.exp(p[1] - p[0])) ** np.exp(p[2])),
        lambda points: [*_plain_start(points), 0.0],
    ),
}


def read_points(*names: str) -> Points:
    """The points of ``names`` (resnet, resnet_withdrawn, rnnt), by batch."""
    rows = [row for name in names for row in json.loads(POINTS.read_text(encoding="utf-8"))[name]]
    rows.sort(key=lambda row: row["batch"])
    columns = ([row["batch"] for row in rows], [np.mean(row["epochs"]) for row in rows])
    warmups = [row["warmup_epochs"] for row in rows]
    return Points(*(np.array(column, dtype=np.float64) for column in (*columns, warmups)))


def fit(law: Law, points: Points, loss: str) -> Values:
    """The parameters of ``law`` at ``points``; ``loss`` is linear (least squares) or soft_l1."""
    target = np.log(points.epochs)

    def residuals(parameters: Values) -> Values:
        return np.log(law.predict(parameters, points)) - target

    return np.asarray(least_squares(residuals, law.start(points), loss=loss, f_scale=_SOFT, max_nfev=20_000).x)


def measure_errors(law: Law, fitted: Points, predicted: Points, loss: str) -> Values:
    """Relative errors of ``predicted`` by the law at ``fitted``; of the shape of ``predicted``."""
    return law.predict(fit(law, fitted, loss), predicted) / predicted.epochs - 1


def leave_one_out(law: Law, points: Points, loss: str) -> Values:
    """The relative error of each point by the law at the others; shape ``[n]``."""
    rows = np.arange(len(points.batches))
    return np.concatenate(
        [measure_errors(law, points.pick(rows != row), points.pick(rows == row), loss) for row in rows]
    )


def describe(law: Law, loss: str) -> dict[str, Any]:
    """Errors in percent: of ResNet-50, of its two points that were withdrawn, and of RNN-T, on which no law was
    chosen."""
    resnet, withdrawn, rnnt = read_points("resnet"), read_points("resnet_withdrawn"), read_points("rnnt")
    near = resnet.batches <= _LAST_NEAR
    far = measure_errors(law, resnet.pick(near), resnet.pick(~near), loss)
    left_out, other = leave_one_out(law, resnet, loss), leave_one_out(law, rnnt, loss)
    return {
        "parameters": [round(float(value), 4) for value in fit(law, resnet, loss)],
        "leave_one_out_median": _percent(np.median(np.abs(left_out))),
        "leave_one_out_largest": _percent(np.abs(left_out).max()),
        "extrapolated": {int(batch): _percent(error) for batch, error in zip(resnet.batches[~near], far, strict=True)},
        "extrapolated_largest": _percent(np.abs(far).max()),
        "withdrawn": [_percent(error) for error in measure_errors(law, resnet, withdrawn, loss)],
        "rnnt_leave_one_out_median": _percent(np.median(np.abs(other))),
    }


def _percent(share: Any) -> float:
    return round(100 * float(share), 2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reference_points", description=__doc__)
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args(arguments)
    found = {loss: {name: describe(law, loss) for name, law in LAWS.items()} for loss in ("linear", "soft_l1")}
    print(json.dumps(found, indent=1))
    if options.save:
        path = FOLDER / f"reference_points-{datetime.now(UTC).date()}.json"
        document = found | {"environment": describe_environment(torch.device("cpu"))}
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        print(f"saved {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
