"""Whole trials, probes and studies on a made-up GPU, so that no path of a GPU runs for the first time where one is."""

import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import CUDA, NAME, UUID, FakeCuda, use_fake_cuda
from records_factory import make_spec
from torch import Tensor, nn
from training_factory import make_config, train_whole

from sweep.cli.check import check_machine
from sweep.config.errors import InputError
from sweep.config.tables import OPTIMIZERS
from sweep.config.trial import TrialConfig, build_config
from sweep.executors.table import ExecutorSettings
from sweep.measurement import device
from sweep.measurement import monitor as nvml
from sweep.measurement.clock import Ledger
from sweep.measurement.device import make_moments, make_synchronizer, wait_until_settled
from sweep.measurement.monitor import Monitor
from sweep.probing.probe import run_probe
from sweep.records.messages import (
    DEVICE_FULL,
    FAULTS_OF_THE_MACHINE,
    Ending,
    Evaluation,
    Heartbeat,
    Message,
    ProbeTask,
    TrialTask,
)
from sweep.records.store import open_store
from sweep.search import session
from sweep.search.session import Options
from sweep.training import trial
from sweep.training.optimizers import build_optimizer
from sweep.training.precision import LossScaler, set_tf32
from sweep.training.setup import prepare_training
from sweep.training.step import Step
from sweep.training.trial import run_trial
from sweep.training.warmup import warm_up_trial

STREAMED = {"data__placement": "host", "data__workers": 1}
GRAPHS = {"precision__cuda_graphs": True}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("sweep.measurement.device._MAX_SETTLING_SECONDS", 0.04)
    monkeypatch.setitem(device._ELEMENTS, "cuda", 2**12)
    with use_fake_cuda() as made:
        yield made


def configure(**values: object) -> TrialConfig:
    settings = {"data.name": "digits", "data.subset": 40, "batch.micro": 16, "budget.steps": 3, "optimizer.lr": 0.05}
    return make_config(settings, **values)


def run(**values: object) -> tuple[list[Message], Ending]:
    *messages, ending = run_trial(TrialTask(number=0, config=configure(**values), device="cuda"))
    return messages, ending


def losses(messages: list[Message]) -> list[float]:
    return [each.val_loss for each in messages if isinstance(each, Evaluation)]


@pytest.mark.parametrize("values", [
    {}, {"data__augment": "crop_flip", "regularization__ema_decay": 0.9, "precision__channels_last": True},
    {**STREAMED, "data__augment": "randaugment", "regularization__mixup": 0.2, "regularization__cutmix": 0.2},
    {"data__augment": "random_resized_crop", "regularization__mixup": 0.2, "regularization__grad_clip": 1.0},
    {"batch__accumulation": 2, "diagnostics__noise_scale": True},
    {**GRAPHS, "precision__dtype": "fp16", "batch__accumulation": 2},
    {**GRAPHS, **STREAMED, "data__augment": "crop_flip"},
    {"precision__dtype": "tf32", "precision__checkpointing": True, "model__norm": "ghost"},
    {"precision__dtype": "bf16", "model__name": "vit_micro", "optimizer__name": "muon", "model__dropout": 0.1},
    {"batch__micro": "auto", "batch__global": 32, "diagnostics__sharpness": True, "evaluation__tta": "flip"},
    {"optimizer__name": "schedule_free", "optimizer__lr": 0.01, "schedule__name": "constant"},
], ids=lambda values: " ".join(f"{key}={value}" for key, value in values.items()) or "plain")  # fmt: skip
def test_a_trial_goes_from_its_first_message_to_its_ending(gpu: FakeCuda, values: dict[str, object]) -> None:
    messages, ending = run(**values)
    assert (ending.outcome, ending.error) == ("complete", "")
    assert messages[0] == Heartbeat(gpus=(f"GPU-{UUID}",))
    measured = ending.measurements
    assert (measured["num_steps"], ending.device, ending.environment["device_type"]) == (3, NAME, "cuda")
    assert all(math.isfinite(loss) for loss in losses(messages))
    assert 0 < measured["peak_memory_bytes"] <= measured["reserved_memory_bytes"]
    assert 0.0 <= measured["data_wait_seconds"] <= measured["train_seconds"]
    assert measured["reference_seconds"] > 0.0
    assert bool(gpu.captures) == ("precision__cuda_graphs" in values)  # which a pinned loader does not break


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("values", [{}, {"data__augment": "crop_flip", "batch__accumulation": 2}], ids=str)
def test_what_is_learned_is_that_of_the_processor(values: dict[str, object]) -> None:
    here, ending = run(**values)
    *there, _ = run_trial(TrialTask(number=0, config=configure(**values), device="cpu"))
    assert losses(here) == pytest.approx(losses(there), rel=1e-3)
    graphed, _ = run(**values, **GRAPHS)
    assert losses(graphed) == pytest.approx(losses(here), rel=1e-5)
    assert ending.outcome == "complete"


