"""The benchmark of the forecast: its studies, its record, its calibration."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import forecast_error
from benchmarks.forecast_calibration import calibrate
from benchmarks.forecast_error import StudyFigures, measure_study, replay_forecast
from benchmarks.forecast_replays import find_lean
from benchmarks.forecast_studies import NUM_DEVELOPMENT, NUM_VALIDATION, PlannedStudy, plan_studies, plan_tiny_study
from sweep.search import study_forecast
from sweep.search.study_forecast import StudyCosts, draw_sums


def figures(total: float, **changes: Any) -> StudyFigures:
    """Of a study of 20 trials of which each takes 10 seconds."""
    costs = StudyCosts(
        search_seconds=np.full(4, 10.0),
        confirm_seconds=np.full(4, 10.0),
        num_trials=20,
        least_confirm=0,
        most_confirm=0,
        is_exact=True,
        share_guessed=0.0,
    )
    known = {"expected_seconds": 200.0, "low_seconds": 170.0, "high_seconds": 240.0, "probing_seconds": 1.0}
    lists = {name: np.asarray(value).tolist() for name, value in vars(costs).items()}
    return replace(StudyFigures(study="made", total_seconds=total, costs=lists, trials=[], **known), **changes)


def test_studies_of_both_parts_are_many_differ_and_have_every_shape() -> None:
    parts = [plan_studies("development", NUM_DEVELOPMENT), plan_studies("validation", NUM_VALIDATION)]
    assert len(parts[0]) >= 12
    assert len(parts[1]) >= 30
    described = [
        one.spec.model_copy(update={"name": "x", "seed": 0}).model_dump_json() for part in parts for one in part
    ]
    assert len(set(described)) == len(described)
    validation = [one.spec for one in parts[1]]
    assert len({spec.base["data.name"] for spec in validation}) == 3
    assert {spec.sampler for spec in validation} == {"cost_aware", "tpe", "nsga2", "gp", "qmc", "random", "grid"}
    assert {spec.pruner for spec in validation} == {"none", "front"}
    assert {bool(spec.confirm.seeds) for spec in validation} == {True, False}
    assert {name for spec in validation for name in spec.base if name.startswith("budget.")} >= {
        "budget.epochs", "budget.samples", "budget.steps", "budget.target_accuracy"
    }  # fmt: skip
    assert {(one.executor, one.per_device) for one in parts[1]} == {("process", None), ("inline", None), ("process", 2)}


def test_a_measured_study_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(planned: PlannedStudy, _device: str, _root: Path) -> StudyFigures:
        calls.append(planned.spec.name)
        return figures(210.0)

    monkeypatch.setattr(forecast_error, "_run", run)
    first = measure_study(plan_tiny_study(), "cpu", tmp_path)
    again = measure_study(plan_tiny_study(), "cpu", tmp_path)
    assert calls == ["tiny"]
    assert again == first
    assert (again.factor, again.is_inside) == (pytest.approx(1.05), True)
    measure_study(plan_tiny_study(), "cpu", tmp_path, "-other")  # another forecast
    assert calls == ["tiny", "tiny"]
    assert "costs" not in first.summary
    low, middle, high = np.quantile(replay_forecast(again), (0.05, 0.5, 0.95))
    assert low < middle < high
    assert middle == pytest.approx(200.0 * study_forecast.FACTOR, rel=0.01)


def test_the_calibration_finds_the_factor_and_the_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_forecast, "FACTOR", 1.0)
    monkeypatch.setattr(study_forecast, "WIDTH", 1.0)
    rng = np.random.default_rng(0)
    totals = 200.0 * 1.3 * np.exp(rng.normal(0, 0.25, 400))  # the drawn ones have a deviation of 0.1
    factor, width = calibrate([figures(float(total)) for total in totals])
    assert factor == pytest.approx(1.3, rel=0.05)
    assert width == pytest.approx(2.5, rel=0.1)
    monkeypatch.setattr(study_forecast, "FACTOR", factor)
    monkeypatch.setattr(study_forecast, "WIDTH", width)
    found = [figures(float(total)) for total in 200.0 * 1.3 * np.exp(rng.normal(0, 0.25, 400))]
    bounds = [np.quantile(replay_forecast(one), (0.05, 0.95)) for one in found]
    inside = [low <= one.total_seconds <= high for one, (low, high) in zip(found, bounds, strict=True)]
    assert 0.85 <= np.mean(inside) <= 0.95
    assert calibrate(found) == (pytest.approx(factor, rel=0.05), pytest.approx(width, rel=0.15))


def test_the_lean_of_a_sampler_is_that_of_the_forecast() -> None:
    sample = np.array([1.0, 2.0, 4.0, 9.0])
    for lean in (-3.0, 0.0, 2.0):
        drawn = draw_sums(sample, np.full(20_000, 50), np.full(20_000, lean), np.random.default_rng(0))
        assert find_lean(sample.tolist(), float(drawn.mean()) / 50) == pytest.approx(lean, abs=0.1)
