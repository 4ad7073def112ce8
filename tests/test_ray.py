"""What is Ray's alone: a cluster of our own and one that exists, how they are lost, and what is left of them then."""

import importlib.metadata
import importlib.util
import json
import logging
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from executor_contract import await_dead, hear_first, hear_out, program, task

from sweep.config.errors import InputError
from sweep.executors.ray.ray_executor import RayExecutor, check_ray
from sweep.records.messages import Ending, Progress

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
PROGRAM = program("holders")


# ------------------------------------------------------------------ what is refused beforehand


def test_without_ray_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.executors.ray.ray_executor.find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"Ray is not installed; pip install 'batch-sweep\[ray\]'"):
        check_ray(None)


@needs_ray
def test_a_ray_with_a_known_hole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.executors.ray.ray_executor.version", lambda _name: "2.51.1")
    with pytest.raises(InputError, match=r"2\.51\.1 is not safe; pip install 'ray>=2\.52'"):
        check_ray(None)
    assert tuple(int(part) for part in importlib.metadata.version("ray").split(".")[:2]) >= (2, 52)


@needs_ray
@pytest.mark.parametrize("address", ["head", "user:canary@head:6379", "ray://head:1?token=canary", "http://head:8265"])
def test_an_address_is_a_machine_and_no_secret(address: str) -> None:
    with pytest.raises(InputError, match="give host:port") as refused:
        check_ray(address)
    assert "canary" not in str(refused.value)
    check_ray("head-1.cluster:6379")


@needs_ray
def test_supervising_imports_no_ray() -> None:
    program = "import sys, sweep.search.loop.session; print({'ray', 'torch'} & sys.modules.keys())"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"


# ------------------------------------------------------------------ a cluster of our own


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayExecutor]:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    with RayExecutor("cpu", num_cpus=2, program=PROGRAM) as made:
        assert made.slots == 2
        yield made


def descendants(executor: RayExecutor) -> list[psutil.Process]:
    return psutil.Process(executor.guard_pid).children(recursive=True)


def test_nobody_else_gets_into_the_cluster(cluster: RayExecutor) -> None:
    found = [each for process in descendants(cluster) for each in process.net_connections("inet")]
    listening = {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}
    assert listening
    assert listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
    token = Path.home() / ".ray" / "auth_token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    (driver,) = psutil.Process(cluster.guard_pid).children()
    (raylet,) = [process for process in driver.children() if process.name() == "raylet"]
    assert raylet.environ()["RAY_AUTH_MODE"] == "token"
    assert all(token.read_text() not in " ".join(process.cmdline()) for process in descendants(cluster))


@pytest.mark.parametrize("victim", ["raylet", pytest.param("gcs_server", marks=pytest.mark.slow)])
def test_a_lost_cluster_costs_each_trial_an_attempt_and_is_made_anew(victim: str, cluster: RayExecutor) -> None:
    before = descendants(cluster)
    for number in (1, 2):
        cluster.start(task(number=number))
        assert isinstance(hear_first(cluster), Progress)
    (lost,) = [process for process in descendants(cluster) if process.name() == victim]
    os.kill(lost.pid, signal.SIGKILL)
    endings: list[tuple[int, object]] = []
    while len(endings) < 2:
        endings += cluster.poll(30.0)
    assert sorted(number for number, _ in endings) == [1, 2]
    for _, ending in endings:
        assert isinstance(ending, Ending)
        assert (ending.outcome, ending.cause) == ("crashed", "cluster_lost")
    assert cluster.poll(0.0) == []
    assert not any(process.is_running() for process in before), "they were gone before the endings were told"
    cluster.start(task(number=1))
    assert isinstance(hear_first(cluster), Progress)
    cluster.stop(1)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Ray's sockets do not fit into the folder of a test."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="s-") as folder:
        yield Path(folder)


SUPERVISOR = """
from executor_contract import hear_first, program, task
from sweep.executors.ray.ray_executor import RayExecutor

executor = RayExecutor("cpu", num_cpus=1, program=program("holders"))
executor.start(task(number=1))
told = hear_first(executor)
print(told.step, executor.guard_pid, flush=True)
while True:
    executor.poll(60.0)
"""


