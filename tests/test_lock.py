"""One supervisor per study, whoever dies and however."""

import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sweep.config.errors import InputError
from sweep.records.database import study_lock

HOLDER = """
import sys, time
from pathlib import Path
from sweep.records.database import study_lock
from sweep.config.errors import InputError
try:
    with study_lock(Path(sys.argv[1])):
        print("held", flush=True)
        time.sleep(60)
except InputError as error:
    print(error, flush=True)
"""


def _start(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True)


def test_of_simultaneous_starts_one_wins_and_the_others_learn_who(tmp_path: Path) -> None:
    processes = [_start(tmp_path / "study") for _ in range(3)]
    lines = {}
    for process in processes:
        assert process.stdout is not None
        lines[process.pid] = process.stdout.readline()
    winners = [pid for pid, line in lines.items() if line == "held\n"]
    assert len(winners) == 1
    with (
        pytest.raises(InputError, match=rf"running already: process {winners[0]} on .* since 20\d\d-"),
        study_lock(tmp_path / "study"),
    ):
        pass
    assert all("the study is running already" in line for pid, line in lines.items() if pid not in winners)
    os.kill(winners[0], signal.SIGKILL)
    for process in processes:
        process.communicate()
    with study_lock(tmp_path / "study"):  # the kernel freed it
        pass


def test_the_lock_is_free_again_at_the_end_also_after_an_error(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(KeyError), study_lock(tmp_path):
            raise KeyError
    with study_lock(tmp_path), pytest.raises(InputError), study_lock(tmp_path):
        pass


@pytest.mark.parametrize("left_behind", ["", '{"pid": 4194305, "host": "HERE", "since": "2020-01-01"}'])
def test_a_holder_that_has_not_signed_is_not_named(tmp_path: Path, left_behind: str) -> None:
    path = tmp_path / "study.lock"
    path.write_text(left_behind.replace("HERE", socket.gethostname()))  # of a holder that was killed
    with path.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="is not identified yet"), study_lock(tmp_path):
            pass
