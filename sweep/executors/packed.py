"""Several trials at once on each device, to measure accuracy only; GPUs are shared by NVIDIA's Multi-Process Service.

Such a trial takes longer than one alone: its times are recorded as the clock gave them, with the quality flag
``packed``.
"""

import logging
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, final

from sweep.config.metrics import METRICS
from sweep.config.trial import TrialConfig
from sweep.executors.base import Executor, ExecutorWrapper
from sweep.executors.helper import end_process
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import CROWDED, Ending, Message, Progress, Task, TrialTask
from sweep.records.quality import PACKED

_CONTROL = "nvidia-cuda-mps-control"
_PIPES = "CUDA_MPS_PIPE_DIRECTORY"
_CHOICE_OF_GPUS = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"})
_SERVICE_SECONDS = 30.0  # for the service to start, and to end
# Ends the service when its standard input is closed: also when the supervisor, which has the other end, is killed.
_KEEPER = f"{_CONTROL} -d >/dev/null && echo ready || echo failed; cat >/dev/null; echo quit | {_CONTROL} >/dev/null"

_log = logging.getLogger(__name__)


@contextmanager
def share_gpu(device: str) -> Iterator[dict[str, str]]:
    """Runs the service for ``device`` until the block ends; yields the environment of the processes that use it.

    The service sees every GPU, and processes name theirs by UUID: the service would count the GPUs of a list of its
    own anew, and a process's number would mean another GPU. The environment is empty for a CPU; it is that of the
    user's own service where one runs; and it is empty, with a warning, if the service does not start: processes then
    take turns.
    """
    if not device.startswith("cuda"):
        yield {}
        return
    if _PIPES in os.environ:
        yield {_PIPES: os.environ[_PIPES]}
        return
    if shutil.which(_CONTROL) is None:
        _log.warning("%s is not installed: trials on one GPU take turns, which is slower", _CONTROL)
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="sweep-mps-") as folder:
        environment = {_PIPES: folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        with _run_keeper(environment) as is_ready:
            if not is_ready:
                _log.warning("%s does not start: trials on one GPU take turns, which is slower", _CONTROL)
            yield environment if is_ready else {}


@contextmanager
def _run_keeper(environment: dict[str, str]) -> Iterator[bool]:
    inherited = {name: value for name, value in os.environ.items() if name not in _CHOICE_OF_GPUS}
    keeper = subprocess.Popen(
        ["/bin/sh", "-c", _KEEPER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=inherited | environment,
        start_new_session=True,  # the terminal's Ctrl-C is not for it
    )
    assert keeper.stdin is not None
    assert keeper.stdout is not None
    try:
        readable, _, _ = select.select([keeper.stdout], [], [], _SERVICE_SECONDS)
        yield bool(readable) and keeper.stdout.readline().strip() == b"ready"
    finally:
        keeper.stdin.close()
        end_process(keeper, _SERVICE_SECONDS)
        keeper.stdout.close()


@final
class PackedExecutor(ExecutorWrapper):
    """``inner``, which trains by ``process``: one trial on each device until :meth:`pack`. Probes always run alone."""

    def __init__(self, inner: Executor, process: ProcessExecutor) -> None:
        super().__init__(inner)
        self.process = process
        self._num_devices = process.slots
        self._per_device, self._divided = 1, 1
        self._fits_alone: Callable[[TrialConfig], bool] = lambda _config: False
        self._device_class = ""
        self._environment: dict[str, str] = {}
        self._packed: dict[int, TrialConfig] = {}  # the packed trials that run
        self._running: set[int] = set()

    def pack(
        self,
        per_device: int,
        device_class: str,
        fits_alone: Callable[[TrialConfig], bool],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """From now on ``per_device`` processes run at once on each device of ``device_class``, with the variables of
        ``environment``. A single trial per device is not packed."""
        self._per_device = per_device
        self._device_class, self._fits_alone = device_class, fits_alone
        self._environment, self._divided = dict(environment or {}), 0

    @property
    def slots(self) -> int:
        return self._num_devices * self._per_device

    def describe(self) -> dict[str, Any]:
        self._divide_devices(1)
        return super().describe()

    def start(self, task: Task) -> None:
        is_trial = isinstance(task, TrialTask)
        self._divide_devices(self._per_device if is_trial else 1)
        if is_trial and self._per_device > 1:
            self._packed[task.number] = task.config
        super().start(task)
        self._running.add(task.number)

    def poll(self, timeout_seconds: float) -> list[tuple[int, Message]]:
        return [(number, self._flag(number, message)) for number, message in super().poll(timeout_seconds)]

    def stop(self, number: int) -> None:
        super().stop(number)
        self._remove(number)

    def _divide_devices(self, per_device: int) -> None:
        if not self._running and per_device != self._divided:
            self.process.divide(per_device, self._environment if per_device > 1 else {})
            self._divided = per_device

    def _flag(self, number: int, message: Message) -> Message:
        config = self._packed.get(number)
        if isinstance(message, Ending):
            self._remove(number)
        if config is None or not isinstance(message, Progress | Ending):
            return message
        flagged = replace(message, quality_flags=tuple(dict.fromkeys((PACKED, *message.quality_flags))))
        return self._describe_shared(config, flagged) if isinstance(flagged, Ending) else flagged

    def _describe_shared(self, config: TrialConfig, ending: Ending) -> Ending:
        if ending.outcome == "out_of_memory" and self._fits_alone(config):
            error = f"out of memory while other trials shared the device: {ending.error}".strip(": ")
            return Ending(outcome="crashed", error=error, cause=CROWDED)
        # A device's readings are of all its trials, and the class is that of the whole device.
        measurements = {
            name: value
            for name, value in ending.measurements.items()
            if METRICS[name].unit_facts.measures != "hardware" and name != "gpu_utilization"
        }
        device = self._device_class if ending.device else ""
        return replace(ending, measurements=measurements, device=device, bottleneck="")

    def _remove(self, number: int) -> None:
        self._running.discard(number)
        self._packed.pop(number, None)
