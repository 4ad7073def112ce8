"""The arms: in which order a search trains the points of a recorded table, and what it has spent after each.

All pursue the same objectives on the same grid, and a search ends when every point was tried. Ours is the product's
tuner with its pruner; the peers do not prune, which Optuna cannot with several objectives. A peer's proposal that was
trained before is answered from memory at no cost, and the nearest point that was not trained is trained in its place
and told to it, as the replay does for ours.
"""

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from typing import Any, NamedTuple, final

import optuna
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from benchmarks.answer_botorch import LogNehviSampler
from benchmarks.answer_table import AnswerTable
from benchmarks.replay import GridSampler, Point, replay_search
from benchmarks.search_arms import OURS, make_distribution, tell_ending, value_of
from sweep.config.metrics import METRICS
from sweep.config.space import Space
from sweep.records.trial_record import TrialRecord
from sweep.search.sampler import Sampler

OUR_ARM = "ours"
_NO_CONFIRM = {"max_configurations": 0, "seeds": 0}


class Searched(NamedTuple):
    """A search trial, and the seconds of training until it ended."""

    record: TrialRecord
    seconds: float


Order = Callable[[AnswerTable, int], Iterator[Searched]]  # of the search with that seed


def search_ours(table: AnswerTable, seed: int) -> Iterator[Searched]:
    """The product's search."""
    records: list[TrialRecord] = []
    study = table.make_study(seed, confirm=_NO_CONFIRM, **OURS)
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
        directions = [METRICS[name].direction or "minimize" for name in self._table.spec.objectives]
        self._study = optuna.create_study(directions=directions, sampler=sampler)
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
