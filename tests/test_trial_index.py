"""What the tuner asks of its trials, counted as they come."""

from records_factory import make_config

from sweep.config.trial import flatten_config
from sweep.records.messages import Outcome, Phase
from sweep.records.records import TrialRecord
from sweep.search.tuner import TrialIndex


def trial(number: int, outcome: Outcome | None, key: str = "", phase: Phase = "search") -> TrialRecord:
    return TrialRecord(
        number=number,
        phase=phase,
        values=flatten_config(make_config(number)),
        outcome=outcome,
        trial_key=key or f"key{number}",
    )


def test_only_what_trained_or_runs_counts() -> None:
    trials = TrialIndex([trial(0, "complete"), trial(1, "not_fitting"), trial(2, None)])
    assert (trials.num_counted, trials.num_proposed, trials.num_points, trials.next_number) == (2, 3, 3, 3)
    trials.put(trial(2, "diverged"))
    trials.put(trial(3, None))
    trials.put(trial(4, "complete", phase="confirm"))
    assert (trials.num_counted, trials.num_proposed, trials.num_points, trials.next_number) == (3, 4, 4, 5)
    trials.put(trial(3, "not_fitting"))
    assert (trials.num_counted, trials.num_proposed) == (2, 4)
    assert [record.number for record in trials.records()] == list(range(5))


def test_a_key_is_there_from_its_first_trial_on() -> None:
    trials = TrialIndex([])
    assert not trials.has_key("a")
    trials.put(trial(0, None, "a"))
    assert trials.has_key("a")
    trials.put(trial(0, "diverged", "a"))
    assert trials.has_key("a")