def test_graphs_share_a_pool_that_counts_as_memory(gpu: FakeCuda) -> None:
    eager, graphed = (run(precision__cuda_graphs=value)[1].measurements for value in (False, True))
    assert len(gpu.captures) == 2  # of 16 images, and of the 8 that are left of 40
    assert {each["capture_error_mode"] for each in gpu.captures} == {"thread_local"}
    assert len({id(each["pool"]) for each in gpu.captures}) == 1
    (pool_bytes,) = gpu.pools.values()
    # the pool is the graphs' for good, so that an evaluation has its memory beside it
    assert graphed["peak_memory_bytes"] > pool_bytes > 0.5 * eager["peak_memory_bytes"]
    assert graphed["peak_memory_bytes"] > 1.2 * eager["peak_memory_bytes"]
    assert graphed["reserved_memory_bytes"] >= pool_bytes + eager["num_parameters"] * 4


@pytest.mark.parametrize("values", [
    {"data__augment": "crop_flip"},
    {**STREAMED, "data__workers": 0, "data__augment": "randaugment", "regularization__mixup": 0.2},
    {"data__augment": "random_resized_crop", "precision__dtype": "fp16", "optimizer__name": "lamb"},
    {"regularization__cutmix": 0.2, "regularization__ema_decay": 0.9, "precision__dtype": "fp16"},
    {**GRAPHS, "batch__accumulation": 2, "regularization__grad_clip": 1.0},
], ids=lambda values: " ".join(map(str, values.values())))  # fmt: skip
def test_the_host_waits_for_the_device_at_the_edges_of_windows_alone(gpu: FakeCuda, values: dict[str, object]) -> None:
    setup = prepare_training(configure(**values), CUDA)
    warm_up_trial(setup, Ledger())
    windows = setup.planner.windows_of_epoch(setup.schedule.first)
    setup.feeder.begin_epoch(0, windows)
    before = gpu.num_waits
    for window in windows:
        setup.step(setup.feeder.micro_batches(window), window.samples)
    assert gpu.num_waits == before


def test_data_wait_is_the_devices_own_time(gpu: FakeCuda) -> None:
    setup = prepare_training(configure(data__augment="crop_flip"), CUDA)
    ledger = Ledger()
    ledger.synchronize, ledger.moments = make_synchronizer(CUDA), make_moments(CUDA)
    windows = setup.planner.windows_of_epoch(16)
    setup.feeder.begin_epoch(0, windows)
    gpu.seconds_per_operation = 0.01  # far more than the host takes to launch one
    ledger.open_window()
    num_operations = 0
    for window in windows:
        before = gpu.num_operations
        for _ in ledger.waiting(setup.feeder.micro_batches(window)):
            num_operations += gpu.num_operations - before
            torch.ones(8, device=CUDA).sin_()  # the step
    ledger.close_window(len(windows), 40, is_full=True)
    wait, step = ledger.seconds["data_wait"], ledger.seconds["step"]
    assert num_operations > 5 * len(windows)  # of the crops
    assert wait >= 0.01 * num_operations
    assert step >= 0.01 * len(windows)
    assert wait + step == pytest.approx(ledger.windows[0].seconds)


