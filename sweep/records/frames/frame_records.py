"""From frames to the objects that the store returns: trials and their learning curves."""

import math
from collections import defaultdict
from typing import Any

import pandas as pd

from sweep.records.columns import CONFIG_COLUMNS, EVALUATION_KINDS, METRIC_KINDS, OPTIONAL_OF_EVALUATION
from sweep.records.frames.frame_files import cells_of
from sweep.records.messages import Evaluation
from sweep.records.trial_record import TrialRecord

Cells = dict[str, list[Any]]


def records_of_frame(trials: pd.DataFrame) -> list[TrialRecord]:
    """The rows of a ``trials`` frame in their order."""
    cells: Cells = {str(name): cells_of(trials[name]) for name in trials}
    return [_record(cells, row) for row in range(len(trials))]


def _record(cells: Cells, row: int) -> TrialRecord:
    measured = {name: cells[name][row] for name in METRIC_KINDS if name in cells}
    return TrialRecord(
        number=cells["number"][row],
        phase=cells["phase"][row],
        values={column.path: column.from_cell(cells[column.name][row]) for column in CONFIG_COLUMNS},
        outcome=cells["outcome"][row],
        measurements={name: value for name, value in measured.items() if value is not None},
        trial_key=cells["trial_key"][row],
        reused_from=cells["reused_from"][row],
        device=cells["device"][row],
        quality_flags=tuple(filter(None, cells["quality_flags"][row].split(","))),
        error=cells["error"][row],
    )


def curves_of_frame(evaluations: pd.DataFrame) -> dict[tuple[str, int], tuple[Evaluation, ...]]:
    """The learning curve of each trial by study and number, in the order of the frame."""
    names = list(EVALUATION_KINDS)
    columns = [cells_of(evaluations[name]) for name in names]
    curves: dict[tuple[str, int], list[Evaluation]] = defaultdict(list)
    keys = zip(evaluations["study"], evaluations["number"], strict=True)
    for (study, number), row in zip(keys, zip(*columns, strict=True), strict=True):
        cells = dict(zip(names, row, strict=True))
        given = {name: cell for name, cell in cells.items() if cell is not None or name in OPTIONAL_OF_EVALUATION}
        missing: Any = dict.fromkeys(cells.keys() - given.keys(), math.nan)
        curves[study, int(number)].append(Evaluation(**given, **missing))
    return {key: tuple(curve) for key, curve in curves.items()}
