"""One arm with one seed on one table: the seconds of training until its answer is right and settled.

After 8, 11, 16, 22, 32 ... trials, and after the last one, the search is confirmed by the product's rule
(:func:`sweep.search.seeds.rank_confirmations`) until the headline of the answer is settled or
the rule has nothing more to train. The first of these checkpoints at which the headline is settled, and right by the
table's means, is the arrival: its seconds are those of the search until then and of that confirming. The confirming of
earlier checkpoints is not counted, because a study would continue it. A checkpoint at which no right configuration was
trained to its end cannot be right and is not confirmed. A search that tries the whole grid without arriving has taken
infinitely long; what it spent is a lower bound.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.answer_orders import Order, Searched
from benchmarks.answer_table import AnswerTable
from sweep.analysis.answer import Limits
from sweep.analysis.candidates import BATCH_SIZE, choose_for, select_candidates
from sweep.analysis.comparable import select_comparable
from sweep.config.study import StudySpec
from sweep.records.trial_record import TrialRecord
from sweep.search.seeds import rank_confirmations

FRACTIONS = tuple(float(each) for each in np.round(np.arange(0.02, 0.501, 0.02), 2))  # of the grid's seconds
_FIRST_CHECKPOINT = 8


class Confirmed(NamedTuple):
    """``row`` is that of the named point, None where none is named; ``seconds`` and ``num_trainings`` of confirming."""

    is_settled: bool
    row: int | None
    seconds: float
    num_trainings: int


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A confirmed one. ``search_seconds`` are those until it."""

    num_trials: int
    search_seconds: float
    confirm_seconds: float
    num_confirmed: int
    is_settled: bool
    is_right: bool


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """One run. ``shares`` of the table's hypervolume at the ``FRACTIONS`` of the grid's seconds; the arrival is None
    where there was none, and ``spent_seconds`` are those until it or, without it, all."""

    table: str
    arm: str
    seed: int
    arrival: Checkpoint | None
    checkpoints: tuple[Checkpoint, ...]
    spent_seconds: float
    shares: tuple[float, ...]


def run_arm(table: AnswerTable, arm: str, order: Order, seed: int) -> RunFigures:
    """Searches until the arrival, and on to the last of the ``FRACTIONS``."""
    study = table.make_study(seed)
    searched: list[Searched] = []
    checkpoints: list[Checkpoint] = []
    for each, is_checkpoint in _mark_checkpoints(order(table, seed)):
        searched.append(each)
        is_arrived = bool(checkpoints) and _is_arrival(checkpoints[-1])
        if is_arrived and each.seconds > FRACTIONS[-1] * table.grid_seconds:
            break
        if is_checkpoint and not is_arrived and _is_possible(table, searched):
            checkpoints.append(_check(table, searched, study))
    arrival = checkpoints[-1] if checkpoints and _is_arrival(checkpoints[-1]) else None
    last = arrival or (checkpoints[-1] if checkpoints else None)
    confirming = last.confirm_seconds if last else 0.0
    return RunFigures(
        table=table.name,
        arm=arm,
        seed=seed,
        arrival=arrival,
        checkpoints=tuple(checkpoints),
        spent_seconds=(arrival.search_seconds if arrival else searched[-1].seconds) + confirming,
        shares=_measure_shares(table, searched),
    )


def _mark_checkpoints(trials: Iterator[Searched]) -> Iterator[tuple[Searched, bool]]:
    # each trial, and whether the search is confirmed after it; always after the last one
    previous, number = next(trials), 1
    for each in trials:
        yield previous, is_checkpoint(number)
        previous, number = each, number + 1
    yield previous, True


def is_checkpoint(num_trials: int) -> bool:
    """Whether it is 8 times a power of the root of 2, rounded down."""
    power = 2 * np.log2(max(num_trials, 1) / _FIRST_CHECKPOINT)
    return any(
        num_trials == int(_FIRST_CHECKPOINT * 2 ** (half / 2))
        for half in (np.floor(power), np.ceil(power))
        if half >= 0
    )


def _is_arrival(checkpoint: Checkpoint) -> bool:
    return checkpoint.is_settled and checkpoint.is_right


def _is_possible(table: AnswerTable, searched: Sequence[Searched]) -> bool:
    complete = (each.record for each in searched if each.record.outcome == "complete")
    return any(table.find_point(record) in table.right for record in complete)


def _check(table: AnswerTable, searched: Sequence[Searched], study: StudySpec) -> Checkpoint:
    confirmed = confirm_search(table, [each.record for each in searched], study)
    return Checkpoint(
        num_trials=len(searched),
        search_seconds=searched[-1].seconds,
        confirm_seconds=confirmed.seconds,
        num_confirmed=confirmed.num_trainings,
        is_settled=confirmed.is_settled,
        is_right=confirmed.row in table.right,
    )


def confirm_search(table: AnswerTable, searched: Sequence[TrialRecord], study: StudySpec) -> Confirmed:
    """Confirms until the headline is settled or nothing is left to train."""
    records, seconds = list(searched), 0.0
    while True:
        num_trainings = len(records) - len(searched)
        candidates = select_candidates(select_comparable(table.make_frames(records, study)), Limits())
        if candidates is None:
            return Confirmed(False, None, seconds, num_trainings)
        named = choose_for(candidates, BATCH_SIZE, "batch_size")
        due = [] if named.is_settled else rank_confirmations(candidates, records, study)
        if not due:
            row = None if named.number is None else table.find_point(records[named.number])
            return Confirmed(named.is_settled, row, seconds, num_trainings)
        records.append(table.train(due[0], len(records), "confirm"))
        seconds += records[-1].measurements["total_seconds"]


def _measure_shares(table: AnswerTable, searched: Sequence[Searched]) -> tuple[float, ...]:
    # of what was complete and has every objective, as the replay counts
    usable = [
        (each.seconds, row)
        for each in searched
        if each.record.outcome == "complete"
        and np.isfinite(table.recorded.means[row := table.find_point(each.record)]).all()
    ]
    limits = [fraction * table.grid_seconds for fraction in FRACTIONS]
    return tuple(table.recorded.share([row for seconds, row in usable if seconds <= limit]) for limit in limits)
