"""What a comparison of two runs says of times: nothing from the spread within one run alone."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from test_compare import compared, study

from sweep.analysis.comparison import (
    Comparison,
    Difference,
    compare_studies,
    estimate_pace_difference,
    give_verdicts,
    measure_pace_difference,
)
from sweep.analysis.statistics import Estimate, Interval, confidence_interval
from sweep.cli.app import run_app
from sweep.records.loading import load_frames


def verdicts(found: Comparison) -> set[str]:
    """Of all times."""
    every = [found.overall, *(item.differences for item in found.aligned)]
    return {each["train_seconds"].verdict for each in every if "train_seconds" in each}


@pytest.mark.parametrize("pace", [0.8, 1.1, 1.3, 2.0])
def test_a_slower_machine_is_no_slower_code(tmp_path: Path, pace: float) -> None:
    found = compared(tmp_path, slower=pace, pace=pace)
    assert verdicts(found) == {"undecided"}
    seconds = found.overall["train_seconds"].interval
    assert seconds.median == pytest.approx(pace, rel=0.02)  # as it was measured
    assert seconds.low < 1.0 < seconds.high
    assert found.pace.ratio == pytest.approx(pace, rel=0.02)
    assert found.overall["val_accuracy"].verdict == "undecided"


def test_slower_code_on_an_equal_machine_is_slower(tmp_path: Path) -> None:
    found = compared(tmp_path, slower=1.3)
    assert verdicts(found) == {"higher"}
    assert found.pace.num_references == (12, 12)
    assert 0.001 < found.pace.error < 0.02


def test_without_evidence_of_the_machine_there_is_no_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, pace in (("a", None), ("bb", 1.0)):  # in both runs or in none
        study(tmp_path / name, pace=pace, slower=1.0 if name == "a" else 1.5)
    assert run_app(["compare", "a", "bb", "--root", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    seconds = document["overall"]["train_seconds"]
    assert (seconds["low"], seconds["high"], seconds["verdict"]) == (None, None, "not_known")
    assert seconds["median"] == pytest.approx(1.5, rel=0.02)
    assert document["times"]["reason"].startswith("the two runs were made at different times")
    assert [each.startswith("sweep run s.toml") for each in document["times"]["commands"]] == [True, True]
    assert document["overall"]["peak_memory_bytes"]["verdict"] == "undecided"


@pytest.mark.parametrize("changed", [{"device": "cuda: made"}, {"driver": "560.1"}, {"power_limit_watts": 300.0}])
def test_other_devices_give_no_verdict_on_the_code(tmp_path: Path, changed: dict[str, object]) -> None:
    usual = {"driver": "550.2", "power_limit_watts": 400.0}
    sides = [
        load_frames(study(tmp_path / name, slower=slower, environment=usual | more))
        for name, slower, more in (("a", 1.0, {}), ("bb", 1.5, changed))
    ]
    found = compare_studies(*sides)
    assert verdicts(found) == {"not_known"}
    assert next(iter(changed)) in found.pace.reason


def test_a_reused_accuracy_of_another_device_leaves_the_others_their_times(tmp_path: Path) -> None:
    sides = [load_frames(study(tmp_path / name, slower=slower)) for name, slower in (("a", 1.0), ("bb", 1.5))]
    trials = sides[1].trials
    last = trials["number"] == 5
    trials.loc[last, "reused_from"], trials.loc[last, "device"] = "other/1", "cuda: made"
    trials.loc[last, "environment_digest"] = "other"
    rows = sides[1].environment_rows
    other = rows.assign(environment_digest="other", environment=json.dumps({"driver": "560.1"}))
    found = compare_studies(sides[0], replace(sides[1], environment_rows=pd.concat([rows, other])))
    assert found.pace.reason == ""
    assert verdicts(found) == {"higher"}


def test_a_flagged_time_is_not_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study(tmp_path / "a")
    # the confirming trials of the first configuration, and the only one of the last
    study(tmp_path / "bb", flagged=(5, 6, 7, 8))
    found = compare_studies(load_frames(tmp_path / "a"), load_frames(tmp_path / "bb"))
    with_times = ["train_seconds" in item.differences for item in found.aligned]
    assert with_times == [False, True, True, True, True, False]
    assert all("val_accuracy" in item.differences for item in found.aligned)
    assert found.overall["train_seconds"].interval.n == 4
    assert run_app(["compare", "a", "bb", "--root", str(tmp_path)]) == 0
    assert "2 configurations without a time of its own that can be used" in capsys.readouterr().out


def test_the_picked_seed_of_the_search_is_not_mixed_with_fresh_ones(tmp_path: Path) -> None:
    sides = [load_frames(study(tmp_path / name)) for name in ("a", "bb")]
    trials = sides[1].trials
    trials.loc[trials["number"] == 0, "val_accuracy"] += 0.05  # luck, which made it a candidate
    found = compare_studies(*sides)
    assert abs(found.aligned[0].differences["val_accuracy"].interval.median) < 0.001


def test_of_many_equal_configurations_none_stands_out() -> None:
    # each interval alone would exclude no difference in one of twenty cases
    nothing = Interval(1.01, 0.99, 1.03, 3)
    found = [Difference(interval=nothing, p_value=p) for p in (0.03, 0.2, 0.4, 0.001, np.nan)]
    given = give_verdicts(found, ["train_seconds"] * 5)
    assert [item.verdict for item in given] == ["undecided", "undecided", "undecided", "higher", "not_known"]


def test_probes_of_equal_shapes_and_code_are_evidence_unless_both_runs_share_them(tmp_path: Path) -> None:
    sides = [load_frames(study(tmp_path / name, pace=None)) for name in ("a", "bb")]
    columns = {"shape_key": ["one", "two"], "outcome": "complete", "quality_flags": ""}
    first = pd.DataFrame(columns | {"step_seconds_median": [0.1, 0.2], "probed_at": ["1", "2"]})
    second = pd.DataFrame(columns | {"step_seconds_median": [0.1, 0.22], "probed_at": ["1", "5"]})
    found = measure_pace_difference(replace(sides[0], probes=first), replace(sides[1], probes=second))
    assert (found.num_probes, found.degrees, found.reason) == (1, 1, "")
    assert found.error == pytest.approx(math.log(1.1))


def test_verdicts_on_equal_code_are_rare_under_drifting_machines() -> None:
    """The machine's pace differs by 5 % between runs and drifts by 3 % within them; the reference work of single trials
    scatters by 3 % and follows the training up to 1 %."""
    rng = np.random.default_rng(0)
    wrong, right = 0, 0
    for _ in range(400):
        paces = [rng.normal(0, 0.05) + np.repeat(rng.normal(0, 0.03, 3), 4) for _run in range(2)]
        logs = [each + rng.normal(0, 0.03, 12) for each in paces]
        pace = estimate_pace_difference((logs[0], logs[1]), np.empty(0))
        gap = float(paces[1].mean() - paces[0].mean() + rng.normal(0, 0.01))
        for shift in (0.0, 0.5):
            estimate = pace.widen(Estimate(gap + shift, 0.005, 10, 12, is_ratio=True))
            _, low, high = confidence_interval(estimate)
            is_found = not low <= 1.0 <= high
            wrong, right = wrong + (shift == 0 and is_found), right + (shift > 0 and is_found)
    assert wrong / 400 <= 0.05
    assert right / 400 >= 0.9
