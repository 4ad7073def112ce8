"""A trial whose ranks are on several nodes of a job: the same record as on one, one ending whatever befalls a node."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_slurm import FakeSlurm
from test_checkpoint import curve
from test_distributed import PLUGIN, task
from test_slurm import cluster, hear, is_ended

from sweep.config.errors import InputError
from sweep.executors import devices
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.executors.slurm.job import _choose_device
from sweep.executors.slurm.slurm_executor import SlurmExecutor
from sweep.executors.slurm.slurm_settings import SlurmSettings
from sweep.executors.table import ExecutorSettings, check_executor, check_ranks, device_type
from sweep.records.messages import Ending, Evaluation, Message, TrialTask

pytest.importorskip("submitit")
__all__ = ["cluster"]  # a fixture


@pytest.fixture
def executor(cluster: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmExecutor]:
    del cluster
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # both nodes are this machine
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # a rank has as many on two nodes as on one
    with SlurmExecutor(tmp_path / "jobs", "sweep-test", SlurmSettings(jobs=1, nodes=2, gpus_per_node=0)) as made:
        yield made


def run(executor: Any, given: TrialTask) -> list[Message]:
    executor.start(given)
    return hear(executor, given.number, is_ended)


@pytest.mark.slow
def test_two_nodes_train_what_one_node_trains(executor: SlurmExecutor) -> None:
    given = replace(task(budget__epochs=3.0, batch__accumulation=2, model__dropout=0.1), threads=2)
    with ProcessExecutor(["cpu"]) as here:
        expected = run(here, given)
    found = run(executor, replace(given, threads=1))
    assert curve(found) == curve(expected)
    one, two = expected[-1], found[-1]
    assert isinstance(one, Ending)
    assert isinstance(two, Ending)
    assert (two.outcome, two.error, two.device) == ("complete", "", one.device)
    for name in ("num_steps", "val_accuracy", "val_loss", "train_accuracy"):
        assert two.measurements[name] == one.measurements[name], name
    assert two.measurements["peak_memory_bytes"] == pytest.approx(one.measurements["peak_memory_bytes"], rel=0.01)


@pytest.mark.slow
def test_a_failure_on_the_second_node_is_the_trials(executor: SlurmExecutor) -> None:
    ending = run(executor, task(PLUGIN, model__name="hungry"))[-1]
    assert isinstance(ending, Ending)
    assert (ending.outcome, ending.cause) == ("out_of_memory", "")
    assert ending.error.startswith("node 1: rank 1: ")


@pytest.mark.slow
def test_nodes_leave_together_and_go_on_together(executor: SlurmExecutor, cluster: FakeSlurm, tmp_path: Path) -> None:
    given = replace(task(budget__epochs=40.0), checkpoint_dir=str(tmp_path / "checkpoints"), checkpoint_seconds=1e9)
    executor.start(given)
    hear(executor, 0, lambda said: any(isinstance(message, Evaluation) for message in said))
    cluster.preempt(*cluster.ids("RUNNING"))
    left = hear(executor, 0, is_ended)[-1]
    assert isinstance(left, Ending)
    assert (left.outcome, left.cause) == ("cancelled", "left")
    assert len(list((tmp_path / "checkpoints").iterdir())) == 1
    executor.start(given)
    found = hear(executor, 0, is_ended)
    with ProcessExecutor(["cpu"]) as here:
        expected = run(here, replace(given, checkpoint_dir=None, threads=2))
    assert curve(found) == curve(expected)


@pytest.mark.slow
def test_a_killed_rank_on_the_second_node_is_a_fault_of_the_machine(
    executor: SlurmExecutor, cluster: FakeSlurm
) -> None:
    executor.start(task(budget__epochs=400.0))
    hear(executor, 0, lambda said: any(isinstance(message, Evaluation) for message in said))
    (job_id,) = cluster.ids("RUNNING")
    os.kill(_rank(int((cluster.folder / f"{job_id}.task1").read_text())), signal.SIGKILL)
    ending = hear(executor, 0, is_ended)[-1]
    assert isinstance(ending, Ending)
    assert (ending.outcome, ending.cause) == ("crashed", "SIGKILL")
    assert ending.error.startswith("node 1: rank 1: killed by SIGKILL")
    deadline = time.monotonic() + 30
    while cluster.ids("RUNNING"):
        assert time.monotonic() < deadline, "the second node stays"
        time.sleep(0.1)


def _rank(task_pid: int) -> int:
    """The process that trains, under a job's process: that has a forkserver, its child an agent, and that the ranks."""
    pid = task_pid
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


def test_ranks_are_shared_evenly_over_as_few_nodes_as_have_the_gpus() -> None:
    settings = SlurmSettings(nodes=2, gpus_per_node=4)
    assert [settings.nodes_for(size, "auto") for size in (1, 2, 4, 6, 8)] == [1, 1, 1, 2, 2]
    assert [SlurmSettings(nodes=2).nodes_for(size, "cpu") for size in (1, 2, 4)] == [1, 2, 2]
    with pytest.raises(InputError, match=r"world_size = 5: 2 nodes of 4 each cannot share the ranks evenly; choose"):
        settings.nodes_for(5, "auto")


def test_what_a_study_may_ask_for_is_what_the_settings_give(tmp_path: Path) -> None:
    (tmp_path / "slurm.toml").write_text("nodes = 2\ngpus_per_node = 4\n")
    settings = ExecutorSettings(name="slurm", slurm=tmp_path / "slurm.toml")
    on_cpu = replace(settings, device="cpu")
    check_ranks(settings, 8)
    assert (device_type(settings), device_type(on_cpu)) == ("cuda", "cpu")
    with pytest.raises(InputError, match="requires 9 GPUs, and --device auto has 8 here"):
        check_ranks(settings, 9)
    (tmp_path / "slurm.toml").write_text("cluster = 'local'\ngpus_per_node = 0\n")
    assert device_type(settings) == "cpu"
    with pytest.raises(InputError, match="unknown device 'cuda'"):
        check_executor(replace(settings, device="cuda"))


def test_a_trial_has_as_many_gpus_of_a_node_as_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_num_gpus", lambda: 4)
    assert [_choose_device(number) for number in (0, 1, 3)] == ["cpu", "cuda:0", "cuda:0,cuda:1,cuda:2"]
    with pytest.raises(RuntimeError, match="requested 5 GPUs on a node, and 4 are visible there"):
        _choose_device(5)
