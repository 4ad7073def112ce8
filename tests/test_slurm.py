"""What only the executor for Slurm does, on a fake Slurm that really runs its jobs."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from executor_contract import await_true, fake_cluster, program, task
from fake_slurm import FakeSlurm

from sweep.config.errors import InputError
from sweep.executors import devices, slurm
from sweep.executors.base import PROGRAM
from sweep.executors.slurm import Job, SlurmCluster, SlurmExecutor, SlurmSettings
from sweep.executors.slurm_job import JOB_LINES, JOB_REQUESTS, MESSAGES_FILE, JobRequest, choose_device, run_job
from sweep.executors.table import ExecutorSettings, check_executor, check_ranks, device_type, read_executor
from sweep.records.messages import Ending, Heartbeat, Message
from sweep.records.records import TrialRecord
from sweep.search.attempts import Attempt

pytest.importorskip("submitit")

Make = Callable[..., SlurmExecutor]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeSlurm]:
    with fake_cluster(tmp_path) as made:
        yield made


@pytest.fixture
def make(cluster: FakeSlurm, tmp_path: Path) -> Iterator[Make]:
    del cluster
    with ExitStack() as made:

        def build(runner: str, log_dir: Path | None = None, **settings: Any) -> SlurmExecutor:
            asked = SlurmSettings(**{"gpus_per_node": 0, "jobs": 1, **settings})
            executor = SlurmExecutor(tmp_path / "jobs", "sweep-test", asked, "auto", log_dir, program(runner))
            return made.enter_context(executor)

        yield build


def hear_some_of(executor: SlurmExecutor, number: int) -> None:
    """Waits until trial ``number`` has sent more than signs of life."""
    await_true(lambda: any(who == number and not isinstance(said, Heartbeat) for who, said in executor.poll(1.0)))


def ending_of(executor: SlurmExecutor, number: int = 12) -> Ending:
    ending = None
    while ending is None:
        ending = next((said for sender, said in executor.poll(60.0) if (sender, type(said)) == (number, Ending)), None)
    assert isinstance(ending, Ending)
    return ending


# ---------------------------------------------------------------------- how a job may end


@pytest.mark.wide
@pytest.mark.parametrize(("befall", "runner", "state", "cause"), [
    (FakeSlurm.lose_node, "leaves", "NODE_FAIL", "node_lost"),
    (FakeSlurm.preempt, "endless", "PREEMPTED", "job_lost"),
])  # fmt: skip
def test_a_job_that_is_lost_has_one_ending(
    make: Make, cluster: FakeSlurm, befall: Callable[[FakeSlurm, str], None], runner: str, state: str, cause: str
) -> None:
    executor = make(runner)
    executor.start(task())
    hear_some_of(executor, 12)
    (job_id,) = cluster.ids("RUNNING")
    befall(cluster, job_id)
    ending = ending_of(executor)
    assert (ending.outcome, ending.cause) == ("crashed", cause)
    assert ending.error.startswith(f"job {job_id} ended as {state} without a result")
    assert executor.poll(0.0) == []
    executor.start(task())  # the slot is free
    hear_some_of(executor, 12)


@pytest.mark.wide
@pytest.mark.parametrize("settings", [{}, {"time": 60.0, "notice": 57.0}])  # the second: three seconds after its start
def test_a_trial_that_slurm_signals_leaves(make: Make, cluster: FakeSlurm, settings: dict[str, float]) -> None:
    executor = make("leaves", **settings)
    executor.start(task())
    if not settings:
        hear_some_of(executor, 12)
        cluster.preempt(*cluster.ids("RUNNING"))
    ending = ending_of(executor)
    assert (ending.outcome, ending.cause) == ("cancelled", "left")


@pytest.mark.wide
def test_trials_that_start_together_are_one_array_and_only_stopped_ones_are_cancelled(
    make: Make, cluster: FakeSlurm
) -> None:
    executor = make("leaves", jobs=3)
    for number in (1, 2, 3):
        executor.start(task(number))
    for number in (1, 2):
        hear_some_of(executor, number)
    assert len({job_id.partition("_")[0] for job_id in cluster.jobs()}) == 1
    ids = {number: job.id for number, job in executor._running.items()}
    executor.preempt(1)
    assert ending_of(executor, 1).cause == "left"
    assert cluster.cancelled() == []
    executor.stop(2)
    assert cluster.cancelled() == [ids[2]]
    executor.close()
    assert cluster.cancelled() == [ids[2], ids[3]]
    await_true(lambda: not cluster.ids("RUNNING"))  # a job that is ordered to stop may end before it is cancelled
    assert not (cluster.folder.parent / "jobs").exists()


def test_a_job_that_slurm_starts_again_does_nothing(tmp_path: Path) -> None:
    (tmp_path / "claim").touch()
    fields: dict[str, Any] = {"run": "run", "path": (), "log_dir": None, "stale_seconds": 1.0, "num_gpus": 0}
    request = JobRequest(folder=str(tmp_path), program=PROGRAM, task=None, **fields)
    run_job(JOB_REQUESTS.encode(request).decode())
    assert [path.name for path in tmp_path.iterdir()] == ["claim"]


# ---------------------------------------------------------------------- the queue


@pytest.mark.wide
def test_waiting_in_the_queue_takes_none_of_a_trials_time(make: Make, cluster: FakeSlurm) -> None:
    cluster.hold()
    executor = make("complete")
    executor.start(task())
    beats = [message for _ in range(3) for _, message in executor.poll(5.0)]
    assert set(beats) == {Heartbeat(is_queued=True)}
    cluster.release()
    assert ending_of(executor).outcome == "complete"
    attempt = Attempt(record=TrialRecord(number=0, phase="search", values={}), number=1, started=0.0)
    attempt.update(beats[0], now=1000.0)
    assert attempt.started == 1000.0  # from where its limit counts
    attempt.update(Heartbeat(), now=1005.0)
    assert attempt.started == 1000.0


@pytest.mark.wide
def test_a_cluster_that_takes_no_jobs_is_asked_again(
    make: Make, cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = make("complete")
    cluster.refuse("Slurm temporarily unable to accept job")
    executor.start(task())
    assert executor.poll(5.0) == [(12, Heartbeat(is_queued=True))]
    cluster.refuse("")
    assert ending_of(executor).outcome == "complete"
    monkeypatch.setattr(slurm, "_REFUSED_SECONDS", 0.5)
    cluster.refuse("QOSMaxSubmitJobPerUserLimit")
    executor.start(task())
    ending = ending_of(executor)
    assert (ending.outcome, ending.cause) == ("crashed", "job_lost")
    assert "QOSMaxSubmitJobPerUserLimit" in ending.error


@pytest.mark.wide
def test_what_the_cluster_refuses_at_first_is_the_users_to_mend(make: Make, cluster: FakeSlurm) -> None:
    cluster.refuse("invalid partition specified: gpuu")
    with pytest.raises(
        InputError, match=r"no job was accepted: .*partition specified: gpuu; change its table \[sbatch\]"
    ):
        make("complete").describe()


@pytest.mark.wide
def test_a_machine_is_read_after_its_job_is_over(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    executor, looks = make("complete"), []
    follow = executor._follow

    def follow_to_the_end(jobs: Mapping[int, Job]) -> list[tuple[int, Message]]:
        """As when the job ends between a look at its messages and the query for its state."""
        looks.append(list(follow(jobs)))
        path = jobs[0].folder / MESSAGES_FILE
        await_true(lambda: path.exists() and b"jobover" in path.read_bytes())
        return [(0, Ending(outcome="crashed", error="over"))] if len(looks) > 1 else []

    monkeypatch.setattr(executor, "_follow", follow_to_the_end)
    assert executor.describe()["device"] == "class of cpu"
    assert len(looks) == 1


# ---------------------------------------------------------------------- supervisors that are gone


@pytest.mark.wide
def test_a_job_whose_supervisor_is_silent_leaves(
    make: Make, cluster: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "_STALE_SECONDS", 1.0)
    executor = make("leaves")
    executor._is_over.set()  # a supervisor that was stopped
    executor.start(task())
    ending = ending_of(executor)
    assert (ending.outcome, ending.cause) == ("cancelled", "left")
    del cluster


@pytest.mark.wide
def test_the_next_run_ends_what_a_killed_one_has_left(make: Make, cluster: FakeSlurm) -> None:
    killed = make("endless", jobs=2)
    killed.start(task(1))
    hear_some_of(killed, 1)
    killed.start(task(2))
    killed.poll(0.0)
    known, unknown = (killed._running[number].id for number in (1, 2))
    (killed._running[2].folder / "id").unlink()  # as if it had been killed before it wrote that down
    cluster.freeze(known)
    executor = make("complete", jobs=2)
    assert cluster.cancelled() == [known]
    assert not list((cluster.folder.parent / "jobs").glob("*/"))
    executor.start(task(3))
    assert ending_of(executor, 3).outcome == "complete"
    await_true(lambda: not cluster.ids("RUNNING"))
    assert cluster.ids("CANCELLED") == [known]
    assert cluster.jobs()[unknown]["state"] in ("COMPLETED", "FAILED")  # by itself: its run is replaced
    assert cluster.cancelled() == [known]


def test_half_a_line_waits_for_the_rest(tmp_path: Path) -> None:
    path, job = tmp_path / MESSAGES_FILE, Job(folder=tmp_path)
    assert job.read_messages() == []
    whole = JOB_LINES.encode(Heartbeat()) + b"\n"
    path.write_bytes(whole + whole[:5])
    assert job.read_messages() == [Heartbeat()]
    assert job.read_messages() == []
    with path.open("ab") as file:
        file.write(whole[5:] + whole)
    assert job.read_messages() == [Heartbeat()] * 2


# ---------------------------------------------------------------------- what is asked of Slurm


SETTINGS = """
executor = "slurm"
[sbatch]
jobs = 8
partition = "gpu"
account = "lab"
time = "4h"
notice = "3m"
gpus_per_node = 2
cpus_per_task = 12
mem = "48G"
setup = ["module load cuda"]
[sbatch.sbatch]
exclusive = true
reservation = "night"
"""


@pytest.mark.wide
def test_the_settings_become_options_of_sbatch(cluster: FakeSlurm, tmp_path: Path) -> None:
    (tmp_path / "gpu.toml").write_text(SETTINGS)
    settings = read_executor(str(tmp_path / "gpu.toml")).slurm
    SlurmCluster(tmp_path / "jobs", settings, "sweep-lr").submit([json.dumps({"folder": str(tmp_path)})])
    (job,) = cluster.jobs().values()
    asked = {name: value for name, value in job["options"].items() if name not in ("output", "open-mode")}
    assert asked == {
        "job-name": "sweep-lr", "partition": "gpu", "account": "lab", "time": "240", "signal": "USR2@180",
        "nodes": "1", "ntasks-per-node": "1", "gpus-per-node": "2", "cpus-per-task": "12", "mem": "48G",
        "no-requeue": "", "exclusive": "", "reservation": "night",
    }  # fmt: skip
    assert "\nmodule load cuda\n" in job["text"]
    assert "--cpus-per-task=12 --kill-on-bad-exit=1" in job["text"]


def test_without_slurm_the_remedy_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"sbatch is not on the PATH; run it on a login node"):
        check_executor(ExecutorSettings(name="slurm"))
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError, match=r"submitit is missing; pip install 'batch-sweep\[slurm\]'"):
        check_executor(ExecutorSettings(name="slurm"))


@pytest.mark.wide
def test_no_job_knows_the_password_of_the_store(
    make: Make, cluster: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SWEEP_STORE", "postgresql+psycopg://u:canary@h/x")
    monkeypatch.setenv("PGPASSWORD", "canary")
    executor = make("leaves", tmp_path / "logs")
    executor.start(task())
    hear_some_of(executor, 12)
    assert (tmp_path / "logs" / "trial-00012.log").exists()
    assert os.environ["PGPASSWORD"] == "canary"
    (job,) = cluster.jobs().values()
    assert "SLURM_JOB_ID" not in job["environment"]
    assert not any("canary" in value for value in job["environment"].values())
    assert all(b"canary" not in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_a_trial_has_as_many_gpus_of_its_node_as_it_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = ExecutorSettings(name="slurm", slurm=SlurmSettings(gpus_per_node=4))
    check_ranks(settings, 4)
    assert (device_type(settings), device_type(settings.model_copy(update={"device": "cpu"}))) == ("cuda", "cpu")
    with pytest.raises(InputError, match="requires 5 GPUs, and the device auto has 4 here"):
        check_ranks(settings, 5)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "_num_gpus", lambda: 4)
    assert [choose_device(number) for number in (0, 1, 3)] == ["cpu", "cuda:0", "cuda:0,cuda:1,cuda:2"]
    with pytest.raises(RuntimeError, match="requested 5 GPUs on a node, and 4 are visible there"):
        choose_device(5)
