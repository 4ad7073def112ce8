"""Searches of recorded tables: our search and those of peers, and the ratio of the simulated seconds of training until
99 % of the hypervolume of the true front, with what the searches trained on the same clock.

All pursue the same objectives on the same grid, and a search ends when every point was tried. Ours is the product's
tuner with its pruner; the peers do not prune, which Optuna cannot with several objectives. A peer's proposal that was
trained before is answered from memory at no cost, and the nearest point that was not trained is trained in its place
and told to it, as the replay does for ours. A pair of a ratio is one seed on one table, the figure of an arm is
searches an hour of the clock.
"""

import itertools
import json
import random
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from benchmarks.answer_table import AnswerTable, read_answer_table
from benchmarks.harness import MIN_PAIRS, TABLES, Arms, Setting, benchmark
from benchmarks.replay import (
    GridSampler,
    Point,
    RecordedTable,
    ReplayedSearch,
    make_replay_study,
    replay_search,
    schedule_messages,
)
from benchmarks.rules import RECORDS as OF_RULES
from sweep.analysis.statistics import non_dominated
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter
from sweep.records.messages import Evaluation
from sweep.records.records import TrialRecord
from sweep.search.sampler import Sampler

# Tables that were looked at while the search or the answer was changed: they say nothing for either.
LOOKED_AT = ("digits", "cifar10", "digits_crops", "digits_vit")
OURS: dict[str, Any] = {"sampler": "cost_aware", "pruner": "front"}
OUR_ARM = "ours"
NO_CONFIRM = {"max_configurations": 0, "seeds": 0}
TARGET = 0.99  # of the table's hypervolume
NUM_SEEDS = 20
PEER_PYTHON = Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"


def list_folders() -> list[Path]:
    """The folders of the tables under ``benchmarks/tables`` that no constant of a sampler was chosen on."""
    folders = sorted(path.parent for path in TABLES.glob("*/export.json"))
    return [folder for folder in folders if folder.name not in LOOKED_AT and folder not in OF_RULES]


def shipped_tables() -> list[AnswerTable]:
    if not (folders := list_folders()):
        raise InputError(f"{TABLES}: no table is there; python -m benchmarks tables makes one.")
    return [_read(folder) for folder in folders]


@cache
def _read(folder: Path) -> AnswerTable:
    return read_answer_table(folder)


def describe_tables(tables: Sequence[AnswerTable]) -> dict[str, Any]:
    of_front = {table.name: table.recorded.on_front for table in tables}
    described = [f"{name}: {len(on)} configurations, {on.sum()} on the front" for name, on in of_front.items()]
    return {"tables": described, "constants_chosen_on": LOOKED_AT}


# ---------------------------------------------------------------------- the arms: in which order points are trained


class Searched(NamedTuple):
    """A search trial, and the seconds of training until it ended."""

    record: TrialRecord
    seconds: float


Order = Callable[[AnswerTable, int], Iterator[Searched]]  # of the search with that seed


def search_ours(table: AnswerTable, seed: int) -> Iterator[Searched]:
    records: list[TrialRecord] = []
    study = table.make_study(seed, confirm=NO_CONFIRM, **OURS)
    search = replay_search(table.recorded, study, on_end=records.append)
    return map(Searched, records, search.ended_seconds)


