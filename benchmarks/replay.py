"""Searches on recorded trainings, ours and those of peers: in which order the points of a table are trained.

All pursue the same objectives on the same grid, and a search ends when every point was tried. All time of trainings
counts, also that of pruned trials; the computing time of the sampler does not, because it is that of this machine and
not of the one that recorded the table. Ours is the product's tuner with its pruner on a replaying executor and a
simulated clock; nothing is probed. The peers do not prune, which Optuna cannot with several objectives. A peer's
proposal that was trained before is answered from memory at no cost, and the nearest point that was not trained is
trained in its place and told to it, as the replay does for ours.
"""

import contextlib
import heapq
import itertools
import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.trial import TrialState

from benchmarks.answer_table import Point, RecordedTable
from sweep.analysis.statistics import non_dominated
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial import Scalar, TrialConfig
from sweep.executors.base import Executor
from sweep.records.messages import LEFT, Ending, Message, Progress, Task
from sweep.records.records import ReusableTrial, TrialRecord
from sweep.records.store import Store, open_store
from sweep.search.attempts import RunPlan
from sweep.search.sampler import Sampler
from sweep.search.samplers import make_sampler
from sweep.search.tuner import TrialEnded, Tuner

OUR_ARM = "ours"
TimedMessage = tuple[float, Message]  # seconds after the start of the trial, and the message
_BEFORE = ("setup_seconds", "compile_seconds", "warmup_seconds", "memory_seconds")
_MEMORY = Path("/dev/shm")  # nosec B108 # a folder with a random name is made there


class Searched(NamedTuple):
    """A search trial, and the seconds of training until it ended."""

    record: TrialRecord
    seconds: float


Order = Callable[[RecordedTable, int], Iterator[Searched]]  # of the search with that seed


# ---------------------------------------------------------------------- an executor on a simulated clock


