"""The critical batch: steps to a target at equal tuning, between evaluations; its estimates and its figure."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames_factory import MadeFrames, frames_of, make_spec
from test_claims import row

from reports.evidence import gather_evidence
from reports.figure import Absent, Intervals, Lines, Points, Rule
from reports.figures.batch import make_batch_regimes
from sweep.analysis.comparable import select_comparable
from sweep.analysis.critical_batch import (
    CriticalBatch,
    StepsEstimate,
    TunedSteps,
    estimate_by_noise,
    estimate_by_steps,
    expect_fewest,
    find_tuned_steps,
    fit_regimes,
)
from sweep.analysis.findings import Finding, evaluate_claims
from sweep.analysis.tuned_batches import cross_target

BATCHES = (32, 64, 128, 256, 512, 1024)
RATES = (0.05, 0.1, 0.2)
UNTIL = {"budget__target": 0.9, "schedule__name": "constant"}
EVERY = 6400  # samples between evaluations


def trial(number: int, batch: int, lr: float, steps: float, **changes: Any) -> tuple[dict[str, Any], pd.DataFrame]:
    """A training that reaches 90 % after ``steps``, linear in steps, and its evaluations, the last one behind that."""
    keys = UNTIL | {"batch__micro": batch, "optimizer__lr": lr} | changes
    every = EVERY / batch
    taken = every * np.arange(1, math.ceil(steps / every) + 1)
    points = pd.DataFrame({"study": "made", "number": number, "step": taken, "val_accuracy": 0.9 * taken / steps})
    known = {"val_accuracy": 0.9, "steps_to_target": taken[-1], "outcome": "complete"}
    return row(number, measured=known, **keys), points.assign(train_loss=0.1)


def frames(trials: Sequence[tuple[dict[str, Any], pd.DataFrame]]) -> MadeFrames:
    made = frames_of(make_spec(), [each for each, _ in trials])
    return replace(made, evaluations=pd.concat([points for _, points in trials]))


def regimes(trials: Sequence[tuple[dict[str, Any], pd.DataFrame]]) -> Finding:
    return next(item for item in evaluate_claims(frames(trials)) if item.name == "three_regimes")


def tuned(trials: Sequence[tuple[dict[str, Any], pd.DataFrame]]) -> TunedSteps | str:
    return find_tuned_steps(select_comparable(frames(trials)))


def ideal_steps(batch: int, critical: float = 300.0) -> float:
    return 700 * (1 + critical / batch)


def study(**changes: Any) -> list[tuple[dict[str, Any], pd.DataFrame]]:
    """The rate in the middle is the best at every batch."""
    return [
        trial(number, batch, lr, ideal_steps(batch) * (1.0 if lr == 0.1 else 1.6), **changes)
        for number, (batch, lr) in enumerate(itertools.product(BATCHES, RATES))
    ]


def test_the_law_is_fitted_back() -> None:
    batches = 2.0 ** np.arange(4, 13)
    steps = 500 * (1 + 300 / batches)
    fit = fit_regimes(batches, steps)
    assert fit is not None
    assert (fit.min_steps, fit.critical_batch, fit.min_samples) == pytest.approx((500, 300, 150_000), rel=1e-3)
    # (S / S_min - 1)(E / E_min - 1) = 1
    products = (steps / fit.min_steps - 1) * (steps * batches / fit.min_samples - 1)
    assert products == pytest.approx(np.ones(9), rel=1e-2)
    assert fit_regimes(batches[:3], steps[:3]) is None
    assert fit_regimes(batches, np.where(np.arange(9) % 2, 100.0, 5000.0)) is None


@pytest.mark.parametrize(("critical", "is_supported"), [(300.0, True), (100_000.0, False)])
def test_the_critical_batch_is_among_those_tried_or_not(critical: float, is_supported: bool) -> None:
    rng = np.random.default_rng(3)
    trials = [
        trial(number, batch, lr, ideal_steps(batch, critical) * (1.0 if lr == 0.1 else 1.6) * rng.lognormal(0, 0.02))
        for number, (batch, lr) in enumerate(itertools.product(BATCHES, RATES))
    ]
    item = regimes(trials)
    assert (item.verdict == "supported") == is_supported
    if is_supported:
        assert item.effect == pytest.approx(critical, rel=0.1)
        assert item.low < critical < item.high
        assert (item.unit, item.n) == ("samples", 6)
        assert "3 to 3 configurations tuned at each" in item.detail


def test_the_crossing_is_between_two_evaluations() -> None:
    assert cross_target(np.array([10.0, 20.0, 30.0]), np.array([0.5, 0.8, 0.9]), 0.85) == pytest.approx(25.0)
    assert math.isnan(cross_target(np.array([10.0, 20.0]), np.array([0.9, 0.95]), 0.85))  # before the first
    assert math.isnan(cross_target(np.array([10.0]), np.array([0.2]), 0.85))
    # as steps of the evaluation that reached it they are up to a quarter more
    trials = study()
    found = tuned(trials)
    assert not isinstance(found, str)
    truth = [ideal_steps(batch) for batch in BATCHES]
    assert found.steps == pytest.approx(truth, rel=1e-6)
    evaluated = [each["steps_to_target"] for each, _ in trials if each["config.optimizer.lr"] == 0.1]
    assert max(np.array(evaluated) / truth) > 1.003


def test_the_fewest_of_many_count_as_the_expected_fewest_of_as_many_as_the_others_have() -> None:
    steps = np.array([3.0, 4.0, 7.0, 9.0])
    drawn = [min(each) for each in itertools.combinations([*steps, math.inf], 2)]
    assert math.inf not in drawn
    assert expect_fewest(steps, 5, 2) == pytest.approx(np.exp(np.mean(np.log(drawn))))
    # all batches need the same steps up to luck, of which one had ten times as many tries
    rng = np.random.default_rng(0)
    fewest = []
    for _ in range(15):
        tries = [(batch, lr) for batch in BATCHES for lr in np.geomspace(0.01, 1.0, 42 if batch == 128 else 6)]
        trials = [
            trial(n, batch, lr, 900 * rng.lognormal(0, 0.3) * (9 if lr in (0.01, 1.0) else 1))
            for n, (batch, lr) in enumerate(tries)
        ]
        found = tuned(trials)
        assert not isinstance(found, str)
        fewest.append(np.log(found.steps))
    means = np.mean(fewest, axis=0)
    assert means[2] == pytest.approx(np.delete(means, 2).mean(), abs=0.12)  # the plain fewest are 0.34 below
    assert "6 to 42 configurations tuned at each, compared as the best of 6" in found.detail


def test_a_missed_target_is_a_try() -> None:
    extra = [trial(100 + n, 128, 0.3 + n, 1000.0) for n in range(3)]
    missed = [(each | {"outcome": "target_missed", "val_accuracy": 0.5}, points.iloc[:1]) for each, points in extra]
    found = tuned([*study(), *missed])
    assert not isinstance(found, str)
    assert "3 to 6 configurations tuned at each, compared as the best of 3" in found.detail


@pytest.mark.parametrize(("trials", "reason"), [
    ([(row(n, batch__micro=b, optimizer__lr=r), study()[0][1])
      for n, (b, r) in enumerate(itertools.product(BATCHES, RATES))],
     "a study has to set target (budget.target)"),
    (study(schedule__name="cosine"), "the learning rate falls over budget.max_epochs whatever the batch"),
    ([each for each in study() if each[0]["config.optimizer.lr"] != 0.2],
     "0 effective batch sizes whose rate was tuned; 4 are required"),
    ([each for each in study() if each[0]["config.optimizer.lr"] != 0.2] +
     [trial(70 + n, batch, 0.01, 9000.0) for n, batch in enumerate(BATCHES)],
     "(6 further batch sizes left out: fewer than 3 learning rates, the best one at the edge of those tried"),
    ([each for each in study() if each[0]["global_batch_size"] < 256], "3 effective batch sizes whose rate was tuned"),
], ids=["fixed length", "one schedule", "untuned", "at the edge", "few batches"])  # fmt: skip
def test_what_cannot_carry_it_is_not_tested(trials: list[tuple[dict[str, Any], pd.DataFrame]], reason: str) -> None:
    item = regimes(trials)
    assert (item.verdict, item.n) == ("not measured" if "not measured" in item.reason else "not tested", 0)
    assert math.isnan(item.effect)
    assert reason in item.reason


def test_a_batch_whose_first_evaluation_had_reached_it_is_left_out() -> None:
    soon = [trial(n, 16, lr, 10.0) for n, lr in enumerate(RATES, start=200)]
    item = regimes([*study(), *soon])
    assert item.n == 6
    assert "(1 further batch size left out: " in item.detail


# --- both estimates and the figure


def noisy_frames() -> Any:
    noise = itertools.cycle([{"noise_scale_run": scale, "num_noise_steps": 50} for scale in (100.0, 400.0)])
    return frames([(each | next(noise), points) for each, points in study()])


def test_the_two_estimates_of_one_study() -> None:
    records = select_comparable(noisy_frames())
    steps, noise = estimate_by_steps(records), estimate_by_noise(records)
    assert isinstance(steps, StepsEstimate)
    assert steps.batch.value == pytest.approx(300, rel=0.01)
    assert isinstance(noise, CriticalBatch)
    assert noise.value == pytest.approx(200)
    assert noise.low < 200 < noise.high < 400


def test_the_figure_has_the_law_the_regimes_and_every_estimate_on_one_axis() -> None:
    drawn = make_batch_regimes(gather_evidence(noisy_frames()))
    assert not isinstance(drawn, Absent), drawn.remedy
    figure = drawn[0]
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


def test_without_steps_to_a_target_the_figure_is_absent() -> None:
    absent = make_batch_regimes(gather_evidence(frames(study(budget__target=None, budget__epochs=2.0))))
    assert isinstance(absent, Absent)
    assert "budget.target" in absent.remedy
