"""The critical batch in two ways: the theory of the noisy quadratic, the estimates of records, the figure."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from test_regimes import BATCHES, frames, ideal_steps, study

from reports.evidence import gather_evidence
from reports.figure import Absent, Figure, Intervals, Lines, Points, Rule
from reports.figures.batch import make_batch_regimes
from sweep.analysis.comparable import select_comparable
from sweep.analysis.critical_batch import CriticalBatch, StepsEstimate, estimate_critical_batches, refit_steps


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# ---------------------------------------------------------------------- records and figure


def measured_frames(**columns: Any) -> Any:
    trials = study()
    return frames([(each | {name: values[n] for name, values in columns.items()}, points)
                   for n, (each, points) in enumerate(trials)])  # fmt: skip


def draw(made: Any) -> Figure:
    drawn = make_batch_regimes(gather_evidence(made))
    assert not isinstance(drawn, Absent), drawn.remedy
    return drawn[0]


NUM = len(study())
NOISE: dict[str, Any] = {"noise_scale_run": [100.0, 400.0] * (NUM // 2), "num_noise_steps": [50] * NUM}


def test_the_two_estimates_of_one_study() -> None:
    found = estimate_critical_batches(select_comparable(measured_frames(**NOISE)))
    assert isinstance(found.steps, StepsEstimate)
    assert found.steps.batch.value == pytest.approx(300, rel=0.01)
    assert isinstance(found.noise, CriticalBatch)
    assert found.noise.value == pytest.approx(200)
    assert found.noise.low < 200 < found.noise.high < 400


def test_the_figure_has_the_law_the_regimes_and_every_estimate_on_one_axis() -> None:
    figure = draw(measured_frames(**NOISE))
    steps, samples = figure.panels
    for panel, power in ((steps, 0), (samples, 1)):
        (points,) = (each for each in panel.layers if isinstance(each, Points))
        assert points.x == BATCHES
        assert points.y == pytest.approx([ideal_steps(batch) * batch**power for batch in BATCHES], rel=1e-3)
        borders = [each.value for each in panel.layers if isinstance(each, Rule)]
        assert borders == pytest.approx([60, 1500], rel=0.02)  # 20 % more samples, 20 % more steps
        marks = [each for each in panel.layers if isinstance(each, Intervals)]
        assert [each.x[0] for each in marks] == pytest.approx([300, 200], rel=0.01)
        assert marks[1].y[0] == pytest.approx(ideal_steps(200) * 200**power, rel=0.01)
        assert marks[1].x_low[0] < 200 < marks[1].x_high[0]
        law = next(each for each in panel.layers if isinstance(each, Lines) and each.name == "law")
        assert law.segments[0][1][0] == pytest.approx(ideal_steps(32) * 32**power, rel=0.01)
    assert "300 samples" in figure.caption


def test_the_ends_of_the_law_go_through_the_middle_of_the_points() -> None:
    batches = np.array(BATCHES, dtype=np.float64)
    steps = np.array([ideal_steps(batch) for batch in batches])
    end = refit_steps(batches, steps, 600.0)
    assert np.log(end.steps_at(batches) / steps).mean() == pytest.approx(0, abs=1e-12)
    assert end.min_steps < 700


def test_without_steps_to_a_target_the_others_stand_alone_and_without_any_the_figure_is_absent() -> None:
    short = study(budget__target_accuracy=None, budget__epochs=2.0)
    absent = make_batch_regimes(gather_evidence(frames(short)))
    assert isinstance(absent, Absent)
    for remedy in ("target accuracy", "diagnostics.noise_scale = true"):
        assert remedy in absent.remedy
    alone = draw(frames([(each | {"num_noise_steps": 50, "noise_scale_run": 64.0 + n}, points)
                         for n, (each, points) in enumerate(short)]))  # fmt: skip
    (panel,) = alone.panels
    assert [text for _, text in panel.y.ticks] == ["gradient noise scale over the training"]
    assert "no training ran to a target accuracy" in alone.caption
