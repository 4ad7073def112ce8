"""That the storm would see what it looks for."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from records_factory import add_trials, make_store
from storm_ledger import file_ledger
from storm_processes import Watch, hit, may_unshare, process

pytestmark = pytest.mark.wide
CHANGES = {
    "DELETE FROM sweep_evaluations WHERE number = 1 AND step = 20": "('sweep_evaluations', 1, 1, 20) is gone",
    "UPDATE sweep_attempts SET cause = 'SIGKILL' WHERE number = 0": "('sweep_attempts', 0, 1): cause was  and is",
    "UPDATE sweep_trials SET val_loss = 1.5 WHERE number = 0": "('sweep_trials', 0): val_loss was",
    "UPDATE sweep_trials SET trial_key = 'key1' WHERE number = 2": "('sweep_trials', 2): trial_key was key2",
}


@pytest.mark.parametrize("statement", CHANGES)
def test_a_record_that_is_gone_or_changed_is_lost(statement: str, tmp_path: Path) -> None:
    path = tmp_path / "study.sqlite"
    store = make_store(path)
    add_trials(store, ["complete", "crashed", None])
    ledger = file_ledger(path)
    ledger.look()
    assert ledger.lost(2) == ["attempt never ended: " + str(ledger.rows["sweep_attempts"][2])]
    assert "trial 3 never ended" in ledger.lost(4)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)
    ledger.look()
    assert [text for text in ledger.lost(2) if text.startswith(CHANGES[statement])]
    assert ledger.duplicates() == (["trial key key1"] if "key1" in statement else [])
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