def test_memory_that_runs_out_is_the_configurations_fault_only_once_the_device_was_reached(gpu: FakeCuda) -> None:
    gpu.others_bytes = gpu.total_bytes - gpu.context_bytes - (100 << 20)
    _, ending = run(batch__micro=16)
    assert ending.outcome == "complete", ending.error
    gpu.fraction = 5e-4
    assert run(data__subset=1000, batch__micro=512)[1].outcome == "out_of_memory"
    gpu.fraction = 1.0
    gpu.others_bytes = gpu.total_bytes  # nothing is left for an empty process
    _, ending = run()
    assert (ending.outcome, ending.cause) == ("crashed", DEVICE_FULL)
    assert ending.error.startswith("other programs hold the memory of the GPU")
    assert DEVICE_FULL in FAULTS_OF_THE_MACHINE  # so that the trial is repeated
    gpu.others_bytes = 0
    gpu.context_error = torch.AcceleratorError("CUDA error: out of memory")
    assert run()[1].cause == DEVICE_FULL
    (probed,) = run_probe(ProbeTask(number=0, config=configure(), device="cuda"))
    assert (probed.outcome, probed.cause) == ("crashed", DEVICE_FULL)
    gpu.context_error = RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")
    assert run()[1].cause == "device_failed"


def test_the_bottleneck_of_graphs_is_told_by_their_data_alone(gpu: FakeCuda) -> None:
    _, ending = run(**GRAPHS, batch__micro=8, budget__steps=60, budget__epochs=None)
    assert ending.outcome == "complete", ending.error
    assert ending.bottleneck in {"", "data_bound", "compute_bound"}
    assert gpu.captures


@pytest.mark.usefixtures("gpu")
def test_a_gpu_is_found_by_name_and_by_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.resolve_device("auto") == device.resolve_device("cuda") == CUDA
    with pytest.raises(InputError, match="'cuda:1' is not there: 1 CUDA device"):
        device.resolve_device("cuda:1")
    monkeypatch.setitem(sys.modules, "pynvml", make_driver([]))
    found = {check.name: check.found for check in check_machine()}
    assert (found["device"], found["NVIDIA driver"]) == (f"1 x {NAME}", "580.1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-77")  # a part is named by the entry that restricts to it
    assert device.identify_gpu(CUDA) == "MIG-77"


def test_a_probe_within_a_limit(gpu: FakeCuda) -> None:
    task = ProbeTask(number=0, config=configure(), device="cuda", timed_seconds=0.05, memory_limit_bytes=1 << 30)
    heartbeat, ending = run_probe(task)
    assert (ending.outcome, ending.error) == ("complete", "")
    assert heartbeat == Heartbeat(gpus=(f"GPU-{UUID}",))
    assert gpu.fraction == (1 << 30) / gpu.total_bytes
    assert ending.measurements["reserved_memory_bytes"] >= ending.measurements["peak_memory_bytes"]


@pytest.mark.usefixtures("gpu")
def test_a_trial_continues_from_its_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.training.trial.WINDOW_SECONDS", 0.0)
    values = {"precision__dtype": "fp16", "model__dropout": 0.1, "optimizer__name": "lamb", "budget__steps": 6}
    unbroken, _ = run(**values)
    config = configure(**values)
    task = TrialTask(number=0, config=config, device="cuda", checkpoint_dir=str(tmp_path), checkpoint_seconds=0.0)
    messages = run_trial(task)
    assert any(isinstance(message, Evaluation) for message in messages)
    messages.close()  # type: ignore[attr-defined]
    *found, ending = run_trial(task)
    assert (ending.outcome, ending.measurements["num_steps"]) == ("complete", 6)
    assert losses(found) == pytest.approx(losses(unbroken), rel=1e-5)


def make_driver(read: list[str]) -> SimpleNamespace:
    """A driver of two GPUs, of which the trial's is the second in the order of the bus."""
    uuids = ["GPU-00000000-0000-0000-0000-000000000000", f"GPU-{UUID}"]

    def find(uuid: str) -> str:
        if uuid not in uuids:
            raise RuntimeError("Not Found")
        return uuid

    def take_note(gpu: str) -> SimpleNamespace:
        read.append(gpu)
        return SimpleNamespace(gpu=87)

    calls: dict[str, Any] = {
        "nvmlInit": lambda: None, "nvmlShutdown": lambda: None, "nvmlSystemGetDriverVersion": lambda: "580.1",
        "nvmlDeviceGetCount": lambda: 2, "nvmlDeviceGetHandleByIndex": lambda index: uuids[index],
        "nvmlDeviceGetHandleByUUID": find, "nvmlDeviceGetUUID": lambda gpu: gpu,
        "nvmlDeviceGetUtilizationRates": take_note,
        "nvmlDeviceGetPowerManagementLimit": lambda gpu: 700_000 if gpu == uuids[1] else 100_000,
        "NVMLError": RuntimeError,
    }  # fmt: skip
    return SimpleNamespace(**calls)


