"""Where the records lie: a disk that is full, a database server that restarts."""

import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from postgres_server import Server, postgres
from storm import Storm, storm
from storm_ledger import Ledger, file_ledger
from tally import Tally, rounds

__all__ = ["postgres"]
pytestmark = pytest.mark.wide

_DISK_BYTES = 48 << 20
_PIECE = bytes(16 << 10)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no file system can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_stops_the_study_and_space_lets_it_go_on(disk: Path, tmp_path: Path, tally: Tally) -> None:
    num_rounds = rounds(10)
    ledger = file_ledger(disk / "runs" / "storm" / "study.sqlite")
    with storm(tmp_path, trials=6 * num_rounds + 4, ledger=ledger, root=str(disk / "runs")) as study:
        for index in range(num_rounds):
            _fill_until_it_stops(study, disk / "ballast", random.Random(index))
            tally.count("disks filled")
            study.count_zombies(tally)
            study.ledger.look()
            (disk / "ballast").unlink()
        study.finish(study.start())
        study.account(tally)
    assert set(study.ledger.outcomes().values()) == {"complete"}
    assert study.errors.count("MiB are needed") >= num_rounds
    assert "Traceback" not in study.errors


def _fill_until_it_stops(study: Storm, ballast: Path, generator: random.Random) -> None:
    supervisor = study.start()
    study.await_attempt(supervisor, study.ledger.num_attempts())
    time.sleep(generator.uniform(0, 0.5))
    assert supervisor.poll() is None
    deadline = time.monotonic() + 120
    while supervisor.poll() is None:  # what trials give back is taken as well
        assert time.monotonic() < deadline
        _fill(ballast)
        time.sleep(0.02)
    assert supervisor.returncode == 1, study.errors[-4000:]


def _fill(ballast: Path) -> None:
    with ballast.open("ab", buffering=0) as file:
        try:
            while file.write(_PIECE):
                pass
        except OSError:
            return


def test_a_server_that_restarts_costs_no_record(postgres: Server, tmp_path: Path, tally: Tally) -> None:
    wanted, generator, num_restarts = rounds(20), random.Random(0), 0
    with storm(tmp_path, trials=6 * wanted, ledger=_server_ledger(postgres.url), store=postgres.url) as study:
        supervisor = study.start()
        study.await_attempt(supervisor, 0)
        while num_restarts < wanted:
            time.sleep(generator.uniform(0.2, 1.0))
            postgres.restart()
            num_restarts += 1
            if supervisor.wait(120) == 0:
                break
            supervisor = study.start()  # a lost database ends the run, and the same command resumes it
        study.finish(supervisor)
        study.account(tally)
    tally.count("restarts of the database", num_restarts)
    assert num_restarts >= (wanted + 1) // 2
    causes = {cause for each in study.ledger.causes().values() for cause in each}
    assert causes <= {"", "supervisor_lost"}  # the end of an attempt without a database is recorded by the next run
    assert "canary" not in study.errors


def _server_ledger(url: str) -> Ledger:
    import psycopg

    def connect() -> Any:
        connection = psycopg.connect(url.replace("+psycopg", ""), connect_timeout=10)
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        return connection

    return Ledger(connect, (psycopg.Error,))
