"""Workers of a Ray cluster that are killed while a study trains on them."""

import random
import signal
import time
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from storm import Storm, rounds, storm
from storm_processes import hit, parent_of

# Not imported: a process that has done so without a token cannot start a cluster that has one.
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
pytestmark = [pytest.mark.timeout(1800), pytest.mark.wide, pytest.mark.slow, needs_ray]

_MAX_ATTEMPTS = 4  # a trial is tried again three times


def test_a_lost_worker_costs_its_attempt_alone(tmp_path: Path) -> None:
    generator, num_killed = random.Random(0), 0
    with storm(tmp_path, trials=rounds(200), executor="ray") as study:
        supervisor = study.start()
        for _ in range(rounds(20)):
            # a study that loses attempt after attempt at once would stop and say so
            study.await_more(supervisor, study.ledger.num_ended)
            time.sleep(generator.uniform(0, 0.8))
            num_killed += _kill_worker(study, generator)
        study.finish(supervisor)
        study.check()
    assert num_killed == rounds(20)
    causes = study.ledger.causes()
    told = Counter(cause for each in causes.values() for cause in each if cause)
    assert set(told) <= {"actor_lost"}
    assert num_killed // 2 <= told["actor_lost"] <= num_killed  # the storm is none otherwise
    for number, outcome in study.ledger.outcomes().items():
        assert outcome == ("crashed" if len(causes[number]) == _MAX_ATTEMPTS and causes[number][-1] else "complete")


def _kill_worker(study: Storm, generator: random.Random) -> bool:
    """Kills what holds one of the trials that train now, as soon as there is one."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for _, trial in generator.sample(found := study.trials(), len(found)):
            worker = parent_of(parent_of(trial))
            if worker is not None and worker.pid > 1 and hit(worker, signal.SIGKILL):
                return True
        time.sleep(0.02)
    return False
