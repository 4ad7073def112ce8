"""Tables of the page: batch size, accuracy, time and memory first; what all rows share is stated once, not shown."""

import math

import pytest
from frames_factory import frames_of, make_frames, make_spec

from reports.evidence import Evidence, gather_evidence
from reports.figure import Absent
from reports.figures.costs import make_outcomes
from reports.page.data import describe_details
from reports.page.tables import make_front_table, split_columns

FIRST = ["Effective batch size", "Validation accuracy", "Training time", "Peak memory"]


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return gather_evidence(make_frames(40, confirm=4))


def make_equal() -> Evidence:
    """The same with one accumulation and one optimizer in all trials, which the study sweeps."""
    frames = make_frames(40, confirm=4)
    frames.trials["config.batch.accumulation"] = 2
    frames.trials["config.optimizer.name"] = "adamw"
    return gather_evidence(frames)


def test_batch_accuracy_time_and_memory_come_first(evidence: Evidence) -> None:
    table = make_front_table(evidence)
    assert list(table.heads[:5]) == ["Trial", *FIRST]
    sizes = evidence.configurations.set_index("number")["global_batch_size"]
    for row in table.rows:
        assert row.cells[1].text == str(sizes[int(row.cells[0].text)])
        assert all(cell.is_number for cell in row.cells[:5])
    details = describe_details(evidence)
    assert [each["label"] for each in details["columns"][:5]] == ["Trial", *FIRST]
    assert all("keys" in each for each in details["columns"][:5])


def test_what_all_rows_share_is_stated_once(evidence: Evidence) -> None:
    equal = make_equal()
    assert "Accumulation" in make_front_table(evidence).heads
    table, details = make_front_table(equal), describe_details(equal)
    assert "Accumulation" not in table.heads
    assert "accumulation 2" in table.common.split(", ")
    assert all(len(row.cells) == len(table.heads) for row in table.rows)
    labels = [each["label"] for each in details["columns"]]
    assert "Accumulation" in labels  # for the download, the filters and the chosen trial
    assert "Accumulation" not in [labels[place] for place in details["shown"]]
    assert details["constant"].split(", ")[:2] == ["optimizer adamw", "accumulation 2"]


def test_the_first_columns_and_a_single_row_are_always_shown() -> None:
    labels, columns = ["Batch", "Model", "Rate"], [["16", "16"], ["a", "a"], ["1", "2"]]
    assert split_columns(labels, columns, 1) == ((0, 2), ("model a",))
    assert split_columns(labels, columns, 2) == ((0, 1, 2), ())
    assert split_columns(labels, [["16"], ["a"], ["1"]], 0) == ((0, 1, 2), ())


def test_outcomes_are_a_sentence_where_all_trials_are_complete() -> None:
    rows = [{"number": n, "global_batch_size": 32 * 2**n, "val_accuracy": 0.9, "train_seconds": 9.0} for n in range(3)]
    made = make_outcomes(gather_evidence(frames_of(make_spec(), rows)))
    assert made == Absent("Trial outcomes", "has nothing to show: all 3 are complete.")
    failed = [*rows, {"number": 3, "global_batch_size": 32, "outcome": "diverged"}]
    assert isinstance(make_outcomes(gather_evidence(frames_of(make_spec(), failed))), list)


def test_without_memory_no_column_of_it_is_kept() -> None:
    frames = make_frames(20, confirm=2, objectives=["val_accuracy", "train_seconds"])
    frames.trials["peak_memory_bytes"] = math.nan
    table = make_front_table(gather_evidence(frames))
    assert table.heads[:4] == ("Trial", *FIRST[:3])
    assert "Peak memory" not in table.heads
    assert "memory" not in table.common
