"""Many supervisors of one study at once."""

import signal
import subprocess
from pathlib import Path

import pytest
from storm import storm
from storm_processes import hit, process
from tally import IS_WHOLE, Tally, rounds

pytestmark = pytest.mark.wide
_NUM_STARTS = 20 if IS_WHOLE else 5


@pytest.mark.parametrize("index", range(rounds(3)))
def test_of_many_starts_one_wins_and_its_death_frees_the_study(index: int, tmp_path: Path, tally: Tally) -> None:
    del index
    with storm(tmp_path, trials=6) as study:
        starter = study.start_often(_NUM_STARTS)
        assert starter.stdout is not None
        ended = dict(map(int, starter.stdout.readline().split()) for _ in range(_NUM_STARTS - 1))
        (winner,) = {int(path.stem) for path in tmp_path.glob("[0-9]*.txt")} - ended.keys()
        tally.count("concurrent starts", _NUM_STARTS)
        said = {pid: (tmp_path / f"{pid}.txt").read_text() for pid in ended}
        for pid, code in ended.items():
            if code != 2:
                tally.duplicates.append(f"start {pid} ended with {code}: {said[pid]}")
            assert f"is running already: process {winner} on" in said[pid]
            assert len(said[pid].splitlines()) == 1
        _kill(winner, starter)
        tally.count("supervisors killed")
        study.count_zombies(tally)
        study.finish(study.start())
        study.account(tally)


def _kill(winner: int, starter: subprocess.Popen[str]) -> None:
    victim = process(winner)
    assert victim is not None
    assert hit(victim, signal.SIGKILL)
    output, _ = starter.communicate(timeout=60)
    assert output.split() == [str(winner), str(-signal.SIGKILL)]
    assert starter.returncode == 0
