"""Whole studies on a table of formulas, judged by its truth."""

from pathlib import Path

import pytest
from table_factory import table_spec, write_table

from benchmarks.answer_studies import JudgedStudy, run_study, summarize

SPACE = {
    "batch.micro": {"log2": [4, 7]},
    "batch.accumulation": {"choice": [1, 4]},
    "optimizer.lr": {"choice": [0.01, 0.03, 0.1, 1.0]},
}


def judged(**fields: object) -> JudgedStudy:
    plain: dict[str, object] = {
        "table": "made", "seed": 0, "is_named": True, "is_settled": True, "is_right": True, "largest_settled": False,
        "largest_right": False, "is_covered": True, "tuned_covered": 0.5, "num_seeds": 3, "num_trainings": 20,
        "seconds": 1.0,
    }  # fmt: skip
    return JudgedStudy(**{**plain, **fields})  # type: ignore[arg-type]


def test_a_clear_table_is_answered_right(tmp_path: Path) -> None:
    spec = table_spec("made", space=SPACE, answer={"tolerance": {"accuracy": 0.02}})
    found = run_study(str(write_table(tmp_path, spec, 5)), seed=1)
    assert found.is_named
    assert found.is_right == found.is_settled  # a wrong one is not settled
    assert found.num_seeds >= 3
    assert found.num_trainings > 16  # half of the grid of 32, and fresh seeds


def test_shares_are_of_those_that_they_are_about() -> None:
    found = [judged(), judged(is_right=False), judged(is_settled=False, is_right=False), judged(is_named=False)]
    summary = summarize(found)
    assert summary["settled"]["share"] == 0.75
    assert summary["settled_right"]["share"] == pytest.approx(2 / 3)
    assert summary["named_covered"]["n"] == 3
    assert summary["largest_right"]["share"] is None
    assert summary["curve_covered"] == 0.5
