"""How much of a device's memory trials can use, and the gate that refuses configurations that will not fit.

A refused configuration is recorded and not trained.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig
from sweep.measurement.host_memory import measure_available_bytes
from sweep.probing.shape import Shape, derive_shape, find_largest_accumulation, make_probed_config, replace_micro_batch
from sweep.records.messages import Ending

_log = logging.getLogger(__name__)
_CHECKED_EVERY = 20  # one in twenty trial numbers is launched although it is refused
_USABLE_SHARE = 0.9  # of the memory; the rest is for gaps between tensors and workspaces that no forecast contains
_PROCESS_BYTES = 600 * 2**20  # where it was not measured


@final
@dataclass(frozen=True)
class MemoryRoom:
    """The memory of one device, in bytes.

    ``free_bytes`` is for the tensors of one process that has the device to itself, without what other programs hold.
    Each process requires ``process_bytes`` in addition: the context of a GPU, or torch's libraries.
    """

    free_bytes: int
    process_bytes: int

    @property
    def limit_bytes(self) -> int:
        """What a process may allocate, resident images included: nine tenths of what is free for it."""
        return int(_USABLE_SHARE * self.free_bytes)

    def count_processes(self, reserved_bytes: int) -> int:
        """How many processes fit at once, each of which reserves ``reserved_bytes`` for its tensors."""
        together = _USABLE_SHARE * (self.free_bytes + self.process_bytes)
        return int(together // (reserved_bytes + self.process_bytes))


def measure_room(machine: Mapping[str, Any]) -> MemoryRoom:
    """The room on the device of ``machine`` (:func:`sweep.measurement.device.describe_machine`); on a CPU, that of
    what is available on this machine now."""
    total = int(machine.get("device_memory_bytes", 0))
    if not total:
        return MemoryRoom(measure_available_bytes(), _PROCESS_BYTES)
    process_bytes = int(machine.get("process_bytes", 0)) or _PROCESS_BYTES
    return MemoryRoom(int(machine.get("device_free_bytes", max(total - process_bytes, 0))), process_bytes)


@dataclass(frozen=True)
class Refusal:
    """Why a configuration is refused."""

    predicted_bytes: int
    limit_bytes: int
    resident_bytes: int = 0

    @property
    def reason(self) -> str:
        images = f" beside {_format_mebibytes(self.resident_bytes)} of images" if self.resident_bytes else ""
        return (
            f"not launched: its peak memory is predicted to be {_format_mebibytes(self.predicted_bytes)}{images}, "
            f"above the limit of {_format_mebibytes(self.limit_bytes)}"
        )


@final
class MemoryGate:
    """Compares the predicted peak memory of a configuration, with the bytes that it keeps ``resident`` beside its step,
    with the limit before each launch.

    ``predict`` is called as seldom as possible. Memory grows with the micro batch, so the ``largest`` micro batch of
    the study is predicted first, and sizes below one that fits are not predicted at all.
    """

    def __init__(
        self,
        limit_bytes: int,
        predict: Callable[[TrialConfig], int | None],
        largest: int = 0,
        resident: Callable[[TrialConfig], int] = lambda _config: 0,
    ) -> None:
        self.limit_bytes = limit_bytes
        self._resident = resident
        self._predict = predict
        self._largest = largest
        self._fitting: dict[tuple[Shape, int], int] = {}  # the largest micro batch known to fit
        self._bytes: dict[Shape, int | None] = {}

    def check(self, config: TrialConfig, *, may_predict: bool = True) -> Refusal | None:
        """None where ``config`` fits, finds its own micro batch, or cannot be predicted; without ``may_predict`` also
        where its shape was not predicted yet."""
        group, micro = _find_group(config), config.micro_batch
        if config.batch.is_auto or micro <= self._fitting.get(group, 0):
            return None
        if not may_predict and self.predicted(config) is None:
            return None
        is_new, predicted = group not in self._fitting, None
        self._fitting.setdefault(group, 0)
        for size in (self._largest, micro) if is_new and self._largest > micro else (micro,):
            predicted = self._predict_once(config, size)
            if predicted is not None and self._is_within(config, predicted):
                self._fitting[group] = size
                return None
        return None if predicted is None else Refusal(predicted, self.limit_bytes, self._resident(config))

    def learn(self, config: TrialConfig, ending: Ending) -> None:
        """Takes the ending of a trial into account: if it was refused and did fit, smaller ones are launched too."""
        group, peak = _find_group(config), ending.measurements.get("peak_memory_bytes")
        if ending.outcome != "complete" or config.batch.is_auto or peak is None or not self._is_within(config, peak):
            return
        if group not in self._fitting or config.micro_batch <= self._fitting[group]:
            return
        self._fitting[group] = config.micro_batch
        if (predicted := self.predicted(config)) is not None:  # else nothing was refused
            text = (
                "micro batch %d was predicted to need %s and took %s; up to this size trials are launched from now on"
            )
            _log.warning(text, config.micro_batch, _format_mebibytes(predicted), _format_mebibytes(peak))

    def is_launched_to_check(self, number: int) -> bool:
        """Whether trial ``number`` is launched although it is refused: one in twenty is, to check the predictions."""
        return number % _CHECKED_EVERY == _CHECKED_EVERY - 1

    def predicted(self, config: TrialConfig) -> int | None:
        """The prediction for ``config`` where it was made already."""
        return self._bytes.get(derive_shape(make_probed_config(config)))

    def _is_within(self, config: TrialConfig, peak_bytes: float) -> bool:
        return peak_bytes + self._resident(config) <= self.limit_bytes

    def _predict_once(self, config: TrialConfig, micro: int) -> int | None:
        config = replace_micro_batch(config, micro)
        shape = derive_shape(config)
        if (known := self._bytes.get(shape)) is None:  # what was not known is asked again: trials may have told it
            known = self._predict(config)
        self._bytes[shape] = known
        return known


def _find_group(config: TrialConfig) -> tuple[Shape, int]:
    return derive_shape(config).group, min(find_largest_accumulation(config), 2)


def find_largest_micro(spec: StudySpec) -> int:
    """The largest micro batch in the space of ``spec``; 0 where it is found while training."""
    path = "batch.micro"
    values = spec.space[path].extremes() if path in spec.space else (spec.corners.first.batch.micro,)
    return max((value for value in values if isinstance(value, int)), default=0)


def _format_mebibytes(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB"