@final
class SimulatedClock:
    """A clock that advances only on request."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        return self._now

    def advance_to(self, seconds: float) -> None:
        self._now = max(self._now, seconds)


class _Due(NamedTuple):
    """The next message of a trial. The earliest comes first, and of equal ones the one that was added first."""

    seconds: float  # by the clock
    order: int
    number: int
    message: Message
    began: float
    rest: Iterator[TimedMessage]


@final
class ReplayingExecutor(Executor):
    """``slots`` trials at once, each as fast as it was recorded. ``messages_of`` gives the timed messages of the
    training of a configuration, the last of which is an ``Ending``.
    """

    def __init__(
        self, messages_of: Callable[[TrialConfig], Iterator[TimedMessage]], clock: SimulatedClock, device: str,
        slots: int = 1,
    ) -> None:  # fmt: skip
        self._messages_of, self._clock, self._device, self._slots = messages_of, clock, device, slots
        self._running: dict[int, Iterator[TimedMessage]] = {}  # the messages that follow, by trial
        self._order: list[_Due] = []  # a heap; some may have been stopped since
        self._count = itertools.count()

    @property
    def slots(self) -> int:
        return self._slots

    def describe(self) -> dict[str, Any]:
        return {"device": self._device}

    def start(self, task: Task) -> None:
        if len(self._running) >= self._slots or task.number in self._running:
            raise RuntimeError(f"trial {task.number} is running, or no slot of {self._slots} is free")
        self._schedule(task.number, self._clock(), self._messages_of(task.config))

    def devices_of(self, number: int) -> tuple[str, ...]:
        del number  # nothing trains
        return ()

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        message = self._next(timeout_seconds)
        return [] if message is None else [message]

    def preempt(self, number: int) -> None:
        if number in self._running:
            self._schedule(number, self._clock(), iter([(0.0, Ending(outcome="cancelled", cause=LEFT))]))

    def stop(self, number: int) -> None:
        self._running.pop(number, None)

    def close(self) -> None:
        self._running.clear()

    def _schedule(self, number: int, began: float, rest: Iterator[TimedMessage]) -> None:
        self._running[number] = rest
        seconds, message = next(rest)
        heapq.heappush(self._order, _Due(began + seconds, next(self._count), number, message, began, rest))

    def _next(self, timeout_seconds: float) -> tuple[int, Message] | None:
        while self._order and self._running.get(self._order[0].number) is not self._order[0].rest:
            heapq.heappop(self._order)
        until = self._clock() + timeout_seconds
        if not self._order:
            return None
        if self._order[0].seconds > until:
            self._clock.advance_to(until)
            return None
        due = heapq.heappop(self._order)
        self._clock.advance_to(due.seconds)
        if isinstance(due.message, Ending):
            self.stop(due.number)
        else:
            self._schedule(due.number, due.began, due.rest)
        return due.number, due.message


def schedule_messages(trial: ReusableTrial) -> list[TimedMessage]:
    """The messages of a recorded trial with their seconds after its start.

    A progress message with memory and quality flags comes before the first step; each evaluation after the time before
    the first step, the training until then, and its share of the remaining time; the ending after ``total_seconds``.
    """
    measured, curve = trial.ending.measurements, trial.evaluations
    before = float(sum(measured.get(name, 0.0) for name in _BEFORE))
    trained = float(measured.get("train_seconds", curve[-1].train_seconds if curve else 0.0))
    total = max(float(measured.get("total_seconds", 0.0)), before + trained)
    pause = (total - before - trained) / (len(curve) + 1)
    memory = measured.get("peak_memory_bytes")
    first = Progress(
        step=0, num_steps=int(measured.get("num_steps", 0)), epoch=0.0,
        images_per_second=float(measured.get("images_per_second", 0.0)),
        peak_memory_bytes=None if memory is None else int(memory), quality_flags=trial.ending.quality_flags,
    )  # fmt: skip
    messages: list[TimedMessage] = [(before, first)]
    for index, evaluation in enumerate(curve, 1):
        messages.append((min(before + evaluation.train_seconds + pause * index, total), evaluation))
    return [*messages, (total, trial.ending)]


# ---------------------------------------------------------------------- our search


@final
class GridSampler(Sampler):
    """Another sampler's proposals, each moved to the nearest recorded point that has not been tried. It estimates no
    gain, so that a replayed search never ends early: its whole course is compared."""

    def __init__(self, inner: Sampler, table: RecordedTable) -> None:
        self._inner = inner
        self._left = dict.fromkeys(table.points)
        self._space = table.space

    def propose(self, index: int) -> dict[str, Any] | None:
        values = self._inner.propose(index) if self._left else None
        if values is None:
            return None
        proposed = tuple(values[path] for path in self._space)
        point = (
            proposed if proposed in self._left else min(self._left, key=lambda other: self._distance(proposed, other))
        )
        del self._left[point]
        return dict(zip(self._space, point, strict=True))

    def learn(self, record: TrialRecord) -> None:
        self._inner.learn(record)

    def _distance(self, one: Point, other: Point) -> float:
        pairs = zip(self._space.values(), one, other, strict=True)
        return sum(_distance(parameter, a, b) for parameter, a, b in pairs)


def _distance(parameter: Parameter, one: Scalar, other: Scalar) -> float:
    # in shares of the range; two names are as far from each other as any two
    is_number = isinstance(one, int | float) and not isinstance(one, bool)
    return abs(parameter.share(one) - parameter.share(other)) if is_number else float(one != other)


def search_ours(table: RecordedTable, seed: int) -> Iterator[Searched]:
    confirm = {"max_configurations": 0, "seeds": 0}
    return iter(replay_search(table, table.make_study(seed, confirm=confirm, sampler="cost_aware", pruner="front")))


def replay_search(table: RecordedTable, spec: StudySpec) -> list[Searched]:
    """The search trials of ``spec``, a study over the table's space, in the order of their ends."""
    clock, searched = SimulatedClock(), list[Searched]()
    device = str(table.frames.trials["device"].iloc[0])
    executor = ReplayingExecutor(lambda config: iter(schedule_messages(table.training(config))), clock, device)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(_opened(spec))
        tuner = Tuner(spec, store, executor, _plan(table, clock))
        for event in stack.enter_context(contextlib.closing(tuner.run())):
            if isinstance(event, TrialEnded) and event.record.phase == "search":
                searched.append(Searched(event.record, clock()))
    return searched


@contextlib.contextmanager
def _opened(spec: StudySpec) -> Iterator[Store]:
    # in memory where possible, because these records are not kept
    place = str(_MEMORY) if os.access(_MEMORY, os.W_OK) else None
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sweep-replay-", dir=place)))
        store = stack.enter_context(contextlib.closing(open_store(folder / "study.sqlite", create=True)))
        store.create_study(spec)
        yield store


def _plan(table: RecordedTable, clock: SimulatedClock) -> RunPlan:
    def sampler(spec: StudySpec, records: Sequence[TrialRecord]) -> Sampler:
        return GridSampler(make_sampler(spec, records), table)

    return RunPlan(key_of=lambda config: config.model_dump_json(), clock=clock, make_sampler=sampler, device="cpu")


# ---------------------------------------------------------------------- peers


def search_with(make: Callable[[RecordedTable, int], Sampler]) -> Order:
    """A search by a sampler that is made for a table and a seed, without pruning."""

    def order(table: RecordedTable, seed: int) -> Iterator[Searched]:
        study = table.make_study(seed, sampler="random")
        moved, spent = GridSampler(make(table, seed), table), 0.0
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

    def __init__(self, table: RecordedTable, sampler: BaseSampler) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._table = table
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

    def __init__(self, table: RecordedTable, seed: int) -> None:
        torch.set_num_threads(1)
        self._table, self._seed = table, seed
        space, points = table.space, table.points
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
        point = self._table.points[self._left.pop(place)]
        return dict(zip(self._table.space, point, strict=True))

    def learn(self, record: TrialRecord) -> None:
        if record.outcome == "complete":
            names = self._table.spec.objectives
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
