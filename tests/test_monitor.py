"""What is seen of devices while trials train, which doubts that raises, and what a device does not measure."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import repeat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, final

import pytest
from cli_calls import INLINE

from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS, list_objectives
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import build_config
from sweep.executors.base import WorkerProgram
from sweep.executors.inline import InlineExecutor
from sweep.executors.monitored import MonitoredExecutor
from sweep.executors.process import ProcessExecutor
from sweep.executors.slurm import SlurmSettings
from sweep.executors.table import ExecutorSettings, check_objectives, find_unmeasurable, list_measurable
from sweep.measurement.monitor import (
    DeviceSummary,
    HostSource,
    Monitor,
    NvmlSource,
    SensorReading,
    SensorSource,
    merge_summaries,
    summarize_readings,
)
from sweep.records.messages import Ending, Message, Progress, TrialTask
from sweep.records.quality import MEANINGS
from tests.traces_factory import SPANS, Trace, gpu_trace, host_trace, slowed, with_memory, with_process

# The cause, what happens to the trace of a GPU, and from when to when.
CONTAMINATED: list[tuple[str, Callable[..., Trace], tuple[float, ...]]] = [
    ("other_process", with_process, ()), ("other_process", with_process, (14.0, 15.0)),
    ("other_process", with_process, (5.0, 9.0)), ("other_process", with_memory, ()), ("throttled", slowed, ()),
    ("throttled", slowed, (20.0,)), ("throttled", slowed, (8.0, 11.0)), ("throttled", slowed, (25.0, 28.0)),
]  # fmt: skip


def test_every_contaminated_trace_is_flagged_with_its_cause() -> None:
    traces = [(cause, change(gpu_trace(100 + n), *more)) for n, (cause, change, more) in enumerate(CONTAMINATED)]
    traces += [("busy_host", host_trace(115 + n, load)) for n, load in enumerate((0.15, 0.3, 0.5, 0.8))]
    assert [summarize_readings(trace, SPANS).flags for _, trace in traces] == [(cause,) for cause, _ in traces]
    assert {cause for cause, _ in traces} <= MEANINGS.keys()


def test_no_clean_trace_is_flagged() -> None:
    clean = [gpu_trace(seed) for seed in range(14)] + [host_trace(seed) for seed in range(6)]
    assert [summarize_readings(trace, SPANS).flags for trace in clean] == [()] * 20


def test_what_happens_outside_the_training_counts_nowhere() -> None:
    calm = summarize_readings(gpu_trace(1), SPANS)
    assert [METRICS[name].is_of_a_device for name in calm.measurements] == [True] * 4
    for begin, end in ((0.0, 2.9), (11.1, 12.4), (20.6, 21.9), (30.1, 40.0)):
        assert summarize_readings(with_process(gpu_trace(1), begin, end), SPANS) == calm
        assert summarize_readings(slowed(gpu_trace(1), begin, end), SPANS) == calm


def steady(count: int, **counters: float) -> Trace:
    """A reading each half second; counters grow by their value a second."""
    growing = {name: [0.5 * index * rate for index in range(count)] for name, rate in counters.items()}
    return [SensorReading(at=0.5 * index, num_processors=2, **{name: values[index] for name, values in growing.items()})
            for index in range(count)]  # type: ignore[arg-type]  # fmt: skip


def test_energy_is_the_counters_power_over_all_of_the_training() -> None:
    trace = steady(21, energy_joules=300.0)
    found = summarize_readings(trace, [(0.7, 4.7), (5.2, 9.9)]).measurements
    assert found["power_watts"] == pytest.approx(300.0)
    assert found["energy_joules"] == pytest.approx(300.0 * 8.7)
    # a counter may begin anew
    trace[10:] = [replace(reading, energy_joules=(reading.energy_joules or 0) - 1500.0) for reading in trace[10:]]
    assert summarize_readings(trace, [(0.0, 10.0)]).measurements["power_watts"] == pytest.approx(300.0)


def test_load_by_others_is_what_we_did_not_use_of_the_processors() -> None:
    busy = steady(21, busy_seconds=1.5, own_busy_seconds=1.1)
    assert summarize_readings(busy, [(0.0, 10.0)]).flags == ("busy_host",)
    assert summarize_readings(busy[:2], [(0.0, 10.0)]).flags == ()  # two looks are no mean load
    assert summarize_readings(gpu_trace(0)[8:9], SPANS) == DeviceSummary()  # and one is no summary


def test_several_devices_add_up_power_and_take_the_hottest() -> None:
    one = DeviceSummary({"power_watts": 300.0, "temperature_celsius": 60.0}, ("throttled",))
    two = DeviceSummary({"power_watts": 200.0, "temperature_celsius": 70.0}, ("throttled", "other_process"))
    expected = {"power_watts": 500.0, "temperature_celsius": 70.0}
    assert merge_summaries([one, two]) == DeviceSummary(expected, ("throttled", "other_process"))


# ---------------------------------------------------------------------- NVIDIA's library


def fake_nvml(*broken: str, error: Exception | None = None, processes: Sequence[tuple[int, int]] = ()) -> Any:
    """NVIDIA's library with one GPU, on which ``processes`` (id, bytes) compute; ``broken`` calls raise."""
    listed = [SimpleNamespace(pid=pid, usedGpuMemory=held) for pid, held in processes]
    calls: dict[str, Callable[..., Any]] = {
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: f"device {index}", "nvmlDeviceGetHandleByUUID": lambda uuid: uuid,
        "nvmlDeviceGetMemoryInfo": lambda _device: SimpleNamespace(used=10 * 2**30),
        "nvmlDeviceGetUtilizationRates": lambda _device: SimpleNamespace(gpu=87),
        "nvmlDeviceGetPowerUsage": lambda _device: 345_600,
        "nvmlDeviceGetTotalEnergyConsumption": lambda _device: 123_456_000,
        "nvmlDeviceGetTemperature": lambda _device, _sensor: 61,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda _device: 0x4 | 0x20,
        "nvmlDeviceGetComputeRunningProcesses": lambda _device: listed,
    }  # fmt: skip

    def fail(*_arguments: object) -> None:
        raise error or RuntimeError("Not Supported")

    return SimpleNamespace(NVML_TEMPERATURE_GPU=0, **calls | dict.fromkeys(broken, fail))


