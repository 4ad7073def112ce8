"""Searches on the shipped tables: ours by the replay, Optuna as its user would run it, both on the same clock.

A pair is one seed on one table, the figure of an arm is searches an hour of the clock, so that the ratio of two is
how many times sooner the first one arrives. An arm that never arrives has taken at least what it spent.
"""

import itertools
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, IntDistribution
from optuna.samplers import BaseSampler, NSGAIISampler, TPESampler
from optuna.trial import TrialState

from benchmarks.harness import MIN_PAIRS, TABLES, Arms, Setting, benchmark
from benchmarks.replay import (
    Point,
    RecordedTable,
    ReplayedSearch,
    make_replay_study,
    read_table,
    replay_search,
    schedule_messages,
)
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.space import Parameter
from sweep.records.messages import Ending, Evaluation

# Tables that were looked at while the search or the answer was changed: they say nothing for either.
LOOKED_AT = ("digits", "cifar10", "digits_crops", "digits_vit", "prototypes", "shapes", "cifar10_three")
OURS: dict[str, Any] = {"sampler": "cost_aware", "pruner": "front"}
NO_CONFIRM = {"max_configurations": 0, "seeds": 0}
TARGET = 0.99  # of the table's hypervolume
NUM_SEEDS = 20
PEER_PYTHON = Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"


def shipped_tables(*, looked_at: bool = False) -> list[RecordedTable]:
    """The tables under ``benchmarks/tables`` that no constant of a sampler was chosen on; with ``looked_at`` the
    others.

    Raises:
        InputError: there is none.
    """
    folders = _list_folders(looked_at)
    if not folders:
        raise InputError(f"{TABLES}: no table is there; python -m benchmarks tables makes one.")
    return [_read(folder) for folder in folders]


def _list_folders(looked_at: bool = False) -> list[Path]:
    folders = sorted(path.parent for path in TABLES.glob("*/export.json"))
    return [folder for folder in folders if (folder.name in LOOKED_AT) == looked_at]


@cache
def _read(folder: Path) -> RecordedTable:
    return read_table(folder)


def describe_tables(tables: Sequence[RecordedTable]) -> dict[str, Any]:
    """What a result holds about the tables that it was measured on."""
    sizes = (f"{len(table.points)} configurations, {table.on_front.sum()} on the front" for table in tables)
    described = [f"{table.spec.name}: {size}" for table, size in zip(tables, sizes, strict=True)]
    return {"tables": described, "constants_chosen_on": LOOKED_AT}


# ---------------------------------------------------------------------- ours and Optuna


def our_search(table: RecordedTable, seed: int, until: float | None = TARGET, **changes: Any) -> ReplayedSearch:
    """One replayed search of the whole table, without a confirm phase unless ``changes`` ask for one."""
    plain = {"trials": len(table.points), "confirm": NO_CONFIRM, **OURS, **changes}
    return replay_search(table, make_replay_study(table, "benchmark", seed=seed, **plain), until)


def optuna_seconds(table: RecordedTable, sampler: BaseSampler, seed: int) -> float:
    """Until an Optuna study without pruning, which Optuna does not have for several objectives, has the share
    ``TARGET``. A proposal that was trained already is answered from memory and costs nothing."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=list_directions(table), sampler=sampler)
    distributions = {path: make_distribution(parameter) for path, parameter in table.space.items()}
    known: dict[Point, Ending] = {}
    spent = 0.0
    for _ in range(20 * len(table.points)):
        trial = study.ask(distributions)
        point = tuple(value_of(parameter, trial.params[path]) for path, parameter in table.space.items())
        if point in table.row_of and point not in known:
            values = dict(zip(table.space, point, strict=True))
            known[point] = table.training(table.spec.config(values, seed)).ending
            spent += known[point].measurements["total_seconds"]
        tell_ending(study, trial, known.get(point), table)
        if table.share([table.row_of[each] for each in known]) >= TARGET or len(known) == len(table.points):
            break
    return spent


def list_directions(table: RecordedTable) -> list[Literal["minimize", "maximize"]]:
    """The direction of each objective, for Optuna."""
    return [METRICS[name].direction or "minimize" for name in table.spec.objectives]


def tell_ending(study: optuna.Study, trial: optuna.Trial, ending: Ending | None, table: RecordedTable) -> None:
    """Tells the objectives of a training; it has failed where it is not complete or was never recorded (None)."""
    if ending is None or ending.outcome != "complete":
        study.tell(trial, state=TrialState.FAIL)
        return
    study.tell(trial, [ending.measurements[name] for name in table.spec.objectives])


def make_distribution(parameter: Parameter) -> BaseDistribution:
    """Numbers are searched by their rank on the grid and names as categories, as Optuna's user would do it."""
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


