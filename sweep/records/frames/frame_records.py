"""From frames to the objects that the store returns: trials and their learning curves."""

from collections import defaultdict

import pandas as pd

from sweep.records.columns import EVALUATION_KINDS
from sweep.records.frames.frame_files import cells_of
from sweep.records.messages import Evaluation
from sweep.records.store.reading import make_evaluation, records_of_columns
from sweep.records.trial_record import TrialRecord


def records_of_frame(trials: pd.DataFrame) -> list[TrialRecord]:
    """The rows of a ``trials`` frame in their order."""
    return records_of_columns({str(name): cells_of(trials[name]) for name in trials})


def curves_of_frame(evaluations: pd.DataFrame) -> dict[tuple[str, int], tuple[Evaluation, ...]]:
    """The learning curve of each trial by study and number, in the order of the frame."""
    curves: dict[tuple[str, int], list[Evaluation]] = defaultdict(list)
    columns = [cells_of(evaluations[name]) for name in EVALUATION_KINDS]
    keys = zip(evaluations["study"], evaluations["number"], strict=True)
    for (study, number), row in zip(keys, zip(*columns, strict=True), strict=True):
        curves[study, int(number)].append(make_evaluation(dict(zip(EVALUATION_KINDS, row, strict=True))))
    return {key: tuple(curve) for key, curve in curves.items()}
