"""Checks before a study and after each trial that there is disk space for what the study will write."""

from collections.abc import Callable
from pathlib import Path
from typing import final

from sweep.config.errors import RUN_AGAIN, InputError, StoreError
from sweep.config.study import StudySpec
from sweep.records.disk_space import describe_shortage, estimate_record_bytes, measure_free_bytes
from sweep.records.probe_record import ProbeRecord
from sweep.search.forecast.prober import Prober

_NUM_CHECKPOINTS = 3  # of a trial: the last two are kept while a third is written
_AMPLE_BYTES = 8 << 30  # with so much free space the size of a checkpoint is not estimated
_BYTES_PER_PARAMETER = 16  # the parameter, two moments of an optimizer, an average over steps


@final
class DiskSpace:
    """The space that ``folder`` requires for ``num_trials`` more trials, ``num_slots`` of them at a time."""

    def __init__(self, folder: Path, num_trials: int, num_slots: int, checkpoint_bytes: Callable[[], int]) -> None:
        self._folder = folder
        self._needed_bytes = estimate_record_bytes(num_trials)
        if measure_free_bytes(folder) < _AMPLE_BYTES:
            self._needed_bytes += num_slots * _NUM_CHECKPOINTS * checkpoint_bytes()
        self._least_bytes = estimate_record_bytes(0) // 2

    def check_before(self) -> None:
        """Raises ``InputError``, with both sizes, if there is too little for the study."""
        if measure_free_bytes(self._folder) < self._needed_bytes:
            shortage = describe_shortage(self._folder, self._needed_bytes)
            raise InputError(f"{shortage}Free some space, or choose another disk with --root.")

    def check_between(self) -> None:
        """Raises ``StoreError`` if there is too little for the next trial."""
        if measure_free_bytes(self._folder) < self._least_bytes:
            shortage = describe_shortage(self._folder)
            raise StoreError(f"The disk is full: {shortage}Free some space and {RUN_AGAIN}; records are kept.")


def estimate_checkpoint_bytes(spec: StudySpec, prober: Prober) -> int:
    """About the size of a checkpoint of the study's largest model; 0 where it cannot be estimated."""
    probes = []
    for config in spec.corners.of("model"):
        probe = prober.find(config)
        if probe is None:
            prober.estimate_peak_memory_bytes(config)
        probes.append(probe)
    return max((_checkpoint_bytes(probe) for probe in (*probes, *prober.estimates.values()) if probe), default=0)


def _checkpoint_bytes(probe: ProbeRecord) -> int:
    if parts := probe.forecast:
        return 2 * parts["forecast_parameter_bytes"] + parts["forecast_optimizer_bytes"]
    return _BYTES_PER_PARAMETER * (probe.num_parameters or 0)
