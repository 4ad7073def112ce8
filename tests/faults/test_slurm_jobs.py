"""Jobs that must make room, run out of time, are killed, or lose their node or their supervisor."""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from executor_contract import await_true
from fake_slurm import FakeSlurm
from storm import rounds, storm

pytest.importorskip("submitit")
pytestmark = [pytest.mark.timeout(1800), pytest.mark.wide, pytest.mark.slow]

_PLUGIN = str(Path(__file__).parents[1] / "patient_plugin.py")
_SPEC = {"base": {"model.name": "patient", "data.subset": 300, "budget.epochs": 12}}
# a job is told to leave when it has run for 30 s, and taken away when it has not done so after 30 s more
_SETTINGS = {"jobs": 2, "gpus_per_node": 0, "time": 60.0, "notice": 30.0}
_KINDS = {"kill": "job_lost", "preempt": "left", "timeout": "left", "node": "node_lost"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[FakeSlurm]:
    with closing(FakeSlurm(tmp_path)) as made:
        yield made


def _befall(kind: str, job_id: str, cluster: FakeSlurm) -> None:
    if kind == "kill":
        os.kill(int((cluster.folder / f"{job_id}.task0").read_text()), signal.SIGKILL)
    if kind == "preempt":
        cluster.preempt(job_id)
    if kind == "node":
        cluster.lose_node(job_id)


def _storm_options(folder: Path) -> dict[str, str]:
    (folder / "patience").mkdir()
    return {"plugin": _PLUGIN, "executor": "slurm", "slurm": _SETTINGS}


def test_a_job_that_must_go_costs_its_attempt_alone(tmp_path: Path, cluster: FakeSlurm) -> None:
    num_each = rounds(10)
    met: Counter[str] = Counter()
    with storm(tmp_path, trials=3 * num_each, spec=_SPEC, **_storm_options(tmp_path)) as study:
        patience = tmp_path / "patience"
        for index in range(num_each):
            for place, kind in enumerate(_KINDS):
                (patience / f"{index:02d}-{place}-{kind}.wait").touch()
        supervisor = study.start(PATIENT=str(patience), **cluster.environment)
        while supervisor.poll() is None:
            for path in patience.glob("*.job"):
                kind = path.stem.rpartition("-")[2]
                _befall(kind, path.read_text(), cluster)
                met[kind] += 1
                path.unlink()
            time.sleep(0.05)
        study.finish(supervisor)
        study.check()
    assert met == Counter(dict.fromkeys(_KINDS, num_each))
    told = Counter(cause for causes in study.ledger.causes().values() for cause in causes if cause)
    assert (told["job_lost"], told["node_lost"]) == (met["kill"], met["node"])
    # one whose time is over before it has met anything leaves too
    assert told["left"] >= met["preempt"] + met["timeout"]
    assert set(told) == {"left", "job_lost", "node_lost"}
    assert set(study.ledger.outcomes().values()) == {"complete"}


@pytest.mark.parametrize("index", range(rounds(10)))
def test_no_job_outlives_the_next_start_of_its_study(index: int, tmp_path: Path, cluster: FakeSlurm) -> None:
    del index
    environment = {"PATIENT": str(tmp_path / "patience"), **cluster.environment}
    with storm(tmp_path, trials=2, spec=_SPEC, **_storm_options(tmp_path)) as study:
        (tmp_path / "patience" / "0-nothing.wait").touch()
        supervisor = study.start(**environment)
        await_true(lambda: list((tmp_path / "patience").glob("*.job")), study.errors[-4000:], seconds=120.0)
        (left,) = [path.read_text() for path in (tmp_path / "patience").glob("*.job")]
        supervisor.kill()
        supervisor.wait()
        assert left in cluster.ids("RUNNING")
        study.finish(study.start(**environment))
        assert left not in cluster.ids("RUNNING")
        study.check()
    told = Counter(cause for causes in study.ledger.causes().values() for cause in causes if cause)
    assert told.pop("left", 0) <= 2
    assert set(told) == {"supervisor_lost"}
    assert set(study.ledger.outcomes().values()) == {"complete"}
