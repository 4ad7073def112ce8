"""Trials that crash in the same way stop a study after the second, and the same command tries them again."""

from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState
from records_factory import fill_mirror, make_spec, make_store
from test_tuner import run

from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig
from sweep.records.messages import Ending
from sweep.records.store import Store
from sweep.search.breaker import CircuitBreaker
from sweep.search.optuna import open_read_only
from sweep.search.tuner import Stopped


def crash(error: str, cause: str = "") -> Ending:
    return Ending(outcome="crashed", error=error, cause=cause)


def listen(*endings: Ending) -> str:
    """What the circuit breaker of a study with a complete trial says after ``endings``."""
    breaker = CircuitBreaker(has_complete=True)
    for ending in endings:
        breaker.record_ending(TrialConfig(), ending)
    return breaker.reason


def make_traceback(message: str, line: int = 3) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "/a/b.py", line {line}, in forward\n    x = y\n        ^\n{message}'
    )


@pytest.mark.parametrize(("first", "second"), [
    ("b", "b"),
    (make_traceback("ValueError: 64 rows at 0x7f3a"), make_traceback("ValueError: 8 rows at 0x11", 9)),
    (make_traceback("KeyError: 'a'"), make_traceback("KeyError: 'a'")[34:]),
    ("cannot open /tmp/x1ab/file.txt", "cannot open /tmp/q_9/other.txt"),
    ("images changed: digest 3fa9c1d2e4b5", "images changed: digest 00ffaa1122bc"),
    ("data.root: 2 of 9 images cannot be used:\n  a.png is empty\nRepair them.",
     "data.root: 1 of 9 images cannot be used:\n  b.png is cut\nRepair them."),
])  # fmt: skip
def test_two_crashes_that_differ_only_in_numbers_and_temporary_names_are_alike(first: str, second: str) -> None:
    assert listen(crash(first)) == ""
    assert listen(crash(first), crash(second)).startswith("2 trials in a row crashed in the same way: ")


@pytest.mark.parametrize(("first", "second"), [
    ("a", "b"),
    (make_traceback("ValueError: no rows"), make_traceback("TypeError: no rows")),
    ("cannot open /data/x/file.txt", "cannot open /data/y/file.txt"),
    ("killed by SIGSEGV\nat work", "killed by SIGABRT\nat work"),
])  # fmt: skip
def test_crashes_of_another_class_or_message_are_not_alike(first: str, second: str) -> None:
    assert listen(*map(crash, (first, second, first, second))) == ""


def test_another_ending_between_two_crashes_begins_anew() -> None:
    assert listen(crash("b"), Ending(outcome="complete"), crash("b")) == ""
    assert listen(crash("b"), Ending(outcome="pruned"), crash("b")) == ""
    assert listen(crash("b"), crash("b"), Ending(outcome="complete")) == ""
    assert listen(crash("b"), crash("b")) == (
        "2 trials in a row crashed in the same way: b. To have them tried again, fix that"
    )


# ---------------------------------------------------------------------- the same study again


@pytest.fixture
def spec() -> StudySpec:
    return make_spec(trials=6, sampler="random", confirm={"max_configurations": 2, "seeds": 2})


@pytest.fixture
def store(tmp_path: Path, spec: StudySpec) -> Any:
    with closing(make_store(tmp_path / "study.sqlite", spec)) as opened:
        yield opened


def outcomes(store: Store, phase: str = "search") -> list[str | None]:
    return [record.outcome for record in store.trial_records("s") if record.phase == phase]


def points(store: Store, first: int, last: int) -> list[dict[str, Any]]:
    return [record.values for record in store.trial_records("s")[first:last]]


