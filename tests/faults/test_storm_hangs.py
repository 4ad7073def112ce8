"""Trials that crash, hang and are stopped amid a step."""

from collections import Counter
from pathlib import Path

import pytest
from storm import rounds, storm

pytestmark = pytest.mark.wide
_STALL_SECONDS = 6.0
_DEEDS = {"segfault": "SIGSEGV", "abort": "SIGABRT", "hang": "stalled", "stop": "stalled"}
_ORDERS = 10  # of one study
_MAX_ATTEMPTS = 4


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
