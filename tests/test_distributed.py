"""Several ranks in one trial: the same update as one rank makes, and an orderly end whatever befalls a rank."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from executor_contract import await_childless, await_dead, hear_out
from executor_contract import run as run_task
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sweep.config.trial import build_config
from sweep.executors.process import ProcessExecutor
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
)  # fmt: skip
from sweep.training.data.feeders import shard_window
from sweep.training.data.windows import cut_epoch
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


def run_here(given: TrialTask) -> tuple[list[Message], Ending]:
    *messages, ending = run_trial(given)
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
    one, expected = run_here(alone)
    assert (ending.error, ending.outcome, expected.outcome) == ("", "complete", "complete")
    apart = largest_difference(load_file(tmp_path / "two"), load_file(tmp_path / "one"))
    assert apart < 1e-10, apart
    assert figures(two) == pytest.approx(figures(one), abs=1e-9)
    _, smaller = run_here(task(batch__micro=8, distributed__world_size=1, **values))
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
    _, expected = run_here(task(weights=tmp_path / "one", **(values | alone)))
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