def test_the_second_crash_stops_it_and_both_are_tried_again(store: Store, spec: StudySpec, tmp_path: Path) -> None:
    events = run(store, spec, "broken")
    assert events[-1] == Stopped(
        "2 trials in a row crashed in the same way: layer 3 is missing. To have them tried again, fix that, then run "
        "the same command again.",
        is_failure=True,
    )
    assert outcomes(store) == ["crashed"] * 2
    crashed = store.trial_records("s")
    run(store, spec, "broken")  # nothing was mended: two more attempts at it, not six
    assert outcomes(store) == ["crashed"] * 4
    assert points(store, 2, 4) == points(store, 0, 2)
    events = run(store, spec)
    assert not isinstance(events[-1], Stopped)
    assert points(store, 4, 6) == points(store, 0, 2)
    assert outcomes(store)[:4] == ["crashed"] * 4
    assert len(outcomes(store)) == 4 + spec.trials  # the crashed ones do not count
    assert "crashed" not in outcomes(store)[4:]
    assert store.trial_records("s")[:2] == crashed  # the records of the crashes are as they were
    number = len(store.trial_records("s"))
    run(store, spec)  # finished: nothing is tried again
    assert len(store.trial_records("s")) == number
    with closing(make_store(tmp_path / "other.sqlite", spec)) as unbroken:
        run(unbroken, spec)
        assert points(store, 4, 4 + spec.trials) == points(unbroken, 0, spec.trials)


@pytest.mark.parametrize("sampler", ["grid", "tpe", "nsga2", "gp", "cost_aware"])
def test_every_sampler_and_the_mirror_get_on_with_trials_that_are_tried_again(tmp_path: Path, sampler: str) -> None:
    space = {"batch.micro": {"log2": [4, 6]}, "batch.accumulation": {"choice": [1, 2]}}
    spec = make_spec(trials=6, sampler=sampler, confirm={"seeds": 0}, space=space)
    with closing(make_store(tmp_path / "study.sqlite", spec)) as store:
        run(store, spec, "broken")
        events = run(store, spec)
        assert not isinstance(events[-1], Stopped)  # all six points of the space were trained
        assert Counter(outcomes(store)) == {"crashed": 2, "complete": 6}
        fill_mirror(store, spec)
        storage = open_read_only(store.database.url)
        copy = optuna.load_study(study_name="s", storage=storage)
        states = Counter(trial.state for trial in copy.trials)
        storage.engine.dispose()
        assert states == {TrialState.FAIL: 2, TrialState.COMPLETE: 6}


def test_one_crash_among_good_trials_and_one_at_the_end_stay_as_they_are(store: Store, spec: StudySpec) -> None:
    run(store, spec, "broken_once", stop_after=4)
    assert outcomes(store).count("crashed") == 1
    run(store, spec)
    assert len(outcomes(store)) == spec.trials
    assert outcomes(store).count("crashed") == 1


def test_what_is_tried_again_is_so_once_although_the_supervisor_stops_amid_it(store: Store, spec: StudySpec) -> None:
    run(store, spec, "broken")
    run(store, spec, stop_after=1)  # the other of the two is still to be tried again
    run(store, spec)
    assert points(store, 2, 4) == points(store, 0, 2)
    assert len(outcomes(store)) == 2 + spec.trials


def test_confirming_trials_that_crashed_alike_are_tried_again_with_their_seeds(store: Store, spec: StudySpec) -> None:
    events = run(store, spec, "broken_confirmation")
    assert isinstance(events[-1], Stopped)
    assert outcomes(store, "confirm") == ["crashed"] * 2
    crashed = [record.values for record in store.trial_records("s") if record.phase == "confirm"]
    run(store, spec)
    again = [record.values for record in store.trial_records("s") if record.phase == "confirm"][2:]
    assert again[:2] == crashed
    assert len(outcomes(store, "confirm")) == 2 + 4


def test_trials_that_the_machine_lost_are_not_tried_again(store: Store, spec: StudySpec) -> None:
    for number in range(2):
        config = spec.config({"batch.micro": 32 * (number + 1), "optimizer.lr": 0.01})
        store.add_trial("s", number, "search", config, config.model_dump_json())
        store.end_attempt("s", number, store.start_attempt("s", number), "SIGKILL", 1.0)
        store.finish_trial("s", number, Ending(outcome="crashed", error="its attempts ended by SIGKILL"))
    run(store, spec)
    assert len(outcomes(store)) == spec.trials
