"""Refuses a configuration whose data, weights, precision or norm is not there, before it runs. Imports no torch."""

import hashlib
import uuid
from pathlib import Path

from sweep.config.data_sections import DataSection
from sweep.config.errors import InputError
from sweep.config.recipe_sections import PrecisionSection
from sweep.config.tables.datasets import DATASETS
from sweep.config.tables.entries import resolve
from sweep.config.trial_config import TrialConfig
from sweep.training.data.splits import check_subset


def check_data(config: TrialConfig) -> None:
    """Refuses data that cannot be read, as far as the entry of the data set can tell.

    Raises:
        InputError: for a missing root, an empty folder, missing files without a network, too large a subset, or
            weights to start from that are not there.
    """
    section, entry = config.data, DATASETS[config.data.name]
    _check_weights(config.model.weights)
    if entry.facts is not None:
        _check_image_size(section)
        check_subset(section, entry.facts.num_train)
    if entry.check is not None:
        resolve(entry.check)(section)


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


def data_digest(config: TrialConfig) -> str:
    """What identifies the images, and the weights to start from, of ``config``: equal digests, equal content.

    Where the entry of the data set has no digest, its images may have changed since: no two digests are then equal.

    Raises:
        InputError: as :func:`check_data`, for an image folder that is missing or empty.
    """
    section, digest = config.data, DATASETS[config.data.name].digest
    images = resolve(digest)(section) if digest else uuid.uuid4().hex
    parts = [section.name, str(section.image_size), str(section.subset), images]
    if config.model.weights is not None:
        _check_weights(config.model.weights)
        with Path(config.model.weights).open("rb") as file:
            parts.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _check_weights(path: str | None) -> None:
    if path is not None and not Path(path).is_file():
        raise InputError(f"model.weights = {path!r} is not a file; give the path of a .safetensors or torch file.")


def _check_image_size(section: DataSection) -> None:
    if section.image_size is not None:
        raise InputError(
            f"data.image_size = {section.image_size} holds for imagefolder and synthetic; {section.name} has its own "
            "size, so leave data.image_size out."
        )
