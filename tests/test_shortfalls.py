"""What a study asked for and did not get is named: objectives of complete trials, and confirming trials."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cli_calls import INLINE
from frames_factory import MadeFrames, frames_of, make_frames, make_spec

from reports import write_report
from sweep.analysis import recommend
from sweep.analysis.comparable import select_comparable
from sweep.analysis.shortfalls import (
    count_missing_objectives,
    describe_missing_objectives,
    explain_confirmation,
    explain_few_seeds,
)
from sweep.cli import study_run
from sweep.cli.app import run_app

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
    ([trial(0, None), trial(1, None)], {"trials": 9}, "only 2 of 9 search trials ended, and it follows them."),
    ([trial(0, 1.0) | {"val_accuracy": None}], {}, "no complete trial has a validation accuracy."),
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


def fresh(numbers: range, seconds: float, total: float) -> list[dict[str, Any]]:
    return [trial(number, seconds, "confirm") | {"total_seconds": total} for number in numbers]


@pytest.mark.parametrize(("rows", "seeds", "said"), [
    (fresh(range(2, 5), 1.0, 1.0), 20, ""),
    ([], 20, ""),
    (
        [*fresh(range(2, 5), 1.0, 10.0), *fresh(range(5, 6), 2.0, 12.0)],
        20,
        "1 configuration has fresh seeds, but fewer than the 3 with which a configuration is named (trial 1: 1): "
        "the time for fresh seeds does not suffice (42 of 60 s are used; confirm.share is 0.5 of the search's "
        "time). For more, run sweep run made.toml --set confirm.share=1.0",
    ),
    (fresh(range(2, 4), 2.0, 2.0), 20, "(trial 1: 2): after those seeds others were worth more, or the run ended"),
    (fresh(range(2, 4), 1.0, 1.0), 2, "(trial 0: 2): confirm.seeds is 2. For more"),
    ([*fresh(range(2, 4), 1.0, 1.0), trial(9, None, "confirm", "")], 20, ""),  # it still runs
])  # fmt: skip
def test_configurations_with_too_few_seeds_have_the_reason(rows: list[dict[str, Any]], seeds: int, said: str) -> None:
    search = [row | {"total_seconds": seconds} for row, seconds in zip(SEARCH, (100.0, 20.0), strict=True)]
    made = frames(*search, *rows, most=16, seeds=seeds)
    found = explain_few_seeds(select_comparable(made))
    assert said in found
    assert bool(said) == bool(found)
    assert (found in recommend(made).notes) == bool(found)


# --- real studies

STUDY = """
name = "tiny"
question = "?"
objectives = ["val_accuracy", "{second}"]
trials = {trials}
confirm = {{ max_configurations = 1, seeds = 1 }}
[base]
data.subset = 64
budget.steps = 2
[space]
"batch.micro" = {{ choice = [16, 32] }}
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    code = run_app(["run", "tiny.toml", *INLINE, *arguments])
    assert code == 0, capsys.readouterr().err
    shown = capsys.readouterr()
    return json.loads(shown.out) if "--json" in arguments else shown.out + shown.err


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(study_run, "write_report", partial(write_report, formats=()))  # without pictures
    return tmp_path


def test_an_objective_that_a_sensor_did_not_deliver_is_named_everywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # as on a GPU whose counter is there and does not answer later
    monkeypatch.setattr("sweep.search.session.check_objectives", lambda _spec, _settings: None)
    (folder / "tiny.toml").write_text(STUDY.format(second="energy_joules", trials=2))
    document = run(capsys, "--json")
    # the accuracy is there, so that the answer can be confirmed
    assert document["missing_objectives"] == {"energy_joules": 3}
    assert document["confirmation_shortfall"] is None
    assert (document["num_trials"], document["stopped"]) == (3, None)
    assert run_app(["recommend", "tiny", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["missing_objectives"] == {"energy_joules": 3}
    assert run_app(["recommend", "tiny"]) == 0
    shown = capsys.readouterr().out
    assert "Note: Energy is missing in 3 of 3 complete trials" in shown
    page = (folder / "runs/tiny/report.html").read_text()
    reservations = page.partition('id="warnings"')[2].partition("</section>")[0]
    assert "Energy is missing in 3 of 3 complete trials" in reservations


def test_a_confirmation_is_explained_until_it_is_done(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tiny.toml").write_text(STUDY.format(second="train_seconds", trials=1))
    nothing = "Nothing is confirmed: confirm.seeds = 0. Raise it, and run the study again."
    assert nothing in run(capsys, "--set", "confirm.seeds=0")
    page = (folder / "runs/tiny/report.html").read_text()
    reservations = page.partition('id="warnings"')[2].partition("</section>")[0]
    assert nothing in reservations
    stopped = run(capsys, "--json", "--timeout", "0.001")
    expected = "0 confirming trials completed: the study's timeout has passed"
    assert stopped["confirmation_shortfall"].startswith(expected)
    assert run_app(["recommend", "tiny", "--json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert "0 confirming trials completed: the run ended before it." in notes
    done = run(capsys, "--json")
    assert (done["confirmation_shortfall"], done["missing_objectives"]) == (None, {})
