"""That the storm would see what it looks for, and says so in its last line."""

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from records_factory import add_trials, make_store
from storm_ledger import file_ledger
from storm_processes import Watch, hit, may_unshare, process

CHANGES = {
    "DELETE FROM sweep_evaluations WHERE number = 1 AND step = 20": "('sweep_evaluations', 1, 1, 20) is gone",
    "UPDATE sweep_attempts SET cause = 'SIGKILL' WHERE number = 0": "('sweep_attempts', 0, 1): cause was  and is",
    "UPDATE sweep_trials SET val_loss = 1.5 WHERE number = 0": "('sweep_trials', 0): val_loss was",
    "UPDATE sweep_trials SET trial_key = 'another' WHERE number = 2": "('sweep_trials', 2): trial_key was key2",
}


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize("statement", CHANGES)
def test_a_record_that_is_gone_or_changed_is_lost(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    store = make_store(path)
    add_trials(store, ["complete", "crashed", None])
    ledger = file_ledger(path)
    ledger.look()
    assert ledger.lost(2) == ["attempt never ended: " + str(ledger.rows["sweep_attempts"][2])]
    change(path, statement)
    ledger.look()
    assert [text for text in ledger.lost(2) if text.startswith(CHANGES[statement])]
    store.close()


def test_a_trial_that_never_ended_is_lost_and_an_open_one_may_end(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    store = make_store(path)
    add_trials(store, ["complete", None])
    ledger = file_ledger(path)
    ledger.look()
    assert {"trial 1 never ended", "trial 2 never ended"} <= set(ledger.lost(3))
    store.end_attempt("s", 1, 1, "SIGKILL", 1.0)
    ledger.look()
    assert ledger.lost(1) == []
    assert ledger.causes() == {0: [""], 1: ["SIGKILL"]}
    store.close()


def test_a_configuration_under_two_numbers_is_a_duplicate(tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    store = make_store(path)
    add_trials(store, ["complete", "complete"])
    ledger = file_ledger(path)
    ledger.look()
    assert ledger.duplicates() == []
    change(path, "UPDATE sweep_trials SET trial_key = 'key0'")
    ledger.look()
    assert ledger.duplicates() == ["trial key key0"]
    store.close()


def test_a_process_that_stays_is_a_zombie_dead_or_alive(tmp_path: Path) -> None:
    watch = Watch(tmp_path / "shm")
    # whose own child has ended and is not waited for
    code = "import os, subprocess, time; ended = subprocess.Popen(['true']); open('/dev/shm/left', 'w'); "
    code += "os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT); print(1, flush=True); "
    command = watch.command(sys.executable, "-c", code + "time.sleep(60)")
    child = subprocess.Popen(command, env=watch.environment, stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    found = process(child.pid)
    assert found is not None
    assert [each.pid for each in watch.look()] == [child.pid]
    assert [each.pid for each in watch.zombies(0.1)[0]] == [child.pid]
    assert watch.leftovers() == (["left"] if may_unshare() else [])
    assert hit(found, 9)
    (dead,), _ = watch.zombies(0.3)  # nobody has waited for it
    assert (dead.pid, dead.state) == (child.pid, "Z")
    assert not hit(found, 9)
    child.communicate()
    assert watch.zombies()[0] == []


COUNTING = """
def test_one(tally):
    tally.count("kind", 3)

def test_other(tally):
    tally.count("kind", 4)
    tally.{what}
"""


@pytest.mark.parametrize(
    ("options", "what", "zombies"), [([], "zombies.append('x')", 1), (["-n", "2"], "lost", 0)], ids=["alone", "shared"]
)
def test_the_last_line_adds_up_and_decides(options: list[str], what: str, zombies: int, tmp_path: Path) -> None:
    for name in ("conftest.py", "tally.py"):
        shutil.copy(Path(__file__).with_name(name), tmp_path)
    (tmp_path / "test_it.py").write_text(COUNTING.format(what=what))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, str(tmp_path)]
    environment = {name: value for name, value in os.environ.items() if name != "SWEEP_STORM"}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert ran.stdout.splitlines()[-1] == f"faults 7  lost 0  duplicates 0  zombies {zombies}"
    assert ran.returncode == zombies
