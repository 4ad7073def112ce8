"""Holds back what will not fit: such a configuration becomes a record without a training."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.measurement.host_memory import available_bytes
from sweep.probing.shape import Shape, micro_batch, num_micro_batches, probed_config, shape_of, with_micro
from sweep.records.messages import Ending

_log = logging.getLogger(__name__)
SHARE = 0.9  # of the memory; the rest is for what no allocator counts
_CHECKED_EVERY = 20  # trial numbers; of these one that is thought too large is launched all the same
PredictBytes = Callable[[TrialConfig], int | None]


@dataclass(frozen=True)
class Refusal:
    """Why a configuration is held back."""

    predicted_bytes: int
    limit_bytes: int

    @property
    def reason(self) -> str:
        """For the record."""
        return (
            f"not launched: its peak memory is predicted to be {_mebibytes(self.predicted_bytes)}, above the limit of "
            f"{_mebibytes(self.limit_bytes)}"
        )


@final
class MemoryGate:
    """Predicts before each launch. ``predict`` is asked as seldom as can be, for memory grows with the micro batch: the
    ``largest`` micro batch of the study first, and what is smaller than one that fits not at all."""

    def __init__(self, limit_bytes: int, predict: PredictBytes, largest: int = 0) -> None:
        self.limit_bytes = limit_bytes
        self._predict = predict
        self._largest = largest
        self._fitting: dict[tuple[Shape, int], int] = {}  # the largest micro batch known to fit
        self._bytes: dict[Shape, int | None] = {}

    def check(self, config: TrialConfig, *, may_ask: bool = True) -> Refusal | None:
        """None where ``config`` fits, finds its own micro batch, or nothing can be said; without ``may_ask`` also where
        nothing was predicted for its shape so far."""
        if config.batch.micro == "auto":
            return None
        kind = _kind(config)
        micro, is_new = micro_batch(config), kind not in self._fitting
        if micro <= self._fitting.get(kind, 0):
            return None
        if not may_ask and shape_of(with_micro(config, micro)) not in self._bytes:
            return None
        if is_new and self._largest > micro and self._fits(config, self._largest):
            self._fitting[kind] = self._largest
            return None
        self._fitting.setdefault(kind, 0)
        predicted = self._ask(with_micro(config, micro))
        if predicted is None or predicted > self.limit_bytes:
            return None if predicted is None else Refusal(predicted, self.limit_bytes)
        self._fitting[kind] = micro
        return None

    def learn(self, config: TrialConfig, ending: Ending) -> None:
        """A trial of ``config`` has ended so; one that was refused and fitted after all opens the gate as far as it."""
        kind, peak = _kind(config), ending.measurements.get("peak_memory_bytes")
        if ending.outcome != "complete" or peak is None or peak > self.limit_bytes or kind not in self._fitting:
            return
        micro, predicted = micro_batch(config), self.predicted(config)
        if config.batch.micro != "auto" and micro > self._fitting[kind]:
            self._fitting[kind] = micro
            _log.warning(
                "micro batch %d was predicted to need %s and took %s; what is no larger is launched from now on",
                micro,
                _mebibytes(predicted or 0),
                _mebibytes(peak),
            )

    def is_launched_to_check(self, number: int) -> bool:
        """Whether trial ``number`` is launched although it is refused: one in twenty is, to see whether it is true."""
        return number % _CHECKED_EVERY == _CHECKED_EVERY - 1

    def predicted(self, config: TrialConfig) -> int | None:
        """The prediction for ``config`` where it was asked for already."""
        return self._bytes.get(shape_of(probed_config(config)))

    def _fits(self, config: TrialConfig, micro: int) -> bool:
        predicted = self._ask(with_micro(config, micro))
        return predicted is not None and predicted <= self.limit_bytes

    def _ask(self, config: TrialConfig) -> int | None:
        shape = shape_of(config)
        if shape not in self._bytes:
            self._bytes[shape] = self._predict(config)
        return self._bytes[shape]


def _kind(config: TrialConfig) -> tuple[Shape, int]:
    return shape_of(config).group, min(num_micro_batches(config), 2)


def memory_limit_bytes(device_memory_bytes: int) -> int:
    """What a trial may use: nine tenths of the device's memory, on a CPU (0) of what the machine has available now."""
    return int(SHARE * (device_memory_bytes or available_bytes()))


def largest_micro(spec: StudySpec) -> int:
    """The largest micro batch that ``spec`` can ask for; 0 where it is to be found by trying."""
    path = "batch.micro"
    values = spec.space[path].extremes() if path in spec.space else (spec.config(next(spec.corners())).batch.micro,)
    return max((value for value in values if isinstance(value, int)), default=0)


def _mebibytes(count: float) -> str:
    return f"{count / 2**20:,.0f} MiB"
