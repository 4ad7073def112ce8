"""What only the executor for Ray does: an own cluster and one that exists, how they are lost, and what is left then."""

import importlib.metadata
import importlib.util
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from executor_contract import await_dead, hear_first, hear_out, marked, program, task
from records_factory import write_study

from sweep import load_frames
from sweep.config.errors import InputError
from sweep.executors import ray
from sweep.executors.ray import RayExecutor, check_ray
from sweep.records.messages import Progress

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
PROGRAM = program("holders")


@pytest.fixture(autouse=True)
def _nothing_stays(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kills what a test leaves of Ray: all that inherits the environment of this test."""
    marker = secrets.token_hex(16)
    monkeypatch.setenv("SWEEP_TEST_MARKER", marker)
    yield
    for pid in marked(f"SWEEP_TEST_MARKER={marker}"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def on_cluster(test: Any) -> Any:
    return pytest.mark.wide(needs_ray(test))


# ------------------------------------------------------------------ what is refused beforehand


def test_without_ray_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.executors.ray.find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"Ray is not installed; pip install 'batch-sweep\[ray\]'"):
        check_ray(None)


@needs_ray
def test_a_ray_with_a_known_hole_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.executors.ray.version", lambda _name: "2.51.1")
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


# ------------------------------------------------------------------ a cluster of our own


def descendants(pid: int = os.getpid()) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


@on_cluster
def test_a_cluster_of_our_own_is_closed_to_others_and_takes_one_attempt_after_the_other() -> None:
    with RayExecutor("cpu", num_cpus=2, program=PROGRAM) as cluster:
        assert cluster.slots == 2
        found = [each for process in descendants() for each in process.net_connections("inet")]
        listening = {each.laddr.ip for each in found if each.status == psutil.CONN_LISTEN}
        assert listening
        assert listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        (raylet,) = [process for process in descendants() if process.name() == "raylet"]
        assert raylet.environ()["RAY_AUTH_MODE"] == "token"
        token = raylet.environ()["RAY_AUTH_TOKEN"]
        assert all(token not in " ".join(process.cmdline()) for process in descendants())
        assert "RAY_AUTH_TOKEN" not in os.environ
        last = None
        for _ in range(4):  # nothing is heard of the one that was stopped
            cluster.start(task(number=1))
            told = hear_first(cluster)
            assert told.step != last
            cluster.stop(1)
            last = told.step
            await_dead([last])


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Ray's sockets do not fit into the folder of a test."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="s-") as folder:
        yield Path(folder)


SUPERVISOR = """
import psutil
from executor_contract import hear_first, program, task
from sweep.executors.ray import RayExecutor

with RayExecutor("cpu", num_cpus=1, program=program("holders")) as executor:
    executor.start(task(number=1))
    told = hear_first(executor)
    # Ray's agents look in vain for the head of a cluster whose supervisor was killed, for a minute
    started = psutil.Process().children(recursive=True)
    print(told.step, *(each.pid for each in started if "Agent" not in "".join(each.cmdline())), flush=True)
    while True:
        executor.poll(60.0)
"""


@on_cluster
def test_a_lost_cluster_leaves_nothing_and_the_study_is_resumed_by_the_command_that_it_names(
    tmp_path: Path, short_folder: Path
) -> None:
    write_study(tmp_path, "lost", trials=6, epochs=20)
    (tmp_path / "ray.toml").write_text('executor = "ray"\ndevice = "cpu"\n')
    command = [sys.executable, "-m", "sweep.cli", "run", "lost.toml", "--on", "ray.toml"]
    environment = os.environ | {"TMPDIR": str(short_folder)}
    running = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    ended: list[int] = []
    while not ended:
        assert running.poll() is None
        with suppress(InputError):
            trials = load_frames(tmp_path / "runs" / "lost").trials
            ended = trials[trials["outcome"] == "complete"]["number"].tolist()
    started = descendants(running.pid)
    (raylet,) = [each for each in started if each.name() == "raylet"]
    raylet.kill()
    _, told = running.communicate(timeout=60)
    assert running.returncode == 1, told
    assert "executor ray: the Ray cluster was lost" in told
    assert "When there is a cluster again, run the same command again." in " ".join(told.split())
    assert "Traceback" not in told
    await_dead([each.pid for each in started])
    left = [path.name for path in short_folder.iterdir() if not path.name.startswith("torchinductor")]
    assert left == [], "the files of the cluster are gone as well"
    subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300, check=True)
    trials = load_frames(tmp_path / "runs" / "lost").trials
    assert trials["outcome"].tolist() == ["complete"] * 6


@on_cluster
def test_no_process_outlives_the_supervisor() -> None:
    command = [sys.executable, "-c", SUPERVISOR]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    with process, process.stdout:
        trial, *pids = (int(word) for word in process.stdout.readline().split())
        assert trial in pids
        process.kill()
    await_dead(pids)


@on_cluster
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
from executor_contract import endings, program, task
from sweep.executors.ray import RayExecutor

with RayExecutor("auto", world_size=2, program=program("echo_environment")) as executor:
    for number in range(executor.slots):
        executor.start(task(number=number))
    ended = [messages[-1] for messages in endings(executor, executor.slots).values()]
print(json.dumps([[ending.device, ending.environment["CUDA_VISIBLE_DEVICES"]] for ending in ended]))
"""


@on_cluster
def test_a_trial_of_two_ranks_has_two_gpus_of_its_own() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    places = [str(Path(__file__).with_name("fake_gpus")), os.environ.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    command = [sys.executable, "-c", ON_GPUS]
    done = subprocess.check_output(command, cwd=Path(__file__).parent, env=environment, text=True, timeout=120)
    endings = json.loads(done)
    assert [device for device, _ in endings] == ["cuda", "cuda"]
    visible = [visible.split(",") for _, visible in endings]
    assert [len(gpus) for gpus in visible] == [2, 2]
    assert sorted(gpu for gpus in visible for gpu in gpus) == ["0", "1", "2", "3"]


# ------------------------------------------------------------------ a cluster that exists


@pytest.fixture
def machines(short_folder: Path) -> Iterator[tuple[str, list[int]]]:
    """The address of a cluster of two machines with a place each, that somebody else runs, and their raylets."""
    environment = os.environ | {"RAY_TMPDIR": str(short_folder), **ray._OWN_CLUSTER}
    program = [sys.executable, str(Path(__file__).with_name("ray_machines.py"))]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        address, *raylets = process.stdout.readline().split()
        yield address, [int(pid) for pid in raylets]
        process.kill()


@on_cluster
def test_a_lost_machine_of_a_cluster_costs_its_trial_alone(
    machines: tuple[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, raylets = machines
    for name, value in ray._OWN_CLUSTER.items():
        monkeypatch.setenv(name, value)
    refused = pytest.raises(InputError, match="no machine of the cluster has the 1 GPUs")
    with RayExecutor("cuda", address=address, program=PROGRAM) as executor, refused:
        executor.describe()
    with RayExecutor("auto", address=address, program=PROGRAM) as executor:
        assert executor.slots == 2
        told: dict[int, Progress] = {}
        for number in (1, 2):
            executor.start(task(number=number))
            told[number] = hear_first(executor)
        actors = {number: psutil.Process(int(message.epoch)) for number, message in told.items()}
        (victim,) = [number for number, actor in actors.items() if actor.ppid() == raylets[1]]
        os.kill(raylets[1], signal.SIGKILL)
        (ending,) = hear_out(executor, victim)
        assert (ending.outcome, ending.cause) == ("crashed", "node_lost")
        assert executor.slots == 1
        other = 3 - victim
        executor.stop(other)
        executor.start(task(number=5))
        assert isinstance(hear_first(executor), Progress)
    await_dead([int(message.epoch) for message in told.values()])
    assert psutil.pid_exists(raylets[0]), "a node that was there before still runs"
