"""Several ranks and micro batches found by trying: the update is the one asked for, whatever befalls them."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
import training_factory
from executor_contract import await_childless, await_dead, hear_out
from executor_contract import run as run_task
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from training_factory import CPU

from sweep.config.tables import MODELS, ModelEntry, resolve
from sweep.config.trial import build_config
from sweep.executors.process import ProcessExecutor
from sweep.measurement.gradient_noise import NoiseMeter
from sweep.measurement.memory import MemoryUse
from sweep.records.messages import (
    Ending,
    Evaluation,
    Heartbeat,
    Message,
    Outcome,
    Progress,
    TrialTask,
    encode_message,
    encode_task,
)
from sweep.training.auto_micro import AutoMicro, step_within_memory
from sweep.training.data.feeders import Batch, shard_window
from sweep.training.data.windows import Window, cut_epoch
from sweep.training.processes import load_plugin
from sweep.training.ranks import RankReport, _Reports, run_ranks
from sweep.training.trial import run_trial
from sweep.training.world import World

PLUGIN = str(Path(__file__).with_name("rank_plugin.py"))
EXACT = {
    "precision.dtype": "fp64", "budget.steps": 5, "batch.accumulation": 2, "data.augment": "crop_flip",
    "schedule.warmup": 0.0, "regularization.grad_clip": 1.0, "regularization.ema_decay": 0.9,
    "regularization.mixup": 0.2,
}  # fmt: skip


def task(plugin: str | None = None, weights: Path | None = None, **values: object) -> TrialTask:
    if plugin:
        load_plugin(plugin)
    settings = {key.replace("__", "."): value for key, value in values.items()}
    config = build_config({"data.subset": 300, "seed": 3, "distributed.world_size": 2, **settings}, "test")
    return TrialTask(
        number=0, config=config, device="cpu", plugin=plugin, weights_path=str(weights) if weights else None
    )


@pytest.fixture(scope="module")
def executor() -> Iterator[ProcessExecutor]:
    with ProcessExecutor(devices=["cpu"]) as made:
        yield made


def run(executor: ProcessExecutor, given: TrialTask) -> tuple[list[Message], Ending]:
    *messages, ending = run_task(executor, given)
    assert isinstance(ending, Ending)
    return messages, ending


def family(pid: int) -> list[int]:
    return [process.pid for process in psutil.Process(pid).children(recursive=True)]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("num_samples", [1, 17, 64, 100, 129])
def test_the_ranks_share_every_window(size: int, num_samples: int) -> None:
    micro = 8
    windows = cut_epoch(num_samples, 64, micro * size)
    for window in windows:
        shares = [shard_window(window, World(rank, size)) for rank in range(size)]
        taken = [index for share in shares for part in share.slices for index in range(part.start, part.stop)]
        assert sorted(taken) == list(range(window.slices[0].start, window.slices[-1].stop))
        assert sum(share.samples for share in shares) == window.samples
        assert {len(share.slices) for share in shares} == {len(window.slices)}
        for parts in zip(*(share.slices for share in shares), strict=True):
            counts = [part.stop - part.start for part in parts]
            assert max(counts) - min(counts) <= 1
            assert max(counts) <= micro


def test_gradients_travel_once_in_a_window() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        shared = World(0, 2).wrap_model(nn.Linear(2, 2), torch.device("cpu"))
        assert isinstance(shared, DistributedDataParallel)
        batch = (torch.ones(1, 2), torch.zeros(1))
        seen = [shared.require_backward_grad_sync for _ in World(0, 2).iterate_micro_batches(shared, [batch] * 3)]
        assert seen == [False, False, True]
        assert shared.require_backward_grad_sync
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("model", "norm", "subset", "optimizer"),
    # the last window: a micro batch of 5 after a whole one; a single sample, which one rank gets none of
    [("resnet8", "group", 85, "momentum"), ("vit_micro", "batch", 65, "adamw")],
)
def test_two_ranks_make_the_update_of_one(
    executor: ProcessExecutor, tmp_path: Path, model: str, norm: str, subset: int, optimizer: str
) -> None:
    values = EXACT | {"model.name": model, "model.norm": norm, "data.subset": subset, "optimizer.name": optimizer}
    values |= {"optimizer.lr": 0.01}
    two, ending = run(executor, task(weights=tmp_path / "two", batch__micro=8, **values))
    alone = task(weights=tmp_path / "one", batch__micro=16, distributed__world_size=1, **values)
    *one, expected = run_trial(alone)
    assert (ending.error, ending.outcome, expected.outcome) == ("", "complete", "complete")
    apart = largest_difference(load_file(tmp_path / "two"), load_file(tmp_path / "one"))
    assert apart < 1e-10, apart
    assert figures(two) == pytest.approx(figures(one), abs=1e-9)
    *_, smaller = run_trial(task(batch__micro=8, distributed__world_size=1, **values))
    peak, peak_alone = (each.measurements["peak_memory_bytes"] for each in (ending, smaller))
    assert peak == pytest.approx(peak_alone, rel=0.05)
    for name in ("train_accuracy", "num_steps", "num_epochs", "num_parameters"):
        assert ending.measurements[name] == expected.measurements[name]


def figures(messages: list[Message]) -> list[float]:
    names = ("train_loss", "val_loss", "val_accuracy", "samples", "global_batch_size")
    found = [getattr(each, name) for each in messages if isinstance(each, Evaluation) for name in names]
    assert found
    return found


def largest_difference(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    assert ours.keys() == theirs.keys()
    assert all(tensor.dtype in (torch.float64, torch.int64) for tensor in ours.values())
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def test_batch_norm_sees_the_micro_batch_of_a_rank(executor: ProcessExecutor, tmp_path: Path) -> None:
    # one sample is left at the end, of which one rank would have no statistics
    values = EXACT | {"data.subset": 81, "batch.micro": 8, "optimizer.name": "schedule_free"}
    _, ending = run(executor, task(weights=tmp_path / "two", **values))
    alone = {"distributed.world_size": 1, "batch.micro": 16}
    *_, expected = run_trial(task(weights=tmp_path / "one", **(values | alone)))
    assert (ending.error, ending.outcome, expected.outcome) == ("", "complete", "complete")
    two, one = load_file(tmp_path / "two"), load_file(tmp_path / "one")
    assert largest_difference(two, one) > 1e-3
    assert all(bool(tensor.isfinite().all()) for tensor in two.values())


def test_ranks_stop_by_the_first_ones_clock(executor: ProcessExecutor) -> None:
    messages, ending = run(executor, task(budget__seconds=0.6))
    assert (ending.outcome, ending.error) == ("complete", "")
    assert 0.6 <= ending.measurements["train_seconds"] < 1.2
    threads = torch.get_num_threads()
    assert ending.device.endswith(f" x{threads // 2 * 2 or 2} threads")
    assert ending.environment["threads"] == max(1, threads // 2)
    assert len([message for message in messages if isinstance(message, Evaluation)]) > 1


def test_a_continued_trial_of_two_ranks_is_the_unbroken_one(executor: ProcessExecutor, tmp_path: Path) -> None:
    values = {"model.dropout": 0.2, "budget.epochs": 8.0, "batch.micro": 16}
    unbroken, expected = run(executor, task(weights=tmp_path / "unbroken", **values))
    given = task(weights=tmp_path / "continued", **values)
    given = replace(given, checkpoint_dir=str(tmp_path / "checkpoints"), checkpoint_seconds=0.0)
    executor.start(given)
    before: list[Message] = []
    while sum(isinstance(message, Evaluation) for message in before) < 2:  # the first of them is in a checkpoint now
        before += [message for _, message in executor.poll(60.0)]
        assert not any(isinstance(message, Ending) for message in before)
    executor.stop(given.number)
    continued, ending = run(executor, given)
    told = [next(message for message in told if isinstance(message, Evaluation)) for told in (before, continued)]
    assert told[0] == told[1], "it began anew"  # seconds and all
    assert (ending.error, ending.outcome, expected.outcome) == ("", "complete", "complete")
    assert figures(continued) == figures(unbroken)
    one, two = load_file(tmp_path / "unbroken"), load_file(tmp_path / "continued")
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_an_exception_in_the_second_rank_is_told(executor: ProcessExecutor) -> None:
    _, ending = run(executor, task(PLUGIN, model__name="raising"))
    assert ending.outcome == "crashed"
    assert ending.error.startswith("rank 1: ")
    assert "ArithmeticError: the second rank has had enough" in ending.error
    _, ending = run(executor, task(PLUGIN, model__name="hungry"))
    assert ending.outcome == "out_of_memory"
    assert ending.error == "rank 1: OutOfMemoryError: the second rank has had enough"
    await_childless(executor.forkserver_pid)


def test_ranks_with_different_data_are_refused(executor: ProcessExecutor) -> None:
    _, ending = run(executor, task(PLUGIN, data__name="uneven", data__subset=None))
    assert ending.outcome == "crashed"
    assert "the ranks were given different configurations or data" in ending.error


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_trial(executor: ProcessExecutor, victim: int) -> None:
    executor.start(task(budget__epochs=10_000.0))
    await_progress(executor)
    _child, _agent, *ranks = family(executor.forkserver_pid)
    assert len(ranks) == 2
    os.kill(sorted(ranks)[victim], signal.SIGKILL)
    ending = hear_out(executor, 0)[-1]
    assert isinstance(ending, Ending)
    assert ending.outcome == "crashed"
    assert ending.error.startswith(f"rank {victim}: killed by SIGKILL")
    await_childless(executor.forkserver_pid)


def test_a_stopped_trial_leaves_no_rank(executor: ProcessExecutor) -> None:
    executor.start(task(budget__epochs=10_000.0))
    await_progress(executor)
    everyone = family(executor.forkserver_pid)
    assert len(everyone) == 4
    executor.stop(0)
    await_dead(everyone)


def await_progress(executor: ProcessExecutor) -> None:
    while not any(isinstance(message, Progress) for _, message in executor.poll(60.0)):
        pass


SUPERVISOR = """
import sys
sys.path[:] = {path!r}
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import decode_task
executor = ProcessExecutor(devices=["cpu"])
executor.start(decode_task(sys.argv[1].encode()))
while not executor.poll(60.0):
    pass
