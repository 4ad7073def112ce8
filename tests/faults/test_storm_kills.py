"""Trials and supervisors that are killed at random instants; trials that crash or hang amid a step."""

import math
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from storm import Storm, rounds, storm
from storm_processes import hit

pytestmark = pytest.mark.wide
_CHILD_KILLS = 21  # of one study; now and then one comes too late
_USUAL_SECONDS = 0.8  # that a trial trains
_SUPERVISOR_KILLS = 5
_MAX_ATTEMPTS = 4  # a trial is tried again three times


@pytest.mark.slow
@pytest.mark.parametrize("index", range(rounds(10)))
def test_a_killed_child_costs_its_attempt_alone(index: int, tmp_path: Path) -> None:
    with storm(tmp_path, trials=40) as study:
        supervisor = study.start()
        trained, killed = _kill_children(study, lambda: supervisor.poll() is not None, random.Random(index))
        study.finish(supervisor)
        study.check()
    causes = study.ledger.causes()
    assert killed.total() >= _CHILD_KILLS // 2  # the storm is none otherwise
    for number, ended_by in causes.items():
        assert len(ended_by) >= trained[number]  # every process that trained is an attempt on record
        by_kill = sum("SIGKILL" in cause for cause in ended_by)
        assert by_kill in (killed[number], killed[number] - 1), (number, ended_by)
        if by_kill < killed[number]:
            assert ended_by[-1] == ""  # the last hit came after the trial's last word
        assert all("SIGKILL" in cause for cause in ended_by[:-1])
        assert study.ledger.outcomes()[number] == ("complete" if ended_by[-1] == "" else "crashed")
        assert ended_by[-1] == "" or len(ended_by) == _MAX_ATTEMPTS


def _kill_children(
    study: Storm, is_over: Callable[[], bool], generator: random.Random
) -> tuple[Counter[int], Counter[int]]:
    """Kills processes that train, each at a random instant, until there have been enough.

    At most two in a row: a study that loses attempt after attempt at once would stop and say so. By trial: how many
    processes have trained it, and how many of them were killed.
    """
    moments: dict[psutil.Process, float] = {}  # when to kill a process
    trained: Counter[int] = Counter()
    killed: Counter[int] = Counter()
    num_in_a_row = 0
    while not is_over():
        now = time.monotonic()
        for number, child in study.trials():
            if child not in moments:
                is_doomed = num_in_a_row < 2 and generator.random() < 0.8 and killed.total() < _CHILD_KILLS
                num_in_a_row = num_in_a_row + 1 if is_doomed else 0
                trained[number] += 1
                moments[child] = now + generator.uniform(0, _USUAL_SECONDS) if is_doomed else math.inf
            elif moments[child] <= now:
                killed[number] += hit(child, signal.SIGKILL)
                moments[child] = math.inf
        time.sleep(0.02)
    return trained, killed


@pytest.mark.slow
@pytest.mark.parametrize("index", range(rounds(10)))
def test_the_same_command_goes_on_after_its_supervisor_was_killed(index: int, tmp_path: Path) -> None:
    generator = random.Random(index)
    with storm(tmp_path, trials=6 * _SUPERVISOR_KILLS) as study:
        for kill in range(_SUPERVISOR_KILLS):
            supervisor = study.start()
            if kill % 5 == 4:  # amid its start
                time.sleep(generator.uniform(0, 4))
            else:
                study.await_more(supervisor, study.ledger.num_attempts)
                time.sleep(generator.uniform(0, 0.8))
            assert supervisor.poll() is None
            supervisor.kill()
            supervisor.wait()
            assert not study.watch.zombies()
        study.finish(study.start())
        study.check()
    causes = [cause for each in study.ledger.causes().values() for cause in each]
    assert set(causes) == {"", "supervisor_lost"}
    assert set(study.ledger.outcomes().values()) == {"complete"}


_STALL_SECONDS = 6.0
_DEEDS = {"segfault": "SIGSEGV", "abort": "SIGABRT", "hang": "stalled", "stop": "stalled"}
_ORDERS = 10  # of one study


@pytest.mark.parametrize("index", range(rounds(5)))
def test_what_befalls_a_step_is_on_the_record_of_its_trial_alone(index: int, tmp_path: Path) -> None:
    del index
    orders = tmp_path / "orders"
    orders.mkdir()
    for number in range(_ORDERS):
        (orders / f"{number:02d}-{list(_DEEDS)[number % 4]}.order").touch()
    plugin = Path(__file__).with_name("saboteur.py")
    spec = {"stall_timeout": _STALL_SECONDS, "base": {"model.name": "sabotaged"}}
    with storm(tmp_path, trials=30, spec=spec, plugin=str(plugin)) as study:
        study.finish(study.start(SWEEP_STORM_ORDERS=str(orders)))
        study.check()
    done = [path for path in orders.iterdir() if path.suffix != ".order"]
    assert len(done) >= _ORDERS // 2
    met = Counter((int(path.suffix[1:]), _DEEDS[path.stem.partition("-")[2]]) for path in done)
    told = Counter(
        (number, next((word for word in _DEEDS.values() if word in cause), cause))
        for number, causes in study.ledger.causes().items()
        for cause in causes
        if cause
    )
    assert told == met
    for number, causes in study.ledger.causes().items():
        is_own_fault = "SIG" in causes[-1]
        assert causes[-1] == "" or is_own_fault or len(causes) == _MAX_ATTEMPTS
        assert study.ledger.outcomes()[number] == ("crashed" if causes[-1] else "complete")