def test_a_gpu_is_read_in_our_units() -> None:
    library = fake_nvml(processes=((11, 7 * 2**30), (99, 2**30)))
    reading = replace(NvmlSource("0", library, ours=lambda: {11, 12}).read(), at=0.0)
    assert reading == SensorReading(
        at=0.0, utilization=0.87, power_watts=345.6, energy_joules=123_456.0, temperature_celsius=61.0,
        is_throttled=True, num_others=1, other_memory_bytes=3 * 2**30,
    )  # fmt: skip


def test_in_a_container_one_unknown_process_is_taken_to_be_ours() -> None:
    for held, others in (((), 0), (((4711, 2**30),), 0), (((4711, 2**30), (4712, 2**30)), 1)):
        reading = NvmlSource("GPU-1", fake_nvml(processes=held), ours=lambda: {11}).read()
        assert (reading.num_others, reading.other_memory_bytes) == (others, None)


CALLS = {
    "nvmlDeviceGetMemoryInfo": {"other_memory_bytes"},
    "nvmlDeviceGetUtilizationRates": {"utilization"},
    "nvmlDeviceGetPowerUsage": {"power_watts"},
    "nvmlDeviceGetTotalEnergyConsumption": {"energy_joules"},
    "nvmlDeviceGetTemperature": {"temperature_celsius"},
    "nvmlDeviceGetCurrentClocksThrottleReasons": {"is_throttled"},
    "nvmlDeviceGetComputeRunningProcesses": {"num_others", "other_memory_bytes"},
}
ERRORS = [RuntimeError("Not Supported"), AttributeError("no such function"), OSError("lost"), ValueError("?")]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_is_refused_leaves_its_field_empty_with_one_warning(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    for error in ERRORS:
        caplog.clear()
        library = fake_nvml(call, error=error, processes=((11, 2**30),))
        source = NvmlSource("0", library, ours=lambda: {11})
        first, second = source.read(), source.read()
        for reading in (first, second):
            empty = {item.name for item in fields(SensorReading) if getattr(reading, item.name) is None}
            assert empty - {"busy_seconds", "own_busy_seconds"} == CALLS[call]
        assert len(caplog.records) == 1
        assert str(error) in caplog.text


@pytest.mark.parametrize("call", ["nvmlInit", "nvmlDeviceGetHandleByIndex"])
def test_a_library_that_does_not_start_leaves_everything_empty_with_one_warning(
    call: str, caplog: pytest.LogCaptureFixture
) -> None:
    monitor = Monitor(lambda _device: NvmlSource("0", fake_nvml(call)), interval_seconds=0.005)
    monitor.begin(1, ["cuda:0"])
    wait_until(lambda: bool(caplog.records))
    time.sleep(0.03)
    assert monitor.end(1, [(0.0, 1e9)]) == DeviceSummary()
    monitor.close()
    assert len(caplog.records) == 1
    assert "Not Supported" in caplog.text


# ---------------------------------------------------------------------- the thread


def wait_until(is_so: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


NOTHING = SensorReading()


@final
class Scripted(SensorSource):
    """Gives the readings in turn, or one for ever, and is lost after the last; counts the looks."""

    def __init__(self, readings: SensorReading | Iterable[SensorReading] = NOTHING) -> None:
        self._readings = repeat(readings) if isinstance(readings, SensorReading) else iter(readings)
        self.looks = 0
        self.is_closed = False

    def read(self) -> SensorReading:
        self.looks += 1
        reading = next(self._readings, None)
        if reading is None:
            raise OSError("the device fell off the bus")
        return replace(reading, at=time.perf_counter())

    def close(self) -> None:
        self.is_closed = True


def test_trials_on_one_device_share_its_source_and_are_told_apart() -> None:
    source = Scripted(SensorReading(num_others=1, temperature_celsius=50.0))
    made: list[str] = []

    def make(device: str) -> SensorSource:
        made.append(device)
        return source

    monitor = Monitor(make, interval_seconds=0.005)
    monitor.begin(1, ["cpu"])
    wait_until(lambda: source.looks >= 5)
    middle = time.perf_counter()
    monitor.begin(2, ["cpu"])
    seen = source.looks
    wait_until(lambda: source.looks >= seen + 6)
    assert monitor.end(1, [(0.0, middle)]).flags == ("other_process",)
    assert monitor.end(2, [(0.0, middle)]) == DeviceSummary()
    monitor.close()
    assert made == ["cpu"]
    assert source.is_closed


def test_nobody_looks_while_nothing_runs() -> None:
    source = Scripted()
    monitor = Monitor(lambda _device: source, interval_seconds=0.002)
    monitor.begin(1, ["cpu"])
    wait_until(lambda: source.looks >= 3)
    monitor.end(1)
    time.sleep(0.05)
    seen = source.looks
    time.sleep(0.05)
    assert source.looks == seen
    monitor.begin(2, ["cpu"])
    wait_until(lambda: source.looks > seen)
    monitor.close()


def test_a_device_that_is_lost_amid_a_trial_keeps_what_was_seen(caplog: pytest.LogCaptureFixture) -> None:
    source = Scripted([SensorReading(temperature_celsius=50.0)] * 4)
    monitor = Monitor(lambda _device: source, interval_seconds=0.002)
    monitor.begin(1, ["cuda:0"])
    wait_until(lambda: source.looks >= 8)
    assert monitor.end(1, [(0.0, 1e9)]).measurements == {"temperature_celsius": 50.0}
    monitor.close()
    assert len(caplog.records) == 1


def test_the_live_utilization_is_that_of_the_last_readings_of_all_devices() -> None:
    rising = (SensorReading(utilization=share) for share in (0.1, 0.2, 0.3, 0.4, 0.5))
    sources = {"cuda:0": Scripted(rising), "cuda:1": Scripted(SensorReading(utilization=0.9)), "cpu": Scripted()}
    monitor = Monitor(sources.__getitem__, interval_seconds=0.002)
    assert monitor.read_utilization(1) is None
    monitor.begin(1, ["cuda:0"])
    monitor.begin(2, ["cuda:0", "cuda:1"])
    monitor.begin(3, ["cpu"])
    wait_until(lambda: sources["cuda:0"].looks > 5 and sources["cuda:1"].looks > 8)  # the first device was lost
    assert monitor.read_utilization(1) == pytest.approx((0.2 + 0.3 + 0.4 + 0.5) / 4)
    assert monitor.read_utilization(2) == pytest.approx((0.35 + 0.9) / 2)
    assert monitor.read_utilization(3) is None
    assert monitor.read_utilization(4) is None
    monitor.close()


def test_a_long_trial_keeps_a_bounded_number_of_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.measurement.monitor._MAX_READINGS", 10)
    source = Scripted(SensorReading(temperature_celsius=50.0))
    monitor = Monitor(lambda _device: source, interval_seconds=0.001)
    monitor.begin(1, ["cpu"])
    wait_until(lambda: source.looks >= 40)
    assert len(monitor._watches[1]["cpu"]) <= 10
    assert monitor.end(1, [(0.0, 1e9)]).measurements == {"temperature_celsius": 50.0}
    monitor.close()


# ---------------------------------------------------------------------- the host


def test_a_host_tells_our_time_from_that_of_others() -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    try:
        strangers, ours = HostSource(sleeper.pid), HostSource()
        before = strangers.read(), ours.read()
        code = "import time\nwhile time.process_time() < 0.3: pass"
        subprocess.run([sys.executable, "-c", code], check=True)  # a child counts also when it has ended
        after = strangers.read(), ours.read()
    finally:
        sleeper.communicate(b"")
    spent = [(two.own_busy_seconds or 0) - (one.own_busy_seconds or 0) for one, two in zip(before, after, strict=True)]
    assert spent[0] < 0.1  # to the sleeper this process is another
    assert spent[1] >= 0.25
    assert (after[1].busy_seconds or 0) - (before[1].busy_seconds or 0) >= 0.25
    assert after[1].num_processors >= 1


# ---------------------------------------------------------------------- trials


def trains_for_a_moment(task: TrialTask) -> Iterator[Message]:
    """Trains for 0.2 s and reports half of its steps; an earlier attempt took twice as long. The reference work takes
    ``task.config.seed`` milliseconds."""
    began = time.perf_counter()
    time.sleep(0.2)
    yield Progress(step=1, num_steps=2, epoch=0.5, images_per_second=100.0)
    end = time.perf_counter()
    measured: dict[str, float | int] = {
        "val_accuracy": 0.5, "reference_seconds": (task.config.seed or 10) / 1000, "train_seconds": 3 * (end - began)
    }  # fmt: skip
    yield Ending(
        outcome="complete", measurements=measured, device="a machine", environment={"device": "a machine"},
        quality_flags=("few_steps",), training_spans=((began, end),),
    )  # fmt: skip


def train(executor: MonitoredExecutor, number: int, seed: int = 0) -> tuple[Progress, Ending]:
    executor.start(TrialTask(number=number, config=build_config({"seed": seed}, "test")))
    messages: list[Message] = []
    while not (messages and isinstance(messages[-1], Ending)):
        messages += [message for _, message in executor.poll(5.0)]
    progress, ending = messages
    assert isinstance(progress, Progress)
    assert isinstance(ending, Ending)
    return progress, ending


RUNNER = "tests.test_monitor:trains_for_a_moment"


def test_an_ending_gets_what_the_monitor_saw_in_another_process() -> None:
    source = Scripted(SensorReading(num_others=1, temperature_celsius=55.0, utilization=0.75))
    monitor = Monitor(lambda _device: source, interval_seconds=0.01)
    inner = ProcessExecutor(["cpu"], program=WorkerProgram(RUNNER, modules=()))
    with MonitoredExecutor(inner, monitor, {}) as executor:
        progress, ending = train(executor, 7)
    assert (progress.step, progress.gpu_utilization) == (1, 0.75)
    assert ending.outcome == "complete"
    assert ending.measurements["temperature_celsius"] == 55.0
    assert ending.quality_flags == ("few_steps", "other_process")
    assert source.is_closed


def test_the_energy_of_a_trial_is_that_of_all_its_attempts() -> None:
    began = time.perf_counter()
    readings = (SensorReading(energy_joules=100.0 * (time.perf_counter() - began)) for _ in repeat(None))
    monitor = Monitor(lambda _device: Scripted(readings), interval_seconds=0.01)
    with MonitoredExecutor(InlineExecutor("cpu", WorkerProgram(RUNNER)), monitor, {}) as executor:
        progress, ending = train(executor, 1)
    assert progress.gpu_utilization is None
    assert ending.measurements["power_watts"] == pytest.approx(100.0, rel=0.05)
    energy = ending.measurements["power_watts"] * ending.measurements["train_seconds"]
    assert ending.measurements["energy_joules"] == pytest.approx(energy)


def waits_throughout(task: TrialTask) -> Iterator[Message]:
    """A training on the device of its seed (0: CPU, 1: GPU) that waited for a processor in every window."""
    for message in trains_for_a_moment(task):
        if isinstance(message, Ending):
            kind = ("cpu", "cuda")[task.config.seed]
            yield replace(message, environment={"device_type": kind}, quality_flags=("processor_wait",))
        else:
            yield message


@pytest.mark.parametrize(("seed", "load", "is_slowed"), [(0, 0.5, True), (0, 0.0, False), (1, 0.5, False)])
def test_waiting_is_put_down_to_other_programs_where_they_used_the_cores(
    seed: int, load: float, is_slowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = [replace(reading, at=3 + reading.at) for reading in host_trace(116, load=load)]
    summary = summarize_readings(readings, [(3.0, 40.0)])
    assert ("busy_host" in summary.flags) == (load > 0)
    monitor = Monitor(lambda _device: Scripted(), interval_seconds=0.05)
    monkeypatch.setattr(monitor, "end", lambda _number, _spans: summary)
    runner = WorkerProgram("tests.test_monitor:waits_throughout")
    with MonitoredExecutor(InlineExecutor("cpu", runner), monitor, {}) as executor:
        assert ("slowed_by_others" in train(executor, 1, seed)[1].quality_flags) == is_slowed


def test_reference_work_that_takes_longer_than_usual_is_flagged() -> None:
    monitor = Monitor(lambda _device: Scripted(), interval_seconds=0.05)
    known = {"a machine": [0.01] * 3, "another machine": [0.5] * 10}
    with MonitoredExecutor(InlineExecutor("cpu", WorkerProgram(RUNNER)), monitor, known) as executor:
        flags = [train(executor, number, seed)[1].quality_flags for number, seed in enumerate((10, 10, 10, 12))]
    assert flags == [("few_steps",)] * 3 + [("few_steps", "reference_drift")]


HARDWARE = {"energy_joules", "power_watts"}
CPU = ExecutorSettings(device="cpu")


def study(*objectives: str, base: dict[str, Any] | None = None, space: dict[str, Any] | None = None) -> StudySpec:
    table = {"name": "s", "question": "?", "objectives": ["val_accuracy", *objectives], "trials": 1}
    swept = {"batch.micro": {"choice": [16, 32]}} | (space or {})
    return build_study(table | {"base": base or {}, "space": swept}, "test")


def fake_driver(monkeypatch: pytest.MonkeyPatch, millijoules: dict[int, int], *broken: str) -> list[int]:
    """A driver of two GPUs; those with ``millijoules`` have an energy counter. Returns the GPUs that were asked."""
    asked: list[int] = []

    def handle(index: int) -> int:
        asked.append(index)
        return index

    library = fake_nvml(*broken)
    library.nvmlDeviceGetCount, library.nvmlDeviceGetHandleByIndex = lambda: 2, handle
    library.nvmlDeviceGetTotalEnergyConsumption, library.NVMLError = millijoules.__getitem__, RuntimeError
    monkeypatch.setitem(sys.modules, "pynvml", library)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return asked


@pytest.mark.parametrize("name", sorted(HARDWARE))
def test_no_executor_measures_energy_or_power_on_a_cpu(name: str) -> None:
    for executor in ("process", "inline", "ray", "slurm"):
        settings = ExecutorSettings(name=executor, device="cpu", address="head:6379" if executor == "ray" else None)
        assert set(find_unmeasurable(study(name), settings)) == {name}
    with pytest.raises(InputError) as refusal:
        check_objectives(study(name), CPU)
    said = str(refusal.value)
    assert f"objectives: {name} cannot be measured by this study on the CPU here" in said
    assert "requires an NVIDIA GPU with a" in said
    offered = said.partition("choose from ")[2].rstrip(".").split(", ")
    assert offered == list_measurable(study(name), CPU)
    assert {"val_accuracy", "peak_memory_bytes"} <= set(offered)
    check_objectives(study(*(offer for offer in offered if offer != "val_accuracy")), CPU)


def test_a_gpu_is_asked_for_its_counters(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_driver(monkeypatch, {0: 5, 1: 7})
    check_objectives(study("train_seconds"), ExecutorSettings())
    assert asked == []  # nothing depends on them
    check_objectives(study(*HARDWARE), ExecutorSettings())
    assert set(asked) == {0, 1}
    asked.clear()
    check_objectives(study(*HARDWARE), ExecutorSettings(device="cuda:1"))
    assert set(asked) == {1}


def test_one_gpu_without_an_energy_counter_suffices_to_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_driver(monkeypatch, {0: 5})
    assert set(find_unmeasurable(study(*HARDWARE), ExecutorSettings())) == {"energy_joules"}
    assert find_unmeasurable(study(*HARDWARE), ExecutorSettings(device="cuda:0")) == {}
    with pytest.raises(InputError, match=r"on a GPU here: energy_joules requires .*energy counter"):
        check_objectives(study(*HARDWARE), ExecutorSettings(device="cuda:1"))
    fake_driver(monkeypatch, {0: 5, 1: 7}, "nvmlDeviceGetPowerUsage")
    assert find_unmeasurable(study(*HARDWARE), ExecutorSettings()) == {}  # a counter gives the mean power as well
    fake_driver(monkeypatch, {}, "nvmlDeviceGetPowerUsage")
    assert set(find_unmeasurable(study(*HARDWARE), ExecutorSettings())) == HARDWARE


def test_of_a_cluster_the_type_of_device_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = fake_driver(monkeypatch, {}, "nvmlDeviceGetPowerUsage")  # this machine has no counter
    check_objectives(study("energy_joules"), ExecutorSettings(name="slurm"))
    check_objectives(study("energy_joules"), ExecutorSettings(name="ray", address="head:6379"))
    assert asked == []
    cpus = ExecutorSettings(name="slurm", slurm=SlurmSettings(gpus_per_node=0))
    for settings in (cpus, ExecutorSettings(name="ray")):
        assert set(find_unmeasurable(study("energy_joules"), settings)) == {"energy_joules"}


def test_what_settings_do_not_measure_is_refused_with_the_setting() -> None:
    for name in ("steps_to_target", "seconds_to_target"):
        with pytest.raises(InputError, match=r"set budget\.target in \[base\]"):
            check_objectives(study(name), CPU)
    spec = study("steps_to_target", base={"budget.target": 0.9})
    check_objectives(spec, CPU)
    assert set(list_objectives()) - set(list_measurable(spec, CPU)) == HARDWARE | {"quality"}
    check_objectives(study("steps_to_target", space={"budget.target": {"float": [0.5, 0.9]}}), CPU)


STUDY = """
name = "warm"
question = "Which batch takes the least energy?"
objectives = ["val_accuracy", "energy_joules"]
trials = 2
[space]
"batch.micro" = { choice = [32, 64] }
"""


def test_run_and_dry_run_refuse_and_check_advises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "warm.toml").write_text(STUDY)
    (tmp_path / "packed.toml").write_text('device = "cpu"\nper_device = 2\n')
    monkeypatch.chdir(tmp_path)
    for options in (["--on", "cpu"], ["--dry-run", "--on", "cpu"], ["--on", "packed.toml"], INLINE):
        assert run_app(["run", "warm.toml", *options]) == 2
        assert "energy_joules cannot be measured by this study on the CPU here" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    monkeypatch.setitem(sys.modules, "pynvml", None)  # no driver's library
    assert run_app(["check", "warm.toml", "--json"]) == 0
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)["advice"]}
    statement = found["not_on_this_machine"]["statement"]
    assert "energy_joules cannot be measured by this study on" in statement
    assert "choose from val_accuracy" in statement
    assert run_app(["check", "warm.toml", "--set", 'objectives=["val_accuracy"]', "--json"]) == 0
    assert "not_on_this_machine" not in capsys.readouterr().out
