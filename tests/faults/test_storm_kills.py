"""Trials and supervisors that are killed at random instants of real trainings."""

import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from storm import Storm, storm
from storm_processes import Process, hit
from tally import Tally, rounds

_CHILD_KILLS = 21  # of one study; now and then one comes too late
_SUPERVISOR_KILLS = 5
_MAX_ATTEMPTS = 4  # a trial is tried again three times


@pytest.mark.parametrize("index", range(rounds(10)))
def test_a_killed_child_costs_its_attempt_alone(index: int, tmp_path: Path, tally: Tally) -> None:
    with storm(tmp_path, trials=25) as study:
        supervisor = study.start()
        killed = _kill_children(study, lambda: supervisor.poll() is not None, random.Random(index))
        study.finish(supervisor)
        study.account(tally)
    tally.count("trials killed", sum(killed.values()))
    causes = study.ledger.causes()
    assert killed.total() >= _CHILD_KILLS // 2  # the storm is none otherwise
    for number, ended_by in causes.items():
        by_kill = sum("SIGKILL" in cause for cause in ended_by)
        assert by_kill in (killed[number], killed[number] - 1), (number, ended_by)
        if by_kill < killed[number]:
            assert ended_by[-1] == ""  # the last hit came after the trial's last word
        assert all("SIGKILL" in cause for cause in ended_by[:-1])
        assert study.ledger.outcomes()[number] == ("complete" if ended_by[-1] == "" else "crashed")
        assert ended_by[-1] == "" or len(ended_by) == _MAX_ATTEMPTS


def _kill_children(study: Storm, is_over: Callable[[], bool], generator: random.Random) -> Counter[int]:
    """Kills four of five attempts at a random instant of theirs, until there have been enough; how often by trial."""
    killed: Counter[int] = Counter()
    doomed: dict[tuple[int, int], tuple[int, Process, float]] = {}
    seen: dict[tuple[int, int], float] = {}
    usual_seconds = 0.8
    while not is_over():
        now = time.monotonic()
        present = study.trials()
        for number, child in present:
            if child.identity not in seen:
                seen[child.identity] = now
                if generator.random() < 0.8 and len(doomed) + killed.total() < _CHILD_KILLS:
                    doomed[child.identity] = number, child, now + generator.uniform(0, usual_seconds)
        for identity in [identity for identity, (*_, at) in doomed.items() if now >= at]:
            number, child, _ = doomed.pop(identity)
            killed[number] += hit(child, signal.SIGKILL)
        time.sleep(0.01)
    return killed


@pytest.mark.parametrize("index", range(rounds(10)))
def test_the_same_command_goes_on_after_its_supervisor_was_killed(index: int, tmp_path: Path, tally: Tally) -> None:
    generator = random.Random(index)
    with storm(tmp_path, trials=8 * _SUPERVISOR_KILLS) as study:
        for kill in range(_SUPERVISOR_KILLS):
            supervisor = study.start()
            if kill % 5 == 4:  # amid its start
                time.sleep(generator.uniform(0, 4))
            else:
                seconds = study.await_attempt(supervisor, study.ledger.num_attempts())
                tally.note("from the command to the first new trial, s", seconds)
                time.sleep(generator.uniform(0, 0.8))
            assert supervisor.poll() is None
            supervisor.kill()
            supervisor.wait()
            tally.count("supervisors killed")
            study.count_zombies(tally)
        study.finish(study.start())
        study.account(tally)
    causes = [cause for each in study.ledger.causes().values() for cause in each]
    assert set(causes) == {"", "supervisor_lost"}
    assert set(study.ledger.outcomes().values()) == {"complete"}
