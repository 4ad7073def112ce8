"""What the tuner asks of its trials, counted as they come."""

from records_factory import make_config

from sweep.config.trial_config import flatten
from sweep.records.messages import Outcome, Phase
from sweep.records.trial_record import TrialRecord
from sweep.search.loop.trial_index import TrialIndex


def trial(number: int, outcome: Outcome | None, key: str = "", phase: Phase = "search") -> TrialRecord:
    return TrialRecord(number, phase, flatten(make_config(number)), outcome, trial_key=key or f"key{number}")


def test_only_what_trained_or_runs_counts() -> None:
    roster = TrialIndex([trial(0, "complete"), trial(1, "not_fitting"), trial(2, "cancelled"), trial(3, None)])
    assert (roster.num_counted, roster.num_proposed, roster.num_points, roster.next_number) == (2, 3, 3, 4)
    roster.put(trial(3, "diverged"))
    roster.put(trial(4, None))
    roster.put(trial(5, "complete", phase="confirm"))
    assert (roster.num_counted, roster.num_proposed, roster.num_points, roster.next_number) == (3, 4, 4, 6)
    roster.put(trial(4, "cancelled"))
    assert (roster.num_counted, roster.num_proposed) == (2, 3)
    assert [record.number for record in roster.records()] == list(range(6))


def test_a_key_is_there_until_its_trial_is_cancelled() -> None:
    roster = TrialIndex([])
    assert not roster.has_key("a")
    roster.put(trial(0, None, "a"))
    assert roster.has_key("a")
    roster.put(trial(0, "cancelled", "a"))
    assert not roster.has_key("a")


def test_what_was_cancelled_is_due_until_another_stands_for_it() -> None:
    roster = TrialIndex([trial(0, "cancelled", "a"), trial(1, "cancelled", "b"), trial(2, "cancelled", "c", "confirm")])
    first = roster.take_cancelled("search")
    assert first is not None
    assert first.number == 0
    roster.put(trial(3, None, "a"))
    second = roster.take_cancelled("search")
    assert second is not None
    assert second.number == 1
    roster.put(trial(3, "cancelled", "a"))  # the trial that stood for it was cut off as well
    roster.put(trial(4, "complete", "b"))
    third = roster.take_cancelled("search")
    assert third is not None
    assert third.number == 3
    roster.put(trial(5, "complete", "a"))
    assert roster.take_cancelled("search") is None