print(executor.forkserver_pid, flush=True)
while True:
    executor.poll(60.0)
"""


def test_a_killed_supervisor_leaves_no_rank() -> None:
    text = encode_task(task(budget__epochs=10_000.0)).decode()
    program = SUPERVISOR.format(path=sys.path)
    with subprocess.Popen([sys.executable, "-c", program, text], stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        server = int(supervisor.stdout.readline())
        everyone = [server, *family(server)]
        assert len(everyone) == 5
        supervisor.kill()
    await_dead(everyone)


def test_a_trial_in_this_process_has_ranks_too() -> None:
    """This process has threads, so that the agent cannot be forked from it."""
    torch.ones(1000, 1000) @ torch.ones(1000, 1000)
    before = set(family(os.getpid()))
    messages = run_ranks(task(budget__epochs=10_000.0))
    assert isinstance(next(messages), Heartbeat | Progress | Evaluation)
    ranks = set(family(os.getpid())) - before
    assert len(ranks) == 3
    messages.close()  # type: ignore[attr-defined]
    await_dead(list(ranks))


def ending(rank: int, outcome: Outcome = "crashed", error: str = "") -> RankReport:
    return RankReport(rank, encode_message(Ending(outcome=outcome, error=error)).decode())


@pytest.mark.parametrize(
    ("news", "outcome", "error"),
    [
        ([], "crashed", "the ranks ended without a result"),
        ([ending(0, "complete")], "complete", ""),
        ([ending(0, "complete"), RankReport(1, exit_code=-6)], "complete", ""),
        # the neighbor of a killed rank loses its connection, and may report that before the agent sees the death
        ([ending(0, error="connection closed"), RankReport(1, exit_code=-11)], "crashed", "rank 1: killed by SIGSEGV"),
        ([ending(1, "out_of_memory", "no room"), ending(0, error="closed")], "out_of_memory", "rank 1: no room"),
        ([RankReport(1, exit_code=3)], "crashed", "rank 1: exit code 3 without a result"),
    ],
)
def test_the_cause_is_told_from_its_consequences(news: list[RankReport], outcome: str, error: str) -> None:
    reports = _Reports(num_ranks=2)
    for each in news:
        assert reports.add(each) is None
    assert (reports.make_ending().outcome, reports.make_ending().error) == (outcome, error)


class Limited(nn.Module):
    """A model on a device that has room for so many samples of a training step."""

    capacity: Callable[[int], int] = staticmethod(lambda _call: 1_000_000)
    calls = 0
    sizes: tuple[int, ...] = ()

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        if self.training:
            Limited.calls += 1
            if len(images) > Limited.capacity(Limited.calls):
                self.model(images)  # it draws and counts before the memory runs out
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB")
            Limited.sizes += (len(images),)
        return self.model(images)


@pytest.fixture(autouse=True)
def limited(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("resnet8", "vit_micro"):
        build = resolve(MODELS[name].build or "")
        entry = ModelEntry(build=lambda *given, build=build: Limited(build(*given)))
        monkeypatch.setitem(MODELS, f"limited_{name}", entry)
    monkeypatch.setattr(Limited, "calls", 0)
    monkeypatch.setattr(Limited, "sizes", ())


def train(**values: object) -> tuple[list[tuple[float, ...]], Ending]:
    defaults = {"data.subset": 300, "budget.epochs": 2.0, "precision.dtype": "fp64", "batch.global": 128}
    defaults |= {"model.name": "limited_resnet8", "model.norm": "group", "optimizer.lr": 0.02}
    told, ending = training_factory.train(training_factory.make_config(defaults, **values))
    return [(each.step, each.train_loss, each.val_loss, each.val_accuracy) for each in told], ending


def set_capacity(monkeypatch: pytest.MonkeyPatch, capacity: Callable[[int], int]) -> None:
    monkeypatch.setattr(Limited, "capacity", staticmethod(capacity))


def test_what_fits_is_found_and_trains_as_if_it_had_been_given(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"model__dropout": 0.2, "data__augment": "crop_flip"}
    given, _ = train(batch__micro=32, **settings)
    set_capacity(monkeypatch, lambda _call: 40)
    found, ending = train(batch__micro="auto", **settings)
    assert ending.outcome == "complete"
    assert ending.measurements["micro_batch_size"] == 32
    assert "micro_batch_changed" not in ending.quality_flags
    assert found == given


@pytest.mark.parametrize("model", ["limited_resnet8", "limited_vit_micro"])
def test_running_out_of_memory_amid_the_training_changes_no_update(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, _ = train(batch__micro=128, model__name=model)
    calls = Limited.calls
    monkeypatch.setattr(Limited, "calls", 0)
    monkeypatch.setattr(Limited, "sizes", ())
    set_capacity(monkeypatch, lambda call: 128 if call < calls - 3 else 20)
    found, ending = train(batch__micro="auto", model__name=model)
    assert ending.outcome == "complete"
    assert ending.measurements["micro_batch_size"] == 16
    assert "micro_batch_changed" in ending.quality_flags
    assert {128, 16} <= set(Limited.sizes)
    for one, other in zip(found, given, strict=True):
        assert one == pytest.approx(other, rel=0, abs=1e-10)


def test_a_failed_attempt_leaves_no_trace_in_draws_and_running_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    # the third micro batch of the second step fails, and the whole step is done again
    settings = {"model__dropout": 0.3, "model__norm": "batch", "data__placement": "host"}
    set_capacity(monkeypatch, lambda _call: 32)
    quiet, _ = train(batch__micro=32, **settings)
    monkeypatch.setattr(Limited, "calls", 0)
    set_capacity(monkeypatch, lambda call: 0 if call == 15 else 32)
    monkeypatch.setattr(AutoMicro, "shrink", lambda auto_micro, _why: setattr(auto_micro, "micro", 32) or 32)
    found, ending = train(batch__micro="auto", **settings)
    assert "micro_batch_changed" in ending.quality_flags
    assert found == quiet


def measure_noise(monkeypatch: pytest.MonkeyPatch, fails_at: int, micro: int) -> dict[str, float]:
    """The averages of the gradient noise after one step of 64, first tried with micro batches of ``micro``."""
    monkeypatch.setattr(Limited, "calls", 0)
    set_capacity(monkeypatch, lambda call: 0 if call == fails_at else 64)
    values = {"batch__micro": "auto", "batch__global": 64, "precision__dtype": "fp64", "model__norm": "group"}
    plain = training_factory.make_step(training_factory.make_config(**values))
    model = Limited(plain.model)
    meter, auto_micro = NoiseMeter(model.parameters()), AutoMicro(micro, CPU)
    images, labels = training_factory.make_batch()

    def cut(_window: Window | None, size: int) -> Window:
        return cut_epoch(64, 64, size)[0]

    def batches_of(window: Window) -> Iterator[Batch]:
        return ((images[part], labels[part]) for part in window.slices)

    step = replace(plain, forward=model, model=model, noise=meter)
    step_within_memory(step, batches_of, cut(None, micro), auto_micro, cut)
    assert (auto_micro.micro, set(Limited.sizes[-4:])) == (16, {16})
    return meter.state_dict()["scale"]


def test_an_attempt_that_ran_out_of_memory_leaves_no_gradient_noise_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = measure_noise(monkeypatch, fails_at=0, micro=16)
    assert undisturbed["trace"] != 0
    assert measure_noise(monkeypatch, fails_at=2, micro=32) == pytest.approx(undisturbed, rel=1e-9)


def test_not_even_one_sample_is_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    set_capacity(monkeypatch, lambda _call: 0)
    _, ending = train(batch__micro="auto")
    assert ending.outcome == "out_of_memory"
    assert "not even a micro batch of one sample fits" in ending.error
    assert "Tried to allocate" in ending.error


class Device:
    """A device of 1,000 bytes that holds 100 and takes 5 for each sample."""

    def __init__(self, most: int) -> None:
        self.retries = 0
        self.sample_bytes = 5.0
        self.auto_micro = AutoMicro(most, CPU, self.read)

    def read(self) -> MemoryUse:
        return MemoryUse(round(100 + self.sample_bytes * self.auto_micro.micro), 100, 1000, self.retries)

    def share(self) -> float:
        return self.read().peak_bytes / 1000


def test_above_the_band_it_shrinks_into_it_at_the_end_of_an_epoch_only() -> None:
    device = Device(170)  # 950 of 1,000
    assert not device.auto_micro.update(at_epoch_end=False)
    assert device.auto_micro.update(at_epoch_end=True)
    assert device.auto_micro.micro == 120  # (700 - 100) / 5
    assert 0.6 <= device.share() <= 0.8
    assert not device.auto_micro.update(at_epoch_end=True)


def test_below_the_band_it_grows_into_it_but_never_to_what_did_not_fit() -> None:
    device = Device(256)
    assert device.auto_micro.shrink("full") == 128
    device.sample_bytes = 3.0
    assert device.auto_micro.update(at_epoch_end=True)
    assert device.auto_micro.micro == 200
    device.sample_bytes = 1.0
    assert device.auto_micro.update(at_epoch_end=True)
    assert device.auto_micro.micro == 255
    assert device.auto_micro.shrink("full") == 200  # the largest that was seen to fit
    assert not device.auto_micro.update(at_epoch_end=True) or device.auto_micro.micro <= 254
    again = Device(256)
    again.auto_micro.load_state_dict(device.auto_micro.state_dict())
    assert again.auto_micro.state_dict() == device.auto_micro.state_dict()


def test_an_allocator_that_keeps_trying_again_halves_it() -> None:
    device = Device(128)
    told = []
    for retries in (3, 3, 4, 5, 5, 6, 6):
        device.retries = retries
        told.append(device.auto_micro.update(at_epoch_end=False))
    assert told == [False, False, False, True, False, False, False]
    assert device.auto_micro.micro == 64
