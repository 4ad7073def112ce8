"""Answers to what the supervisor asks of a configuration, where it does not import torch itself."""

from collections.abc import Iterator
from dataclasses import asdict

from sweep.config.errors import InputError
from sweep.measurement.device import resolve_device
from sweep.probing.estimate import estimate_memory
from sweep.records.messages import Ending, EstimateTask, Message


def run_estimate(task: EstimateTask) -> Iterator[Message]:
    """One :class:`Ending` with the estimated ``peak_memory_bytes`` and its parts; ``crashed`` without one."""
    try:
        estimate = estimate_memory(task.config, device_type=resolve_device(task.device).type)
    except (InputError, RuntimeError, NotImplementedError, TypeError, ValueError) as error:
        yield Ending(outcome="crashed", error=f"{type(error).__name__}: {error}")
        return
    yield Ending(outcome="complete", measurements={"peak_memory_bytes": estimate.peak_memory_bytes, **asdict(estimate)})