def search_with(make: Callable[[AnswerTable, int], Sampler]) -> Order:
    """A search by a sampler that is made for a table and a seed, without pruning."""

    def order(table: AnswerTable, seed: int) -> Iterator[Searched]:
        study = table.make_study(seed, sampler="random")
        moved, spent = GridSampler(make(table, seed), table.recorded), 0.0
        for number in itertools.count():
            if (values := moved.propose(number)) is None:
                return
            record = table.train(study.config(values), number, "search")
            moved.learn(record)
            spent += record.measurements["total_seconds"]
            yield Searched(record, spent)

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
        self._values = {path: list(item.grid_values or ()) for path, item in self._table.space.items()}
        self._distributions: dict[str, BaseDistribution] = {
            path: IntDistribution(0, len(item.grid_values or ()) - 1)
            if is_ordered(item)
            else CategoricalDistribution(item.grid_values or ())
            for path, item in self._table.space.items()
        }
        self._known: dict[Point, TrialRecord] = {}
        self._asked: optuna.Trial | None = None

    def propose(self, index: int) -> dict[str, Any]:
        del index  # the study counts its own trials
        self._asked = self._study.ask(self._distributions)
        return {
            path: self._values[path][told] if isinstance(self._distributions[path], IntDistribution) else told
            for path, told in self._asked.params.items()
        }

    def learn(self, record: TrialRecord) -> None:
        assert self._asked is not None
        point = self._table.point_of(record.config)
        self._known[point] = record
        parameters = {
            path: self._values[path].index(value) if isinstance(distribution, IntDistribution) else value
            for (path, distribution), value in zip(self._distributions.items(), point, strict=True)
        }
        if self._asked.params != parameters:
            proposed = (self._asked.params[path] for path in self._values)
            pairs = zip(self._distributions.values(), self._values.values(), proposed, strict=True)
            place = tuple(values[told] if isinstance(kind, IntDistribution) else told for kind, values, told in pairs)
            self._tell(self._known.get(place))
            self._study.enqueue_trial(parameters)
            self._asked = self._study.ask(self._distributions)
        self._tell(record)

    def _tell(self, record: TrialRecord | None) -> None:
        # it has failed where it is not complete or was never trained
        assert self._asked is not None
        if record is None or record.outcome != "complete":
            self._study.tell(self._asked, state=TrialState.FAIL)
        else:
            self._study.tell(self._asked, [record.measurements[name] for name in self._table.spec.objectives])


def is_ordered(parameter: Parameter) -> bool:
    values = parameter.grid_values or ()
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return len(numbers) == len(values) and all(low < high for low, high in itertools.pairwise(numbers))


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
    OUR_ARM: search_ours, "optuna_default": _optuna(lambda seed: TPESampler(seed=seed)),
    "nsga2": _optuna(lambda seed: NSGAIISampler(seed=seed)), "optuna_gp": _optuna(lambda seed: GPSampler(seed=seed)),
    "qlognehvi": search_with(LogNehviSampler), "random": _optuna(lambda seed: RandomSampler(seed=seed)),
}  # fmt: skip


def list_arms() -> Mapping[str, Order]:
    """The arms by name; BoTorch's only where that is installed (``pip install -e '.[bench]'``)."""
    return {name: order for name, order in _ARMS.items() if name != "qlognehvi" or find_spec("botorch")}


# ---------------------------------------------------------------------- Syne Tune's MO-ASHA