@pytest.mark.parametrize("visible", ["0", f"GPU-{UUID}"])
def test_a_study_is_monitored_on_the_gpu_that_trains(gpu: FakeCuda, tmp_path: Path, monkeypatch, visible: str) -> None:
    read: list[str] = []
    monkeypatch.setitem(sys.modules, "pynvml", make_driver(read))
    monkeypatch.setattr(session, "Monitor", partial(Monitor, interval_seconds=0.002))
    # without its cache, which other tests would read
    monkeypatch.setattr(device, "read_driver_version", nvml.read_driver_version.__wrapped__)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)  # by number in CUDA's own order, fastest first
    base = {"data.name": "digits", "data.subset": 200, "budget.steps": 12, "optimizer.lr": 0.05}
    spec = make_spec(trials=1, base=base, space={"batch.micro": {"choice": [16]}}, confirm={"seeds": 0})
    options = Options(root=tmp_path, executor=ExecutorSettings(name="inline", device="cuda"))
    folder = session.run_study(spec, options)
    with closing(open_store(folder, read_only=True)) as store:
        (record,) = store.trial_records(spec.name)
    assert (record.outcome, record.device, record.error) == ("complete", NAME, "")
    assert set(read) == {f"GPU-{UUID}"}
    assert record.measurements["reserved_memory_bytes"] >= record.measurements["peak_memory_bytes"]
    description = device.describe_machine("cuda", None)
    assert (description["driver"], description["power_limit_watts"]) == ("580.1", 700.0)
    assert description["device_free_bytes"] == gpu.total_bytes - gpu.context_bytes - gpu.reserved_bytes


# ---------------------------------------------------------------------- optimizers and the loss scaler


def make_optimizer(name: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)).to(CUDA)
    values = {"optimizer.name": name, "optimizer.weight_decay": 0.1, "optimizer.lr": 0.01}
    return model, build_optimizer(build_config(values, "test"), model)


def set_gradients(model: nn.Module, seed: int, scale: float, *, has_overflown: bool = False) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = scale * torch.randn(parameter.shape, generator=generator).to(CUDA, non_blocking=True)
    if has_overflown:
        next(iter(model.parameters())).grad[0] = math.inf
        list(model.parameters())[-1].grad[0] = math.nan


def values_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    states = (value for entry in optimizer.state.values() for value in entry.values())
    return [value.clone() for value in (*model.parameters(), *states) if isinstance(value, Tensor)]


def take_step(gpu: FakeCuda, scaler: LossScaler, optimizer: Any, *, is_clipped: bool) -> None:
    before = gpu.num_waits
    if is_clipped:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert gpu.num_waits == before, "the host has waited for the device"


@pytest.mark.parametrize("is_clipped", [False, True])
@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_a_step_that_overflows_changes_nothing_and_needs_no_wait(gpu: FakeCuda, name: str, is_clipped: bool) -> None:
    model, optimizer = make_optimizer(name)
    plain_model, plain = make_optimizer(name)
    scaler = LossScaler(CUDA)
    scale = 0.0
    # the first step overflows, as it does in a training with the highest scale
    for seed, has_overflown in enumerate((True, False, False, True, False)):
        scale = float(scaler.scale(torch.ones((), device=CUDA)))
        set_gradients(model, seed, scale, has_overflown=has_overflown)
        weights = [parameter.detach().clone() for parameter in model.parameters()]
        before = values_of(model, optimizer) if seed else []
        take_step(gpu, scaler, optimizer, is_clipped=is_clipped)
        if has_overflown:
            assert all(map(torch.equal, model.parameters(), weights))
            assert all(map(torch.equal, values_of(model, optimizer), before))
            assert not scaler.is_taken
            continue
        set_gradients(plain_model, seed, 1.0)
        plain.step()
        for one, other in zip(values_of(model, optimizer), values_of(plain_model, plain), strict=True):
            assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)
        assert not any(map(torch.equal, model.parameters(), weights))
    assert scaler.num_skipped == 2


