"""Checks of what is read from a file or a database, which anybody may have written: its size and its contents.

The limits are above what any study records, and below what exhausts a machine.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from sweep.config.errors import InputError, describe_unknown, shorten_text
from sweep.records.correct_images import decode_correct
from sweep.records.frames.study_frames import Frames
from sweep.records.messages import OUTCOMES, Phase
from sweep.records.study_inputs import StudyInputs

MAX_ROWS = 10_000_000
MAX_CELLS = 150_000_000  # a million trials, or the curves of as many
MAX_CELL_CHARACTERS = 8_000_000  # the counts of 50,000 classes with long names
MAX_FILE_BYTES = 2**30  # unpacked; 100,000 trials with their curves are a fifth of it
_MAX_DEPTH = 10  # of an environment; ours has two levels


def check_frames(frames: Frames, where: str) -> None:
    """Raises ``InputError`` for an outcome or phase that is none, a fraction that is none, an environment that is no
    JSON object, inputs of a study that are none, or images that were got right and cannot be read."""
    _check_names(frames.trials, "outcome", OUTCOMES, where)
    _check_names(frames.trials, "phase", get_args(Phase), where)
    for frame in (frames.trials, frames.evaluations):
        if frame is not None and not frame["val_accuracy"].dropna().between(0.0, 1.0).all():
            raise InputError(f"{where}: a val_accuracy is no fraction; the records are damaged.")
    for content in frames.environment_rows["environment"]:
        _check_environment(content, where)
    for text in frames.studies["inputs"]:
        StudyInputs.from_json(text, where)
    if frames.correct_images is not None:
        _check_correct_images(frames.correct_images["correct_images"], where)


def _check_correct_images(texts: Iterable[str], where: str) -> None:
    try:
        for text in texts:
            decode_correct(text)
    except ValueError as error:
        raise InputError(f"{where}: correct_images: {error}.") from None


def _check_names(trials: pd.DataFrame, column: str, known: tuple[str, ...], where: str) -> None:
    unknown = set(trials[column].dropna().unique()) - set(known)
    if unknown:
        raise InputError(f"{where}: {describe_unknown(column, shorten_text(min(unknown)), known)}")


def _check_environment(content: str, where: str) -> None:
    try:
        environment = json.loads(content)
    except (ValueError, RecursionError):
        environment = None
    if not isinstance(environment, dict) or not _is_shallow(environment, _MAX_DEPTH):
        raise InputError(f"{where}: an environment is no JSON object of a few levels.")


def _is_shallow(content: dict[str, Any], levels: int) -> bool:
    inner = (part for part in content.values() if isinstance(part, dict))
    return levels > 0 and all(_is_shallow(part, levels - 1) for part in inner)


def refuse_oversized(path: Path) -> None:
    """Raises ``InputError`` for what is no file, or too large a one to be a table of trials."""
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: it is no file.")
    if path.is_file() and path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path}: {path.stat().st_size} bytes, at most {MAX_FILE_BYTES} are taken.")


def refuse_too_many(path: Path, num_rows: int, num_columns: int) -> None:
    """Raises ``InputError`` for more rows or cells than are taken."""
    if num_rows > MAX_ROWS or num_rows * num_columns > MAX_CELLS:
        raise InputError(f"{path}: more than {MAX_ROWS} rows, or more than {MAX_CELLS} cells.")