def moasha_seconds(table: AnswerTable, seed: int) -> float:
    """Until a search by MO-ASHA has the share ``TARGET``, or what it spent without. It runs in an environment of its
    own, because Syne Tune requires packages that do not fit beside the project."""
    if not PEER_PYTHON.exists():
        raise InputError(f"{PEER_PYTHON} is missing; make bench-peers sets up the environment of Syne Tune.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        path.write_text(json.dumps(plain_table(table.recorded, seed)), encoding="utf-8")
        command = [str(PEER_PYTHON), str(Path(__file__).with_name("peer_moasha.py")), str(path), str(seed)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    progress = json.loads(said.splitlines()[-1])
    found: list[int] = []
    for seconds, row in progress:
        if row is not None:
            found.append(row)
        if table.recorded.share(found) >= TARGET:
            return float(seconds)
    return float(progress[-1][0])


def plain_table(table: RecordedTable, seed: int) -> dict[str, Any]:
    """The table as JSON for a process that knows nothing of this project: for each point the seconds after its start at
    which it reports, and its objectives then, smaller is better."""
    objectives = table.spec.objectives
    rows = []
    for point in table.points:
        trial = table.training(table.spec.config(dict(zip(table.space, point, strict=True)), seed))
        measured = trial.ending.measurements

        def costs(said: Evaluation, measured: Any = measured) -> list[float]:
            found = (float(getattr(said, name, measured.get(name, 0.0))) for name in objectives)
            return [METRICS[name].sign * value for name, value in zip(objectives, found, strict=True)]

        reports = [[at, *costs(said)] for at, said in schedule_messages(trial) if isinstance(said, Evaluation)]
        is_complete = trial.ending.outcome == "complete"
        rows.append({"reports": reports, "total": measured["total_seconds"], "is_complete": is_complete})
    axes = [{"values": list(item.grid_values or ()), "is_ordered": is_ordered(item)} for item in table.space.values()]
    points = [list(point) for point in table.points]
    return {"objectives": list(objectives), "space": axes, "points": points, "trainings": rows}


# ---------------------------------------------------------------------- the benchmarks


def our_search(table: RecordedTable, seed: int, until: float | None = TARGET, **changes: Any) -> ReplayedSearch:
    """One replayed search of the whole table, without a confirm phase unless ``changes`` ask for one."""
    plain = {"trials": len(table.points), "confirm": NO_CONFIRM, **OURS, **changes}
    return replay_search(table, make_replay_study(table, "benchmark", seed=seed, **plain), until)


def our_seconds(table: AnswerTable, seed: int) -> float:
    return our_search(table.recorded, seed).seconds_to(TARGET)


def peer_seconds(arm: str, table: AnswerTable, seed: int) -> float:
    """The same of another arm, or what its search spent on all points."""
    rows, seconds = list[int](), 0.0
    for record, seconds in _ARMS[arm](table, seed):  # noqa: B007  # is returned
        row = table.find_point(record)
        if record.outcome == "complete" and np.isfinite(table.recorded.means[row]).all():
            rows.append(row)
        if table.recorded.share(rows) >= TARGET:
            break
    return seconds


def _compare(setting: Setting, theirs: Callable[[AnswerTable, int], float]) -> Iterator[Arms]:
    tables = shipped_tables()

    def figure(seconds: Callable[[AnswerTable, int], float], pair: int) -> float:
        if pair < 0:  # nothing warms up on a simulated clock
            return 1.0
        return 3600.0 / seconds(tables[pair % len(tables)], setting.pick(pair // len(tables), 0))

    about = {**describe_tables(tables), "share_of_hypervolume": TARGET, "ours": OURS, "seeds": NUM_SEEDS}
    yield Arms(lambda pair: figure(our_seconds, pair), lambda pair: figure(theirs, pair), facts=about)


# the peer, its name in the question, and how many times sooner ours is to arrive
_PEERS: dict[str, tuple[Callable[[AnswerTable, int], float], str, float]] = {
    "search_default": (partial(peer_seconds, "optuna_default"), "Optuna's default", 3.0),
    "search_nsga2": (partial(peer_seconds, "nsga2"), "NSGA-II", 5.0),
    "search_gp": (partial(peer_seconds, "optuna_gp"), "Optuna's Gaussian process", 1.2),
    "search_qlognehvi": (partial(peer_seconds, "qlognehvi"), "BoTorch's qLogNEHVI", 1.2),
    "search_random": (partial(peer_seconds, "random"), "a random search", 1.0),
    "search_moasha": (moasha_seconds, "Syne Tune's MO-ASHA", 1.5),
}
for _name, (_theirs, _peer, _target) in _PEERS.items():
    benchmark(
        _name, f"how many times the seconds of training does {_peer} need until 99 % of the hypervolume?",
        "searches/hour", "higher", _target, NUM_SEEDS * max(len(list_folders()), 1),
    )(partial(_compare, theirs=_theirs))  # fmt: skip


@benchmark(
    "search_front", "in which share of searches is no configuration of the true front stopped?", "share of searches",
    "higher", 0.95, MIN_PAIRS,
)  # fmt: skip
def front(setting: Setting) -> Iterator[Arms]:
    """A pair is a fifth of the seeds, a search of every table to its end for each; the other arm is all of them."""
    tables, num_seeds = shipped_tables(), setting.pick(NUM_SEEDS // MIN_PAIRS, 1)
    wrong: list[str] = []

    def ours(pair: int) -> float:
        if pair < 0:  # nothing warms up on a simulated clock
            return 1.0
        clean = 0
        for table, seed in itertools.product(tables, range(pair * num_seeds, (pair + 1) * num_seeds)):
            # points that depend on the index alone, so that every configuration is reached by every order
            search = our_search(table.recorded, seed, None, sampler="random")
            clean += not search.pruned_front
            wrong.extend(f"{table.name}, seed {seed}: {point}" for point in search.pruned_front)
        return clean / (num_seeds * len(tables))

    about = {**describe_tables(tables), "stopped_wrongly": wrong, "searches_a_pair": num_seeds}
    yield Arms(ours, lambda _pair: 1.0, facts=about)
