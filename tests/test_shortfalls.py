"""What a study asked for and did not get is named: objectives of complete trials, and confirming trials."""

from typing import Any

import pytest
from frames_factory import MadeFrames, frames_of, make_frames, make_spec

from sweep.analysis.shortfalls import (
    count_missing_objectives,
    describe_missing_objectives,
    explain_confirmation,
)

TWO = ["val_accuracy", "train_seconds"]


def trial(number: int, seconds: float | None, phase: str = "search", outcome: str = "complete") -> dict[str, Any]:
    """A trial whose configuration follows from ``seconds``, or from 1.0; faster ones are less accurate."""
    values: dict[str, Any] = {"number": number, "phase": phase, "outcome": outcome, "seed": number}
    values |= {"config.optimizer.lr": seconds or 1.0, "config.batch.micro": 64}
    if outcome == "complete":
        values |= {"val_accuracy": 0.5 + 0.1 * (seconds or 1.0), "train_seconds": seconds}
    return values


def frames(*rows: dict[str, Any], trials: int = 2, most: int = 2, seeds: int = 2) -> MadeFrames:
    confirm = {"max_configurations": most, "seeds": seeds}
    return frames_of(make_spec(objectives=TWO, trials=trials, confirm=confirm), list(rows))


SEARCH = (trial(0, 1.0), trial(1, 2.0))
AGAIN = [trial(2 + index, 1.0 + index % 2, "confirm") for index in range(4)]


def test_missing_objectives_are_counted_over_complete_trials() -> None:
    some = frames(*SEARCH, trial(2, None), trial(3, None, outcome="diverged"), trial(4, None, "confirm"))
    assert count_missing_objectives(some) == {"train_seconds": 2}
    (said,) = describe_missing_objectives(some)
    assert said.startswith("Training time is missing in 2 of 4 complete trials")
    assert count_missing_objectives(frames(*SEARCH)) == {}
    assert count_missing_objectives(make_frames(0)) == {}


@pytest.mark.parametrize(("rows", "changes", "said"), [
    ([*SEARCH, *AGAIN], {}, ""),
    (SEARCH, {"seeds": 0}, "Nothing is confirmed: confirm.seeds = 0. Raise it, and run the study again."),
    (SEARCH, {"most": 0}, "Nothing is confirmed: confirm.max_configurations = 0. Raise it, and run the study again."),
    (SEARCH, {"seeds": 0, "most": 0}, "confirm.max_configurations = 0 and confirm.seeds = 0. Raise both, and run"),
    ([], {}, ""),  # explained by itself
    ([trial(0, None, outcome="diverged")], {}, ""),
    ([trial(0, None), trial(1, None) | {"seed": 0}], {"trials": 9}, "only 2 of 9 search trials ended, and it follows"),
    ([trial(0, 1.0) | {"val_accuracy": None}], {}, "no complete trial has a validation accuracy."),
    ([trial(0, 1.0), trial(1, 1.0)], {"seeds": 0}, ""),  # the search itself has several seeds
    (SEARCH, {"trials": 9}, "only 2 of 9 search trials ended, and it follows them."),
    (SEARCH, {}, "0 confirming trials completed: the run ended before it."),
    (
        [*SEARCH, trial(2, None, "confirm", "")],
        {},
        "1 trial had no result when the records were read: running, or interrupted.",
    ),
    ([*SEARCH, AGAIN[0]], {}, ""),  # it may have ended because all is settled, or because the time is spent
    ([*SEARCH, *AGAIN], {"most": 3}, ""),
    (
        [*SEARCH, *AGAIN[:3], trial(5, 2.0, "confirm", "crashed")],
        {},
        "3 confirming trials completed: 1 confirming trial did not complete.",
    ),
])  # fmt: skip
def test_a_short_confirmation_has_its_reason(rows: list[dict[str, Any]], changes: dict[str, int], said: str) -> None:
    found = explain_confirmation(frames(*rows, **changes))
    assert said in found
    assert bool(said) == bool(found)


def test_why_a_run_stopped_is_the_reason_unless_nothing_could_be_confirmed() -> None:
    reason = "the study's timeout has passed."
    assert explain_confirmation(frames(*SEARCH), reason) == f"0 confirming trials completed: {reason}"
    assert explain_confirmation(frames(*SEARCH, AGAIN[0]), reason) == f"1 confirming trial completed: {reason}"
    assert explain_confirmation(frames(), "5 trials in a row crashed") == ""
