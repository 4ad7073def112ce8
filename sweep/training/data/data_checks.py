"""Refuses a configuration whose data, weights, precision or norm is not there, before it runs. Imports no torch."""

import hashlib
from collections.abc import Callable
from pathlib import Path

from sweep.config.errors import InputError
from sweep.config.recipe_sections import PrecisionSection
from sweep.config.study import StudySpec
from sweep.config.tables.datasets import DATASETS
from sweep.config.trial_config import TrialConfig
from sweep.records.data_summary import DataSummary
from sweep.records.messages import ExpectedData
from sweep.training.data.folders.inspection import OnProgress
from sweep.training.data.summaries import look_at_data


def check_data(
    config: TrialConfig, on_progress: OnProgress | None = None, *, may_download: bool = False
) -> DataSummary:
    """What the data set of ``config`` holds; see :func:`sweep.training.data.summaries.look_at_data`.

    Raises:
        InputError: the data, or the weights to start from, cannot be used.
    """
    _check_weights(config.model.weights)
    return look_at_data(config.data, on_progress, may_download=may_download)


def check_study_data(
    spec: StudySpec, on_progress: OnProgress | None = None, *, may_download: bool = False
) -> DataSummary:
    """What the data set of the study holds; raises ``InputError`` where it is missing or cannot be used."""
    anywhere = next(spec.corners())
    found = [
        check_data(config, on_progress, may_download=may_download)
        for config in {c.data: c for c in (spec.config(anywhere | values) for values in spec.corners("data"))}.values()
    ]
    return found[0]  # the images are the same for all configurations of a study


def expect_data(spec: StudySpec, data: DataSummary) -> Callable[[TrialConfig], ExpectedData | None]:
    """What a trial of ``spec`` must read, by its configuration, where ``data`` was counted for the study."""
    entry = DATASETS[data.name]
    known = make_expected_data(data)
    looked_at = spec.config(next(spec.corners())).data
    # a load function may make other pixels for another section; a digest of the files or of the entry does not
    is_of_pixels = entry.summarize is None and entry.digest is None
    return lambda config: None if is_of_pixels and config.data != looked_at else known


def make_expected_data(data: DataSummary) -> ExpectedData | None:
    """What a trial must read of the set that was counted as ``data``; None where that is not known."""
    return ExpectedData(data.digest, sum(data.sizes.values())) if data.digest else None


def check_precision(section: PrecisionSection, device_type: str) -> None:
    """Raises ``InputError`` for a precision that a ``device_type`` (cpu, cuda) does not have."""
    if device_type == "cuda":
        return
    if section.dtype == "tf32":
        raise InputError("precision.dtype = 'tf32' is a number format of NVIDIA GPUs; on a CPU use fp32 or bf16.")
    if section.cuda_graphs:
        raise InputError("precision.cuda_graphs = true requires an NVIDIA GPU; on a CPU leave it out.")


def check_norm(config: TrialConfig, device_type: str) -> None:
    """Raises ``InputError`` for a norm over all ranks on a ``device_type`` (cpu, cuda) for which torch has none."""
    if config.model.norm == "sync" and config.distributed.world_size > 1 and device_type != "cuda":
        raise InputError(
            "model.norm = 'sync' over several ranks requires NVIDIA GPUs; on a CPU use 'batch' or 'ghost', whose "
            "statistics are of a rank's own micro batch."
        )


def make_inputs_digest(config: TrialConfig, data_digest: str) -> str:
    """What identifies the images, whose digest is ``data_digest``, and the weights to start from: equal digests, equal
    content."""
    parts = [config.data.name, data_digest]
    if config.model.weights is not None:
        _check_weights(config.model.weights)
        with Path(config.model.weights).open("rb") as file:
            parts.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _check_weights(path: str | None) -> None:
    if path is not None and not Path(path).is_file():
        raise InputError(f"model.weights = {path!r} is not a file; give the path of a .safetensors or torch file.")
