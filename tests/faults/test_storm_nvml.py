"""Every error of NVIDIA's library, at its start and at each of its calls, while a trial trains."""

import logging
from typing import Any, final

import pynvml
import pytest
from tally import IS_WHOLE, Tally
from test_monitor import fake_nvml

from sweep.config.trial import build_config
from sweep.executors.inline import InlineExecutor
from sweep.executors.monitored import MonitoredExecutor
from sweep.measurement.monitor import Monitor, NvmlSource
from sweep.records.messages import Ending, TrialTask

# what a trial's record lacks where the call fails; its flags are judged by the rest
_CALLS: dict[str, set[str]] = {
    "nvmlInit": {"gpu_utilization", "power_watts", "energy_joules", "temperature_celsius"},
    "nvmlDeviceGetMemoryInfo": set(),
    "nvmlDeviceGetUtilizationRates": {"gpu_utilization"},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_joules"},
    "nvmlDeviceGetTemperature": {"temperature_celsius"},
    "nvmlDeviceGetClockInfo": set(),
}  # fmt: skip
_ERRORS = (
    "Uninitialized", "NotSupported", "NoPermission", "NotFound", "DriverNotLoaded", "Timeout", "LibraryNotFound",
    "FunctionNotFound", "GpuIsLost", "ResetRequired", "LibRmVersionMismatch", "Unknown",
)  # fmt: skip
_MEASURED = _CALLS["nvmlInit"]
_FAULTS = [(call, error) for error in _ERRORS for call in _CALLS]
_EVERY = 1 if IS_WHOLE else 11  # which takes another call each time


@final
class _Library:
    """The fake library, of which one call raises one error."""

    def __init__(self, call: str, error: Exception) -> None:
        self._library, self._call, self.error = fake_nvml(), call, error
        # a counter that grows, so that there is energy to speak of
        self._library.nvmlDeviceGetTotalEnergyConsumption = self._energy
        self._joules, self.num_raised = 0, 0

    def __getattr__(self, name: str) -> Any:
        return self._fail if name == self._call else getattr(self._library, name)

    def _energy(self, _device: str) -> int:
        self._joules += 1
        return 1000 * self._joules

    def _fail(self, *_arguments: Any) -> Any:
        self.num_raised += 1
        raise self.error


def _train(library: _Library) -> Ending:
    monitor = Monitor(lambda _device: NvmlSource("0", library, ours=lambda: {11}), interval_seconds=0.002)
    settings = {"data.name": "digits", "data.subset": 256, "budget.epochs": 4.0}
    with MonitoredExecutor(InlineExecutor("cpu"), monitor, {}) as executor:
        executor.start(TrialTask(number=0, config=build_config(settings, "storm"), device="cpu"))
        while True:
            for _, message in executor.poll(5.0):
                if isinstance(message, Ending):
                    return message


@pytest.mark.parametrize(("call", "error"), _FAULTS[::_EVERY])
def test_an_error_of_the_library_leaves_its_figure_empty_and_the_trial_whole(
    call: str, error: str, tally: Tally, caplog: pytest.LogCaptureFixture
) -> None:
    library = _Library(call, getattr(pynvml, f"NVMLError_{error}")())
    ending = _train(library)
    assert library.num_raised > 0
    tally.count("errors of NVML")
    if ending.outcome != "complete":
        tally.lost.append(f"{call}, {error}: {ending.outcome}, {ending.error}")
    assert _MEASURED - ending.measurements.keys() == _CALLS[call]
    assert ending.measurements["val_accuracy"] > 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert str(library.error) in caplog.text
