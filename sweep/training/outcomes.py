"""Exceptions as outcomes, causes and error texts of a trial."""

import traceback

import torch
from torch import distributed as dist

from sweep.config.errors import DeviceFullError, InputError
from sweep.records.messages import COLLECTIVE_FAILED, DATA_WORKER_LOST, DEVICE_FAILED, DEVICE_FULL, LEFT, Outcome

_MAX_ERROR_CHARACTERS = 4000
# Messages of allocators and libraries that raise something else than torch.OutOfMemoryError.
_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "defaultcpuallocator",
    "cublas_status_alloc_failed",
    "cudnn_status_alloc_failed",
    "failed to allocate",
)

# Messages of failures of the machine, not of the trial. After the listed errors of CUDA a process can no longer use the
# device. A failed assertion in a kernel is not listed, because the model or its labels are wrong then.
_MACHINE_TEXTS = {
    DATA_WORKER_LOST: ("dataloader worker (pid",),
    DEVICE_FAILED: (
        "illegal memory access",
        "unspecified launch failure",
        "misaligned address",
        "an illegal instruction was encountered",
        "hardware stack error",
        "uncorrectable ecc error",
        "the launch timed out and was terminated",
        "cuda error: unknown error",
        "devices are busy or unavailable",
        "cublas_status_execution_failed",
        "cudnn_status_execution_failed",
    ),
    COLLECTIVE_FAILED: ("nccl error", "gloo/transport", "gloo::ioexception"),
}


class DivergedError(Exception):
    """The training loss is not finite."""


class TargetMissedError(Exception):
    """The budget was spent before the target accuracy was reached."""


class PreemptedError(Exception):
    """The supervisor requested preemption, and the trial ends after a step."""


def classify_error(error: Exception) -> Outcome:
    """The outcome of a trial that ended with ``error``: by its type if that decides, else by its text."""
    if isinstance(error, DivergedError):
        return "diverged"
    if isinstance(error, TargetMissedError):
        return "target_missed"
    if isinstance(error, PreemptedError):
        return "cancelled"
    if isinstance(error, DeviceFullError):  # not the configuration's fault
        return "crashed"
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return "out_of_memory"
    text = str(error).lower()
    if isinstance(error, RuntimeError | OSError) and any(words in text for words in _OUT_OF_MEMORY_TEXTS):
        return "out_of_memory"
    return "crashed"


def find_cause(error: Exception) -> str:
    """The cause (:mod:`sweep.records.messages`) if something other than the trial ended the attempt, or empty."""
    if isinstance(error, PreemptedError):
        return LEFT
    if isinstance(error, DeviceFullError):
        return DEVICE_FULL
    if classify_error(error) != "crashed" or not isinstance(error, RuntimeError):
        return ""
    if isinstance(error, dist.DistError):
        return COLLECTIVE_FAILED
    text = str(error).lower()
    return next((cause for cause, texts in _MACHINE_TEXTS.items() if any(words in text for words in texts)), "")


def explain_error(error: Exception) -> str:
    """The message of an anticipated error, else the end of the traceback."""
    if isinstance(error, InputError | DeviceFullError | DivergedError | TargetMissedError | PreemptedError):
        return str(error)
    if classify_error(error) == "out_of_memory":
        notes = getattr(error, "__notes__", [])
        return "\n".join([f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS], *notes])
    return "".join(traceback.format_exception(error))[-_MAX_ERROR_CHARACTERS:]