@needs_ray
def test_nothing_outlives_the_supervisor(short_folder: Path) -> None:
    environment = os.environ | {"TMPDIR": str(short_folder)}
    command = [sys.executable, "-c", SUPERVISOR]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parent, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    with process, process.stdout:
        trial, guard = (int(word) for word in process.stdout.readline().split())
        pids = [guard, *(each.pid for each in psutil.Process(guard).children(recursive=True))]
        assert trial in pids
        process.kill()
    await_dead(pids)
    assert list(short_folder.iterdir()) == [], "the files of the cluster are gone as well"


@needs_ray
def test_places_of_another_device_class_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ODD_FILE", str(tmp_path / "odd"))
    odd = replace(PROGRAM, describer="executor_runners:describe_one_oddly")
    with caplog.at_level(logging.WARNING), RayExecutor("cpu", num_cpus=3, program=odd) as executor:
        assert executor.slots == 2
        assert executor.describe()["device"] == "usual"
        executor.poll(0.0)
    assert "not fully used: odd, and the study is on usual" in caplog.text


ON_GPUS = """
import json
from executor_contract import program, task
from sweep.executors.ray.ray_executor import RayExecutor
from sweep.records.messages import Ending

with RayExecutor("auto", world_size=2, program=program("echo_environment")) as executor:
    endings = []
    for number in range(executor.slots):
        executor.start(task(number=number))
    while len(endings) < executor.slots:
        endings += [message for _, message in executor.poll(60.0) if isinstance(message, Ending)]
print(json.dumps([[ending.device, ending.environment["CUDA_VISIBLE_DEVICES"]] for ending in endings]))
"""


@needs_ray
def test_a_trial_of_two_ranks_has_two_gpus_of_its_own() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    environment["PYTHONPATH"] = str(Path(__file__).with_name("fake_gpus"))
    done = subprocess.run(
        [sys.executable, "-c", ON_GPUS],
        cwd=Path(__file__).parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    endings = json.loads(done.stdout)
    assert [device for device, _ in endings] == ["cuda", "cuda"]
    visible = [visible.split(",") for _, visible in endings]
    assert [len(gpus) for gpus in visible] == [2, 2]
    assert sorted(gpu for gpus in visible for gpu in gpus) == ["0", "1", "2", "3"]


# ------------------------------------------------------------------ a cluster that exists


@pytest.fixture
def machines(short_folder: Path) -> Iterator[tuple[str, list[int]]]:
    """The address of a cluster of two machines with a place each, that somebody else runs, and their raylets."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed")
    environment = os.environ | {"RAY_TMPDIR": str(short_folder)}
    program = [sys.executable, str(Path(__file__).with_name("ray_machines.py"))]
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        address, *raylets = process.stdout.readline().split()
        yield address, [int(pid) for pid in raylets]
        process.communicate("")


@pytest.mark.slow
def test_a_lost_machine_of_a_cluster_costs_its_trial_alone(
    machines: tuple[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, raylets = machines
    refused = pytest.raises(InputError, match="requires RAY_AUTH_MODE=token")
    with RayExecutor("cpu", address=address, program=PROGRAM) as executor, refused:
        executor.describe()
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    refused = pytest.raises(InputError, match="no machine of the cluster has the 1 GPUs")
    with RayExecutor("cuda", address=address, program=PROGRAM) as executor, refused:
        executor.describe()
    with RayExecutor("auto", address=address, program=PROGRAM) as executor:
        assert executor.slots == 2
        told: dict[int, Progress] = {}
        for number in (1, 2):
            executor.start(task(number=number))
            message = hear_first(executor)
            assert isinstance(message, Progress)
            told[number] = message
        actors = {number: psutil.Process(int(message.epoch)) for number, message in told.items()}
        (victim,) = [number for number, actor in actors.items() if actor.ppid() == raylets[1]]
        os.kill(raylets[1], signal.SIGKILL)
        (ending,) = hear_out(executor, victim)
        assert isinstance(ending, Ending)
        assert (ending.outcome, ending.cause) == ("crashed", "node_lost")
        assert executor.slots == 1
        other = 3 - victim
        executor.stop(other)
        executor.start(task(number=5))
        assert isinstance(hear_first(executor), Progress)
        (driver,) = psutil.Process(executor.guard_pid).children()
        driver.kill()
        (ending,) = hear_out(executor, 5)
        assert isinstance(ending, Ending)
        assert (ending.outcome, ending.cause) == ("crashed", "cluster_lost")
        executor.start(task(number=5))
        last = hear_first(executor)
        assert isinstance(last, Progress)
    await_dead([int(message.epoch) for message in (*told.values(), last)])
    assert psutil.pid_exists(raylets[0]), "a node that was there before still runs"
