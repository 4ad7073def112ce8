"""Searches on the shipped tables: ours by the replay, Optuna as its user would run it, both on the same clock.

A pair is one seed on one table, the figure of an arm is searches an hour of the clock, so that the ratio of two is
how many times sooner the first one arrives. An arm that never arrives has taken at least what it spent.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from benchmarks.harness import Arms, Benchmark, Setting
from benchmarks.replay import Point, RecordedTable, ReplayedSearch, make_replay_study, read_table, replay_search
from benchmarks.table_design import LOOKED_AT
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter
from sweep.records.messages import Ending

OURS: dict[str, Any] = {"sampler": "cost_aware", "pruner": "front"}
TARGET = 0.99  # of the table's hypervolume
NUM_SEEDS = 20
TABLES = Path(__file__).parent / "tables"
_MOST_ASKS = 20  # times the number of points
Seconds = Callable[[RecordedTable, int], float]  # of one search with that seed


def shipped_tables(looked_at: bool = False) -> list[RecordedTable]:
    """The tables under ``benchmarks/tables`` that no constant of a sampler was chosen on; with ``looked_at`` the
    others, which are no evidence for the samplers.

    Raises:
        InputError: there is none.
    """
    folders = _folders(looked_at)
    if not folders:
        raise InputError(f"{TABLES}: no table is there; python -m benchmarks.record_table makes one.")
    return [_read(folder) for folder in folders]


def describe_tables(tables: Sequence[RecordedTable]) -> dict[str, Any]:
    """What a result holds about the tables that it was measured on."""
    sizes = (f"{len(table.points)} configurations, {table.on_front.sum()} on the front" for table in tables)
    described = [f"{table.spec.name}: {size}" for table, size in zip(tables, sizes, strict=True)]
    return {"tables": described, "constants_chosen_on": LOOKED_AT}


@cache
def _read(folder: Path) -> RecordedTable:
    return read_table(folder)


def against(name: str, question: str, target: float, theirs: Seconds) -> Benchmark:
    """The benchmark of our way to search and of another."""

    @contextmanager
    def prepare(setting: Setting) -> Iterator[Arms]:
        tables = shipped_tables()

        def figure(seconds: Seconds, pair: int) -> float:
            if pair < 0:  # nothing warms up on a simulated clock
                return 1.0
            table = tables[pair % len(tables)]
            return 3600.0 / seconds(table, setting.pick(pair // len(tables), 0))

        yield Arms(
            lambda pair: figure(our_seconds, pair),
            lambda pair: figure(theirs, pair),
            facts={
                **describe_tables(tables),
                "share_of_hypervolume": TARGET,
                "ours": OURS,
                "seeds": NUM_SEEDS,
            },
        )

    return Benchmark(name, question, "searches/hour", "higher", target, prepare, NUM_SEEDS * max(len(_folders()), 1))


def _folders(looked_at: bool = False) -> list[Path]:
    folders = sorted(path.parent for path in TABLES.glob("*/export.json"))
    return [folder for folder in folders if (folder.name in LOOKED_AT) == looked_at]


def our_search(table: RecordedTable, seed: int, until: float | None = TARGET, **changes: Any) -> ReplayedSearch:
    """One replayed search of the whole table, without a confirm phase unless ``changes`` ask for one."""
    plain = {"trials": len(table.points), "confirm": {"max_configurations": 0, "seeds": 0}, **OURS, **changes}
    return replay_search(table, make_replay_study(table, "benchmark", seed=seed, **plain), until)


def our_seconds(table: RecordedTable, seed: int) -> float:
    """Until our search has the share ``TARGET``."""
    return our_search(table, seed).seconds_to(TARGET)


def optuna_seconds(make: Callable[[int], BaseSampler]) -> Seconds:
    """An Optuna study without pruning, which Optuna does not have for several objectives.

    Numbers are searched by their rank on the grid and names as categories, as its user would do it. A proposal that
    was trained already is answered from memory and costs nothing.
    """

    def seconds(table: RecordedTable, seed: int) -> float:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        directions = [METRICS[name].direction or "minimize" for name in table.spec.objectives]
        study = optuna.create_study(directions=directions, sampler=make(seed))
        ranks = {path: make_distribution(parameter) for path, parameter in table.space.items()}
        rows = {point: row for row, point in enumerate(table.points)}
        known: dict[Point, Ending] = {}
        spent = 0.0
        for _ in range(_MOST_ASKS * len(rows)):
            trial = study.ask(ranks)
            point = tuple(value_of(parameter, trial.params[path]) for path, parameter in table.space.items())
            if point in rows and point not in known:
                values = dict(zip(table.space, point, strict=True))
                known[point] = table.training(table.spec.config(values, seed)).ending
                spent += known[point].measurements["total_seconds"]
            tell_ending(study, trial, known.get(point), table)
            if table.share([rows[point] for point in known]) >= TARGET or len(known) == len(rows):
                break
        return spent

    return seconds


def tell_ending(study: optuna.Study, trial: optuna.Trial, ending: Ending | None, table: RecordedTable) -> None:
    """Tells the objectives of a training; it has failed where it is not complete or was never recorded (None)."""
    if ending is None or ending.outcome != "complete":
        study.tell(trial, state=TrialState.FAIL)
        return
    study.tell(trial, [ending.measurements[name] for name in table.spec.objectives])


def make_distribution(parameter: Parameter) -> BaseDistribution:
    """The ranks of the values of an ordered parameter, otherwise its values as categories."""
    values = parameter.grid_values or ()
    return IntDistribution(0, len(values) - 1) if is_ordered(parameter) else CategoricalDistribution(tuple(values))


def value_of(parameter: Parameter, told: Any) -> Any:
    """The value of what was drawn from :func:`make_distribution`."""
    return (parameter.grid_values or ())[told] if is_ordered(parameter) else told


def is_ordered(parameter: Parameter) -> bool:
    """Whether its values are numbers in rising order."""
    values = parameter.grid_values or ()
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    return len(numbers) == len(values) and all(low < high for low, high in itertools.pairwise(numbers))
