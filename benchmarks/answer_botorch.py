"""The search by BoTorch's qLogNEHVI (Ament et al. 2023, Daulton et al. 2021), which the bench extra installs.

Its acquisition function is evaluated at every point of the grid that was not trained, so that its maximum is exact. As
in BoTorch's tutorials the models are Gaussian processes of the standardized objectives and the reference point is
inferred from the front; the first points are random ones.
"""

import random
from typing import Any, final

import numpy as np
import torch

from benchmarks.answer_table import AnswerTable
from benchmarks.search_arms import is_ordered
from sweep.analysis.statistics import non_dominated
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter
from sweep.records.trial_record import TrialRecord
from sweep.search.sampler import Sampler

_NUM_RANDOM = 10
_NUM_SAMPLES = 32  # of the models; a quarter of the usual number, because a proposal takes as many times longer


@final
class LogNehviSampler(Sampler):
    """Proposes points of a table that were not trained yet."""

    def __init__(self, table: AnswerTable, seed: int) -> None:
        torch.set_num_threads(1)
        self._table, self._seed = table, seed
        space, points = table.recorded.space, table.recorded.points
        columns = [_encode(parameter, [point[i] for point in points]) for i, parameter in enumerate(space.values())]
        self._features = torch.tensor(np.concatenate(columns, axis=1), dtype=torch.float64)
        self._left = list(range(len(points)))
        random.Random(seed).shuffle(self._left)
        self._rows: list[int] = []
        self._values: list[list[float]] = []  # larger is better

    def propose(self, index: int) -> dict[str, Any] | None:
        if not self._left:
            return None
        is_random = index < _NUM_RANDOM or len(self._rows) < 2
        place = 0 if is_random else self._find_best(index)
        point = self._table.recorded.points[self._left.pop(place)]
        return dict(zip(self._table.recorded.space, point, strict=True))

    def learn(self, record: TrialRecord) -> None:
        if record.outcome == "complete":
            names = self._table.recorded.spec.objectives
            self._rows.append(self._table.find_point(record))
            self._values.append([-METRICS[name].sign * float(record.measurements[name]) for name in names])

    def _find_best(self, index: int) -> int:
        from botorch.acquisition.multi_objective.logei import qLogNoisyExpectedHypervolumeImprovement
        from botorch.sampling.normal import SobolQMCNormalSampler
        from botorch.utils.multi_objective.hypervolume import infer_reference_point

        torch.manual_seed(self._seed * 10_000 + index)
        tried, values = self._features[self._rows], np.array(self._values)
        values = (values - values.mean(axis=0)) / np.maximum(values.std(axis=0), 1e-12)
        front = torch.tensor(values[non_dominated(-values)])
        acquisition = qLogNoisyExpectedHypervolumeImprovement(
            model=_fit(tried, torch.tensor(values)),
            ref_point=infer_reference_point(front, scale=0.1),
            X_baseline=tried,
            sampler=SobolQMCNormalSampler(torch.Size([_NUM_SAMPLES]), seed=self._seed * 10_000 + index),
            prune_baseline=True,
        )
        with torch.no_grad():
            worth = acquisition(self._features[self._left].unsqueeze(1))
        return int(worth.argmax())


def _fit(features: torch.Tensor, values: torch.Tensor) -> Any:
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import ModelListGP, SingleTaskGP
    from gpytorch.mlls import SumMarginalLogLikelihood

    model = ModelListGP(*(SingleTaskGP(features, column.unsqueeze(1)) for column in values.T))
    fit_gpytorch_mll(SumMarginalLogLikelihood(model.likelihood, model))
    return model


def _encode(parameter: Parameter, values: list[Any]) -> np.ndarray[Any, np.dtype[np.float64]]:
    # ranks from 0 to 1, or one column for each category; shape [points, columns]
    known = list(parameter.grid_values or ())
    if is_ordered(parameter):
        return np.array([[known.index(value) / max(len(known) - 1, 1)] for value in values])
    return np.array([[float(value == each) for each in known] for value in values])
