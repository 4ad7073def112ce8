"""Refuses a configuration whose data, weights, precision or norm is not there, before it runs. Imports no torch."""

import hashlib
from pathlib import Path

from sweep.config.errors import InputError
from sweep.config.sections import PrecisionSection
from sweep.config.trial_config import DataSection, TrialConfig
from sweep.training.data.known_sets import KNOWN_SETS, digits_file, how_to_get, is_obtainable

_NUM_DIGITS_TRAIN = 1300  # of 1,797, after the validation and test splits are held out


def check_data(config: TrialConfig) -> None:
    """Looks whether the data of ``config`` can be read; sets of a plug-in are not looked at.

    Raises:
        InputError: for a missing root, an empty folder, missing files without a network, too large a subset, or
            weights to start from that are not there.
    """
    section = config.data
    _check_weights(config.model.weights)
    _check_image_size(section)
    if section.name in KNOWN_SETS:
        _check_known(section)
    elif section.name == "imagefolder":
        _check_folder(section)
    elif section.name == "digits":
        digits_file()
        _check_subset(section, _NUM_DIGITS_TRAIN)


def check_precision(section: PrecisionSection, device_type: str) -> None:
    """Raises ``InputError`` for a precision that a ``device_type`` (cpu, cuda) does not have."""
    if device_type == "cuda":
        return
    if section.dtype == "tf32":
        raise InputError("precision.dtype = 'tf32' is a number format of NVIDIA GPUs; on a CPU use fp32 or bf16.")
    if section.cuda_graphs:
        raise InputError("precision.cuda_graphs = true wants an NVIDIA GPU; on a CPU leave it out.")


def check_norm(config: TrialConfig, device_type: str) -> None:
    """Raises ``InputError`` for a norm over all ranks on a ``device_type`` (cpu, cuda) for which torch has none."""
    if config.model.norm == "sync" and config.distributed.world_size > 1 and device_type != "cuda":
        raise InputError(
            "model.norm = 'sync' over several ranks is a matter of GPUs; on a CPU use 'batch' or 'ghost', whose "
            "statistics are of a rank's own micro batch."
        )


def data_digest(config: TrialConfig) -> str:
    """What identifies the images, and the weights to start from, of ``config``: equal digests, equal content.

    Raises:
        InputError: as :func:`check_data`, for an image folder that is missing or empty.
    """
    section = config.data
    parts = [section.name, str(section.image_size), str(section.subset)]
    if section.name in KNOWN_SETS:
        parts.append(KNOWN_SETS[section.name].checksum)
    elif section.name == "imagefolder":
        from sweep.training.data.folder import digest_folder

        parts.append(digest_folder(section))
    elif section.name == "digits":
        parts.append(hashlib.sha256(digits_file().read_bytes()).hexdigest())
    elif section.name not in {"synthetic", "noisy_quadratic"}:
        parts.append(section.root)  # a plug-in's: only its name and root are known
    if config.model.weights is not None:
        _check_weights(config.model.weights)
        with Path(config.model.weights).open("rb") as file:
            parts.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _check_weights(path: str | None) -> None:
    if path is not None and not Path(path).is_file():
        raise InputError(f"model.weights = {path!r} is no file; give the path of a .safetensors or torch file.")


def _check_folder(section: DataSection) -> None:
    from sweep.training.data.folder import list_folder
    from sweep.training.data.splits import count_train

    parts, _ = list_folder(section)
    if section.subset is not None:
        labels = parts["train"].labels
        _check_subset(section, count_train(labels, has_validation="val" in parts, has_test="test" in parts))


def _check_known(section: DataSection) -> None:
    _check_subset(section, KNOWN_SETS[section.name].num_train)
    if not is_obtainable(section):
        raise InputError(how_to_get(section))


def _check_subset(section: DataSection, num_train: int) -> None:
    if section.subset is not None and section.subset > num_train:
        raise InputError(
            f"data.subset = {section.subset}, but the train split of {section.name} has {num_train} images; "
            "give that many or fewer, or leave data.subset out."
        )


def _check_image_size(section: DataSection) -> None:
    fixed = section.name in KNOWN_SETS or section.name == "digits"
    if fixed and section.image_size is not None:
        raise InputError(
            f"data.image_size = {section.image_size} holds for imagefolder and synthetic; {section.name} has its own "
            "size, so leave data.image_size out."
        )