# ---------------------------------------------------------------------- Syne Tune's MO-ASHA


def moasha_seconds(table: RecordedTable, seed: int) -> float:
    """Until a search by MO-ASHA has the share ``TARGET``, or what it spent without. It runs in an environment of its
    own, because Syne Tune requires packages that do not fit beside the project.

    Raises:
        InputError: Syne Tune's environment is missing.
    """
    if not PEER_PYTHON.exists():
        raise InputError(f"{PEER_PYTHON} is missing; make bench-peers sets up the environment of Syne Tune.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        path.write_text(json.dumps(plain_table(table, seed)), encoding="utf-8")
        command = [str(PEER_PYTHON), str(Path(__file__).with_name("peer_moasha.py")), str(path), str(seed)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    progress = json.loads(said.splitlines()[-1])
    found: list[int] = []
    for seconds, row in progress:
        if row is not None:
            found.append(row)
        if table.share(found) >= TARGET:
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


def _compare(setting: Setting, theirs: Callable[[RecordedTable, int], float]) -> Arms:
    # our way to search and another; each returns the seconds of one search with a seed
    tables = shipped_tables()

    def figure(seconds: Callable[[RecordedTable, int], float], pair: int) -> float:
        if pair < 0:  # nothing warms up on a simulated clock
            return 1.0
        return 3600.0 / seconds(tables[pair % len(tables)], setting.pick(pair // len(tables), 0))

    about = {**describe_tables(tables), "share_of_hypervolume": TARGET, "ours": OURS, "seeds": NUM_SEEDS}
    return Arms(lambda pair: figure(our_seconds, pair), lambda pair: figure(theirs, pair), facts=about)


def our_seconds(table: RecordedTable, seed: int) -> float:
    """Until our search has the share ``TARGET``."""
    return our_search(table, seed).seconds_to(TARGET)


_NUM_PAIRS = NUM_SEEDS * max(len(_list_folders()), 1)
_QUESTION = "how many times the seconds of training does {} need until 99 % of the hypervolume?"
_UNIT = "searches/hour"


@benchmark("search_default", _QUESTION.format("Optuna's default"), _UNIT, "higher", 3.0, _NUM_PAIRS)
def against_default(setting: Setting) -> Iterator[Arms]:
    """Optuna's default sampler for several objectives."""
    yield _compare(setting, lambda table, seed: optuna_seconds(table, TPESampler(seed=seed), seed))


@benchmark("search_nsga2", _QUESTION.format("NSGA-II"), _UNIT, "higher", 5.0, _NUM_PAIRS)
def against_nsga2(setting: Setting) -> Iterator[Arms]:
    """Optuna's NSGA-II."""
    yield _compare(setting, lambda table, seed: optuna_seconds(table, NSGAIISampler(seed=seed), seed))


@benchmark("search_moasha", _QUESTION.format("Syne Tune's MO-ASHA"), _UNIT, "higher", 1.5, _NUM_PAIRS)
def against_moasha(setting: Setting) -> Iterator[Arms]:
    """Syne Tune's MO-ASHA."""
    yield _compare(setting, moasha_seconds)


@benchmark(
    "search_front",
    "in which share of searches is no configuration of the true front stopped?",
    "share of searches",
    "higher",
    0.95,
    MIN_PAIRS,
)
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
            search = our_search(table, seed, None, sampler="random")
            clean += not search.pruned_front
            wrong.extend(f"{table.spec.name}, seed {seed}: {point}" for point in search.pruned_front)
        return clean / (num_seeds * len(tables))

    about = {**describe_tables(tables), "stopped_wrongly": wrong, "searches_a_pair": num_seeds}
    yield Arms(ours, lambda _pair: 1.0, facts=about)
