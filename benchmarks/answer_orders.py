"""The arms: in which order a search trains the points of a recorded table, and what it has spent after each.

All pursue the same objectives on the same grid, and a search ends when every point was tried. Ours is the product's
tuner with its pruner; the peers do not prune, which Optuna cannot with several objectives. A peer's proposal that was
trained before is answered from memory at no cost, and the nearest point that was not trained is trained in its place
and told to it, as the replay does for ours.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple, final

import numpy as np
import optuna
import torch
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from benchmarks.answer_table import AnswerTable
from benchmarks.replay import GridSampler, Point, replay_search
from benchmarks.search import NO_CONFIRM, OURS, is_ordered, list_directions, make_distribution, tell_ending, value_of
from sweep.analysis.statistics import non_dominated
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter, Space
from sweep.records.records import TrialRecord
from sweep.search.sampler import Sampler

OUR_ARM = "ours"


class Searched(NamedTuple):
    """A search trial, and the seconds of training until it ended."""

    record: TrialRecord
    seconds: float


Order = Callable[[AnswerTable, int], Iterator[Searched]]  # of the search with that seed


def search_ours(table: AnswerTable, seed: int) -> Iterator[Searched]:
    """The product's search."""
    records: list[TrialRecord] = []
    study = table.make_study(seed, confirm=NO_CONFIRM, **OURS)
    search = replay_search(table.recorded, study, on_end=records.append)
    return map(Searched, records, search.ended_seconds)


def search_with(make: Callable[[AnswerTable, int], Sampler]) -> Order:
    """A search by a sampler that is made for a table and a seed, without pruning."""

    def order(table: AnswerTable, seed: int) -> Iterator[Searched]:
        study = table.make_study(seed, sampler="random")
        moved, spent = GridSampler(make(table, seed), table.recorded), 0.0
        number = 0
        while (values := moved.propose(number)) is not None:
            record = table.train(study.config(values), number, "search")
            moved.learn(record)
            spent += record.measurements["total_seconds"]
            yield Searched(record, spent)
            number += 1

    return order


def _optuna(make: Callable[[int], BaseSampler]) -> Order:
    return search_with(lambda table, seed: PeerSampler(table, make(seed)))


@final
class PeerSampler(Sampler):
    """An Optuna study as its user would run it: numbers are searched by their rank on the grid, names as categories."""

    def __init__(self, table: AnswerTable, sampler: BaseSampler) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._table = table.recorded
        self._study = optuna.create_study(directions=list_directions(self._table), sampler=sampler)
        self._space: Space = self._table.space
        self._distributions = {path: make_distribution(parameter) for path, parameter in self._space.items()}
        self._known: dict[Point, TrialRecord] = {}
        self._asked: optuna.Trial | None = None

    def propose(self, index: int) -> dict[str, Any]:
        del index  # the study counts its own trials
        self._asked = self._study.ask(self._distributions)
        return self._values(self._asked)

    def learn(self, record: TrialRecord) -> None:
        assert self._asked is not None
        point = self._table.point_of(record.config)
        self._known[point] = record
        if (proposed := tuple(self._values(self._asked).values())) != point:
            self._tell(self._known.get(proposed))
            self._study.enqueue_trial(self._parameters(point))
            self._asked = self._study.ask(self._distributions)
        self._tell(record)

    def _tell(self, record: TrialRecord | None) -> None:
        assert self._asked is not None
        tell_ending(self._study, self._asked, record.ending if record else None, self._table)

    def _values(self, trial: optuna.Trial) -> dict[str, Any]:
        return {path: value_of(parameter, trial.params[path]) for path, parameter in self._space.items()}

    def _parameters(self, point: Point) -> dict[str, Any]:
        pairs = zip(self._distributions.items(), self._space.values(), point, strict=True)
        return {
            path: (parameter.grid_values or ()).index(value)
            if isinstance(distribution, optuna.distributions.IntDistribution)
            else value
            for (path, distribution), parameter, value in pairs
        }


_NUM_RANDOM = 10
_NUM_SAMPLES = 32  # of the models; a quarter of the usual number, because a proposal takes as many times longer


@final
class LogNehviSampler(Sampler):
    """BoTorch's qLogNEHVI (Ament et al. 2023, Daulton et al. 2021), which the bench extra installs.

    Its acquisition function is evaluated at every point of the grid that was not trained, so that its maximum is exact.
    As in BoTorch's tutorials the models are Gaussian processes of the standardized objectives and the reference point
    is inferred from the front; the first points are random ones.
    """

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


_ARMS: dict[str, Order] = {
    OUR_ARM: search_ours,
    "optuna_default": _optuna(lambda seed: TPESampler(seed=seed)),
    "nsga2": _optuna(lambda seed: NSGAIISampler(seed=seed)),
    "optuna_gp": _optuna(lambda seed: GPSampler(seed=seed)),
    "qlognehvi": search_with(LogNehviSampler),
    "random": _optuna(lambda seed: RandomSampler(seed=seed)),
}


def list_arms() -> Mapping[str, Order]:
    """The arms by name; BoTorch's only where that is installed (``pip install -e '.[bench]'``)."""
    return {name: order for name, order in _ARMS.items() if name != "qlognehvi" or find_spec("botorch")}
