"""The peak memory of a configuration before it is trained: one step of fake tensors, and on a CPU the scratch memory of
its operations.

The forecast is of the value that a trial records as ``peak_memory_bytes``: the most that the allocator holds in a step
of at most two micro batches, with the optimizer's state allocated (``sweep/training/loop/warmup.py``). An evaluation is
not forecast: its batch is set so that it requires no more than a step, whose forecast is therefore its bound.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace

import torch

from sweep.config.errors import InputError, describe_unknown
from sweep.config.tables.datasets import DataFacts
from sweep.config.trial_config import TrialConfig
from sweep.measurement.device import resolve_device
from sweep.probing.fake_step import StepPeak, find_step_peak, is_ready
from sweep.records.messages import Ending, EstimateTask, Message
from sweep.training.data.data_checks import check_precision
from sweep.training.data.table import find_facts

_LABEL_BYTES = 8
_DEVICE_TYPES = frozenset({"cpu", "cuda"})


@dataclass(frozen=True, kw_only=True)
class MemoryEstimate:
    """Bytes at the moment when most is held, by category."""

    parameter_bytes: int  # weights, buffers and, where one is kept, their moving average
    gradient_bytes: int  # of the parameters
    optimizer_bytes: int  # its state
    activation_bytes: int  # of the forward pass, the images included
    temporary_bytes: int  # of the backward pass and of the optimizer's step
    scratch_bytes: int  # inside operations, not in tensors
    unmeasured_operations: int = 0  # whose scratch memory could not be measured and is not included

    @property
    def peak_memory_bytes(self) -> int:
        """What a trial of the configuration would record: the sum of all."""
        return sum(value for name, value in asdict(self).items() if name.endswith("_bytes"))


def estimate_memory(config: TrialConfig, *, device_type: str = "cpu", facts: DataFacts | None = None) -> MemoryEstimate:
    """The peak memory of ``config`` on a device of ``device_type`` (cpu, cuda), on each rank. Needs no such device.

    A micro batch of "auto" is taken to be the whole global batch, which is an upper bound, and a compiled model to hold
    what it holds without the compiler, which is often more. Of a GPU's libraries only the persistent workspace of
    cuBLAS is counted. Without ``facts`` of the data set it is looked at.

    Raises:
        InputError: for an unknown device type; a model, a data set or a precision that is not available; a model
            that cannot be traced without values.
    """
    if device_type not in _DEVICE_TYPES:
        raise InputError(describe_unknown("device type", device_type, _DEVICE_TYPES))
    check_precision(config.precision, device_type)
    facts = facts or find_facts(config.data)
    estimate = _divide(find_step_peak(config, facts, device_type))
    if device_type == "cpu":
        return estimate
    kept = _kept_bytes(config, facts) if is_ready(config, facts) else 0
    return replace(
        estimate,
        activation_bytes=estimate.activation_bytes + kept,
        scratch_bytes=estimate.scratch_bytes + _library_bytes(),
    )


def run_estimate(task: EstimateTask) -> Iterator[Message]:
    """One :class:`Ending` with the estimated ``peak_memory_bytes`` and its parts; ``crashed`` without one."""
    try:
        estimate = estimate_memory(task.config, device_type=resolve_device(task.device).type, facts=task.facts)
    except (InputError, RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        yield Ending(outcome="crashed", error=f"{type(error).__name__}: {error}")
        return
    yield Ending(outcome="complete", measurements={"peak_memory_bytes": estimate.peak_memory_bytes, **asdict(estimate)})


def _divide(peak: StepPeak) -> MemoryEstimate:
    held = peak.held
    # during the optimizer's step its temporaries are counted with its state
    passing = max(0, held.optimizer_bytes - peak.state_bytes)
    return MemoryEstimate(
        parameter_bytes=held.parameter_bytes + peak.average_bytes,
        gradient_bytes=held.gradient_bytes,
        optimizer_bytes=held.optimizer_bytes - passing,
        activation_bytes=held.activation_bytes,
        temporary_bytes=held.temporary_bytes + passing,
        scratch_bytes=peak.scratch_bytes,
        unmeasured_operations=peak.num_unmeasured,
    )


def _library_bytes() -> int:
    # The workspace that torch gives cuBLAS with the first matrix product and never releases: two pieces of 4 MiB and
    # eight of 16 KiB, from Hopper (capability 9) on 32 MiB. Without a GPU it is taken to be that of Hopper.
    capability = torch.cuda.get_device_capability() if torch.cuda.is_available() else (9, 0)
    return 32 * 2**20 if capability >= (9, 0) else 2 * 4 * 2**20 + 8 * 16 * 2**10


def _kept_bytes(config: TrialConfig, facts: DataFacts) -> int:
    # A small set is reordered once an epoch; the copy is made after the resident set was subtracted.
    value_bytes = 8 if config.precision.dtype == "fp64" else 4
    values = facts.shape.channels * facts.shape.side**2
    return facts.num_train * (values * value_bytes + _LABEL_BYTES)
