"""Trials that crash, hang and are stopped amid a step, and DataLoader workers that die or stop."""

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest
from storm import Storm, storm
from storm_processes import hit
from tally import Tally, rounds

pytestmark = pytest.mark.wide
_STALL_SECONDS = 6.0
_DEEDS = {"segfault": "SIGSEGV", "abort": "SIGABRT", "hang": "stalled", "stop": "stalled"}
_ORDERS = 10  # of one study
_MAX_ATTEMPTS = 4
_WORKER_HITS = 5  # of one study, the last of which stops a worker and does not kill it


@pytest.mark.parametrize("index", range(rounds(5)))
def test_what_befalls_a_step_is_on_the_record_of_its_trial_alone(index: int, tmp_path: Path, tally: Tally) -> None:
    del index
    orders = tmp_path / "orders"
    orders.mkdir()
    for number in range(_ORDERS):
        (orders / f"{number:02d}-{list(_DEEDS)[number % 4]}.order").touch()
    plugin = Path(__file__).with_name("saboteur.py")
    spec = {"stall_timeout": _STALL_SECONDS, "base": {"model.name": "sabotaged"}}
    with storm(tmp_path, trials=30, spec=spec, plugin=str(plugin)) as study:
        study.finish(study.start(SWEEP_STORM_ORDERS=str(orders)))
        study.account(tally)
    done = [path for path in orders.iterdir() if path.suffix != ".order"]
    tally.count("crashes and hangs", len(done))
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


@pytest.mark.slow
@pytest.mark.parametrize("index", range(rounds(8)))
def test_a_data_worker_that_dies_or_stops_costs_an_attempt(index: int, tmp_path: Path, tally: Tally) -> None:
    spec = {"stall_timeout": _STALL_SECONDS, "base": {"data.placement": "host", "data.workers": 1}}
    with storm(tmp_path, trials=12, spec=spec) as study:
        supervisor = study.start()
        befallen: Counter[int] = Counter()
        generator = random.Random(index)
        while supervisor.poll() is None and befallen.total() < _WORKER_HITS:
            number = signal.SIGSTOP if befallen.total() == _WORKER_HITS - 1 else signal.SIGKILL
            befallen += _hit_worker(study, number, generator)
        study.finish(supervisor)
        study.account(tally)
    tally.count("data workers killed or stopped", befallen.total())
    assert befallen.total() > 0
    for number, causes in study.ledger.causes().items():
        lost = [cause for cause in causes if cause]
        assert set(lost) <= {"data_worker_lost", "stalled"}
        assert len(lost) <= befallen[number]  # one that had done its work is not missed
        assert study.ledger.outcomes()[number] == ("crashed" if causes[-1] else "complete")


def _hit_worker(study: Storm, signal_number: int, generator: random.Random) -> Counter[int]:
    """Waits a random while, then hits one of the workers that are there, if any."""
    time.sleep(generator.uniform(0, 0.5))
    found = study.workers()
    if not found:
        return Counter()
    number, worker = generator.choice(found)
    return Counter({number: 1}) if hit(worker, signal_number) else Counter()
