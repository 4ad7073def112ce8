"""Writes the trials of a study for another program: all of them into a new folder, or nothing."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from sweep.config.errors import InputError, describe_unknown
from sweep.foreign.own_runs import RunContents, list_run_contents
from sweep.foreign.targets.mlflow_target import DATABASE, write_mlflow
from sweep.foreign.targets.tensorboard_target import write_tensorboard
from sweep.foreign.targets.wandb_target import write_wandb
from sweep.records.frames.study_frames import Frames

_Write = Callable[[Sequence[RunContents], Path, Path], None]
_TARGETS: dict[str, tuple[_Write, str]] = {
    "mlflow": (write_mlflow, f"mlflow ui --backend-store-uri sqlite:///FOLDER/{DATABASE}"),
    "tensorboard": (write_tensorboard, "tensorboard --logdir FOLDER"),
    "wandb-offline": (write_wandb, "wandb sync FOLDER/wandb/offline-run-*"),
}
FOREIGN_FORMATS = tuple(_TARGETS)


def export_runs(frames: Frames, folder: Path, format: str) -> str:
    """Writes a run for each trial of ``frames``, whose evaluations are loaded, into ``folder``; returns the command of
    the other program that opens it.

    Raises:
        InputError: unknown format, its package is not installed, or the folder holds files or cannot be written.
    """
    if format not in _TARGETS:
        raise InputError(describe_unknown("format", format, FOREIGN_FORMATS))
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: it holds files; give a new or empty folder.")
    write, opening = _TARGETS[format]
    draft = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
        write(list(list_run_contents(frames)), draft, folder)
        draft.replace(folder)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror or error}.") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return opening.replace("FOLDER", str(folder))