BACKENDS: Any = torch.backends  # torch leaves these attributes untyped


@pytest.fixture
def switches() -> Iterator[None]:
    """torch's switches, which are left as they are in a new process."""
    yield
    torch.set_float32_matmul_precision("highest")
    BACKENDS.cudnn.allow_tf32 = True


def read_switches() -> dict[str, object]:
    """Every getter, older and newer, of the switches for TF32; the older ones raise where the newer ones differ."""
    with BACKENDS.cudnn.flags(enabled=True, allow_tf32=BACKENDS.cudnn.allow_tf32, fp32_precision="none"):
        pass
    return {
        "matmul": torch.get_float32_matmul_precision(),
        "cublas": BACKENDS.cuda.matmul.allow_tf32,
        "cudnn": BACKENDS.cudnn.allow_tf32,
        "new matmul": BACKENDS.cuda.matmul.fp32_precision,
    }


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize("order", [(True, False), (False, True, False)])
def test_no_getter_of_torch_raises_and_all_agree(order: tuple[bool, ...]) -> None:
    for is_allowed in order:
        set_tf32(is_allowed=is_allowed)
        name = "tf32" if is_allowed else "ieee"
        assert {BACKENDS.cudnn.conv.fp32_precision, BACKENDS.cudnn.rnn.fp32_precision} == {name}
        level = "high" if is_allowed else "highest"
        expected = {"matmul": level, "cublas": is_allowed, "cudnn": is_allowed, "new matmul": name}
        assert read_switches() == expected


@pytest.mark.usefixtures("switches")
def test_a_plugin_that_allows_tf32_everywhere_does_not_change_fp32() -> None:
    set_tf32(is_allowed=False)
    BACKENDS.fp32_precision = "tf32"
    try:
        assert BACKENDS.cudnn.conv.fp32_precision == BACKENDS.cuda.matmul.fp32_precision == "ieee"
    finally:
        BACKENDS.fp32_precision = "none"


@pytest.mark.parametrize(("values", "num_measured"), [
    ([5.0, 3.0, 2.0, 1.5, 1.0, 1.01, 1.0, 0.5], 7),  # a clock that rises
    ([1.0, 1.0, 1.0, 9.0], 3),  # one that has risen
    ([1.0, 2.0] * 10, 12),  # one that never settles
])  # fmt: skip
def test_work_goes_on_until_the_clock_has_settled(values: list[float], num_measured: int) -> None:
    left = iter(values)
    wait_until_settled(lambda: next(left), 12)
    assert len(values) - len(list(left)) == num_measured


@pytest.mark.parametrize("values", [
    {"batch.micro": 48, "data.subset": 97},  # a single sample is left, and joins the batch before
    {"batch.micro": 24, "batch.global": 50, "batch.schedule": "exponential", "batch.schedule_factor": 4.0},
    {"batch.micro": 48, "batch.global": 100, "batch.schedule": "linear", "data.subset": 150},
    {"batch.micro": 16, "batch.accumulation": 2, "batch.schedule": "stepwise", "batch.schedule_factor": 4.0},
], ids=str)  # fmt: skip
def test_every_shape_is_met_before_the_clock_starts(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, set[int]] = defaultdict(set)
    phase = ["warm-up"]
    take, warm_up, finish = Step.micro_step, trial.warm_up_trial, trial.finish_trial

    def take_note(self: Step, images: Tensor, labels: Tensor, share: Tensor | float) -> Tensor:
        sizes[phase[-1]].add(len(labels))
        return take(self, images, labels, share)

    monkeypatch.setattr(Step, "micro_step", take_note)
    monkeypatch.setattr(trial, "warm_up_trial", lambda *given: (warm_up(*given), phase.append("training"))[0])
    monkeypatch.setattr(trial, "finish_trial", lambda *given: phase.append("end") or finish(*given))
    settings = {"data.name": "digits", "data.subset": 200, "budget.epochs": 6.0, "optimizer.lr": 0.01} | values
    train_whole(make_config(settings))
    assert sizes["training"]
    assert sizes["training"] <= sizes["warm-up"]
