"""What records say reaches a terminal as text: it shows control sequences and does not obey them."""

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

import pytest
from records_factory import make_config, make_spec
from rich.console import Console

from sweep.cli import display as display_module
from sweep.cli.app import escape_controls
from sweep.cli.display import Display
from sweep.config.trial import flatten_config
from sweep.records.messages import Progress
from sweep.records.records import TrialRecord
from sweep.search.study_forecast import TimeLeft
from sweep.search.tuner import TrialAdvanced, TrialEnded, TrialStarted

TITLE = "\x1b]0;taken over\x07"
CLEAR = "\x9b2J\x1b[2J\r"


def test_what_a_terminal_obeys_is_shown() -> None:
    assert escape_controls(TITLE) == r"\x1b]0;taken over\x07"
    assert escape_controls(CLEAR) == r"\x9b2J\x1b[2J\x0d"
    assert escape_controls("\u202eturned about\u2066") == r"\u202eturned about\u2066"
    assert escape_controls("two lines\n\tand a tab, é") == "two lines\n\tand a tab, é"


def test_the_error_of_a_trial(capsys: pytest.CaptureFixture[str]) -> None:
    record = TrialRecord(
        number=0, phase="search", values=flatten_config(make_config(0)), outcome="crashed", measurements={}, error=TITLE
    )
    with Display(make_spec(), []) as display:
        display.show(TrialEnded(record, f"it fell\n{CLEAR}{TITLE}"))
    shown = capsys.readouterr().err
    assert r"\x1b]0;taken over\x07" in shown
    assert not set(shown) & set("\x1b\x07\x9b")


def test_the_time_left_is_an_interval_and_a_slower_machine_is_said_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(display_module, "_LEFT_SECONDS", 0.0)
    values, asked = flatten_config(make_config(0)), []
    paces = iter((1.2, 1.6, 1.7, 4.0))
    display = Display(make_spec(), [])

    def predict_left(records: Sequence[TrialRecord], elapsed_seconds: float) -> TimeLeft:
        asked.append((len(records), elapsed_seconds >= 0.0))
        return TimeLeft(60.0, 120.0, 245.0, next(paces))

    display.predict_left = predict_left
    with display:
        for number in range(4):
            record = TrialRecord(number=number, phase="search", values=values, outcome="complete", measurements={})
            display.show(TrialEnded(record, ""))
        shown = StringIO()
        Console(file=shown, width=200).print(display._panel())
    assert asked == [(1, True), (2, True), (3, True), (4, True)]
    assert all(text in shown.getvalue() for text in ("1 min 00 s", "2 min 00 s", "4 min 05 s"))
    said = [line for line in capsys.readouterr().err.splitlines() if "times as long" in line]
    assert [("1.6" in line, "4.0" in line, "4 min 05 s" in line) for line in said] == [
        (True, False, True), (False, True, True),
    ]  # fmt: skip


def test_the_live_line_of_a_trial_has_rate_utilization_and_memory() -> None:
    progress = Progress(step=3, num_steps=9, epoch=0.5, images_per_second=1234.0)
    display = Display(make_spec(), [])
    display.show(TrialStarted(number=7, phase="search", config=make_config(0), attempt=1))
    for message, end in (
        (progress, "1,234 images/s"),
        (replace(progress, gpu_utilization=0.834), "1,234 images/s  GPU 83% busy"),
        (replace(progress, gpu_utilization=0.0, peak_memory_bytes=3 * 2**20), "images/s  GPU 0% busy  3.00 MiB"),
    ):
        display.show(TrialAdvanced(7, message))
        (line,) = display._running_lines()
        assert line.plain.endswith(end), line.plain


def test_the_trials_with_quality_warnings_are_counted_with_those_whose_time_is_in_doubt() -> None:
    flags = [("slowed_by_others", "spread"), ("packed",), ("spread",), ()]
    values = flatten_config(make_config(0))
    records = [
        TrialRecord(number=number, phase="search", values=values, outcome="complete", quality_flags=each)
        for number, each in enumerate(flags)
    ]
    assert Display(make_spec(), records, "sweep check mine")._warnings() == [
        "quality warnings: 3 of 4 trials (spread 2, slowed_by_others 1, packed 1)",
        "  of these trials: 1 with a time that is in doubt",
        "  reasons and remedies: sweep check mine",
    ]
