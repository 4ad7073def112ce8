"""One trial without a study: no record is kept, the ending is handed back."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from sweep.config.errors import InputError
from sweep.config.trial_config import TrialConfig
from sweep.executors.openmp import limit_spinning
from sweep.executors.table import ExecutorSettings, check_executor, check_ranks, device_type
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.training.data.data_checks import check_data, check_norm, check_precision
from sweep.training.supervisor_link import LIFELINE


def train_one(
    config: TrialConfig,
    *,
    device: str = "auto",
    plugin: str | None = None,
    save: Path | None = None,
    hear: Callable[[Evaluation], None] | None = None,
) -> Ending:
    """Trains ``config`` in this process; ``hear`` gets every evaluation.

    ``save`` is a file for the trained weights (safetensors).

    Raises:
        InputError: the data is missing, or ``save`` cannot be written.
    """
    settings = ExecutorSettings(device=device)
    check_executor(settings)
    check_ranks(settings, config.distributed.world_size)
    check_precision(config.precision, device_type(settings))
    check_norm(config, device_type(settings))
    check_data(config)
    if save is not None:
        _check_writable(save)
    limit_spinning()
    from sweep.training.ranks.launcher import launch_trial

    weights_path = str(save) if save is not None else None
    task = TrialTask(number=0, config=config, device=device, plugin=plugin, weights_path=weights_path)
    try:
        for message in launch_trial(task):
            if isinstance(message, Evaluation) and hear:
                hear(message)
            if isinstance(message, Ending):
                return message
    finally:
        LIFELINE.forget()  # what this training was asked
    raise RuntimeError("the trial ended without an ending")


def _check_writable(file: Path) -> None:
    # found out now rather than when the weights are there
    try:
        with tempfile.TemporaryFile(dir=file.absolute().parent):
            pass
    except OSError as error:
        raise InputError(f"--save {file}: the folder cannot be written: {error.strerror}.") from None
    if file.is_dir():
        raise InputError(f"--save {file}: that is a folder; name a file in it.")


def train_trial(config: TrialConfig, *, device: str = "auto") -> Ending:
    """Trains one configuration and returns how it ended, with what was measured."""
    return train_one(config, device=device)
