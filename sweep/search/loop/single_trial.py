"""One trial without a study: nothing is recorded, the ending is returned."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from sweep.config.errors import InputError
from sweep.config.trial_config import TrialConfig
from sweep.executors.openmp import limit_spinning
from sweep.executors.table import ExecutorSettings
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.search.loop.checks import check_config
from sweep.training.data.study_data import make_expected_data
from sweep.training.supervisor_link import SUPERVISOR_LINK


def train_trial(
    config: TrialConfig,
    *,
    device: str = "auto",
    plugin: str | None = None,
    save: Path | None = None,
    on_evaluation: Callable[[Evaluation], None] | None = None,
) -> Ending:
    """Trains one configuration in this process and returns how it ended, with what was measured.

    ``on_evaluation`` is called with every evaluation; ``save`` is a file for the trained weights (safetensors).

    Raises:
        InputError: the device or the data is missing, or ``save`` cannot be written.
    """
    data = check_config(config, ExecutorSettings(device=device))
    if save is not None:
        _check_writable(save)
    limit_spinning()
    from sweep.training.ranks.launcher import launch_trial  # imports torch, which takes seconds

    weights_path = str(save) if save is not None else None
    task = TrialTask(
        number=0,
        config=config,
        device=device,
        plugin=plugin,
        weights_path=weights_path,
        expected_data=make_expected_data(data),
    )
    try:
        for message in launch_trial(task):
            if isinstance(message, Evaluation) and on_evaluation:
                on_evaluation(message)
            if isinstance(message, Ending):
                return message
    finally:
        SUPERVISOR_LINK.reset()  # a request to leave was for this training only
    raise RuntimeError("the trial ended without an ending")


def _check_writable(file: Path) -> None:
    # before the training rather than after it
    try:
        with tempfile.TemporaryFile(dir=file.absolute().parent):
            pass
    except OSError as error:
        raise InputError(f"--save {file}: the folder cannot be written: {error.strerror}.") from None
    if file.is_dir():
        raise InputError(f"--save {file}: that is a folder; name a file in it.")
