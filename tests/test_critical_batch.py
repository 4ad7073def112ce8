"""The critical batch in three ways: the arithmetic of branches, real branches, the estimates of records, the figure."""

import math
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_regimes import BATCHES, frames, ideal_steps, study

from benchmarks import critical_batch as quadratic
from benchmarks import quadratic_theory as theory
from benchmarks import reference_points
from reports.evidence import gather_evidence
from reports.figure import Absent, Figure, Intervals, Lines, Points, Rule
from reports.figures.batch import make_batch_regimes
from sweep.analysis.comparable_trials import select_comparable
from sweep.analysis.critical_batch import CriticalBatch, StepsEstimate, estimate_critical_batches
from sweep.analysis.steps_to_target import fit_regimes, refit_steps
from sweep.config.errors import InputError
from sweep.config.metrics import BRANCHES
from sweep.config.tables.datasets import DATASETS
from sweep.config.tables.models import MODELS
from sweep.config.trial_config import build_config
from sweep.records.messages import Ending, Progress, TrialTask
from sweep.training.diagnostics.branching import find_local_batch, measure_branches
from sweep.training.loop.trial import run_trial


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# ---------------------------------------------------------------------- the arithmetic of branches


def losses(*excesses: float, scatter: float = 0.0) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Three repeats whose logarithms have the mean ``excesses`` over the first batch, which is 0.3 nats."""
    noise = scatter * np.array([-1.0, 0.0, 1.0])[:, None] * (np.arange(1 + len(excesses)) > 0)
    return np.asarray(0.3 * np.exp(np.array([0.0, *excesses]) + noise))


def test_the_local_batch_is_interpolated_where_the_loss_crosses_the_tolerance() -> None:
    batches, limit = np.array([8.0, 16.0, 32.0]), math.log(1.05)
    value, low, high = find_local_batch(batches, losses(0.0, 2 * limit), 0.05)
    assert (value, low, high) == pytest.approx((16 * math.sqrt(2),) * 3)  # half way, and without scatter certain
    value, low, high = find_local_batch(batches, losses(0.0, 2 * limit, scatter=0.01), 0.05)
    half = 2.7764451 * 0.01 / math.sqrt(3)  # Student's t with 4 degrees; the standard deviation is the scatter
    assert value == pytest.approx(16 * math.sqrt(2))
    assert low == pytest.approx(16 * 2 ** ((limit - half) / (2 * limit)), rel=1e-6)
    assert high == pytest.approx(16 * 2 ** ((limit + half) / (2 * limit)), rel=1e-6)


def test_a_batch_beyond_which_nothing_was_tried_and_one_that_diverges() -> None:
    batches = np.array([8.0, 16.0, 32.0])
    assert all(map(math.isnan, find_local_batch(batches, losses(-0.1, 0.0), 0.05)))
    # the largest within the tolerance, where the next one has no loss
    assert find_local_batch(batches, losses(0.01, math.inf), 0.05).value == 16


# ---------------------------------------------------------------------- real branches


def ending_of(task: TrialTask) -> dict[str, float]:
    *_, ending = run_trial(task)
    assert isinstance(ending, Ending)
    assert (ending.outcome, ending.error) == ("complete", "")
    return ending.measurements


def digits(**values: object) -> TrialTask:
    settings: dict[str, object] = {
        "data.subset": 160, "budget.epochs": 2.0, "batch.micro": 8, "schedule.name": "constant", "seed": 3,
        "diagnostics.branch_after": 1.0, "diagnostics.branch_tolerance": 0.2, "optimizer.lr": 0.2,
    }  # fmt: skip
    settings |= {key.replace("__", "."): value for key, value in values.items()}
    return TrialTask(number=0, config=build_config(settings, "test"), device="cpu", threads=1)


def test_a_trial_on_digits_records_its_local_batch_and_trains_the_same() -> None:
    measured = ending_of(digits())
    assert measured["num_branches"] % 3 == 0
    assert 8 <= measured["local_critical_batch_low"] <= measured["local_critical_batch"] <= 40
    plain = ending_of(digits(diagnostics__branch_after=None))
    assert not {name for name in plain if "branch" in name or "critical" in name}
    for name in ("val_loss", "train_accuracy", "num_steps"):
        assert measured[name] == plain[name]
    assert measured["diagnostics_seconds"] > plain["diagnostics_seconds"]


def test_momentum_augmentation_average_and_noise_go_on_as_without_branches() -> None:
    values: dict[str, Any] = {
        "optimizer__name": "adamw", "optimizer__lr": 0.003, "data__augment": "crop_flip", "model__dropout": 0.2,
        "regularization__ema_decay": 0.9, "diagnostics__noise_scale": True, "data__subset": 80,
        "diagnostics__branch_epochs": 0.5,
    }  # fmt: skip
    measured, plain = ending_of(digits(**values)), ending_of(digits(**values, diagnostics__branch_after=None))
    assert "num_branches" in measured
    for name in ("val_loss", "train_accuracy", "noise_scale_run", "num_noise_steps"):
        assert measured.get(name) == plain.get(name)


def test_a_task_that_measures_nothing_costly_has_no_branches() -> None:
    task = digits(data__subset=40)
    searched = ending_of(TrialTask(number=0, config=task.config, device="cpu", measure_costly=False))
    assert not set(BRANCHES) & searched.keys()


def test_a_training_that_ends_before_its_branches_has_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    task = digits(budget__steps=1, budget__epochs=None, data__subset=40)
    assert not set(BRANCHES) & ending_of(task).keys()
    assert "the training ended after 0.2 epochs, and its branches were to begin after 1 (" in caplog.text


def test_a_trial_that_is_cut_off_before_or_after_its_branches_measures_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[dict[str, float]] = []

    def count(*arguments: Any) -> dict[str, float]:
        counted.append(measure_branches(*arguments))
        return counted[-1]

    monkeypatch.setattr("sweep.training.loop.finish.measure_branches", count)
    monkeypatch.setattr("sweep.training.loop.trial.WINDOW_SECONDS", 0.0)
    monkeypatch.setattr("sweep.training.loop.trial.PROGRESS_SECONDS", 0.0)
    whole = digits(data__subset=80)  # 10 steps are an epoch, after which it has its branches
    undisturbed = ending_of(whole)
    for cut, checkpoint_seconds in ((6, 0.0), (11, 1e9)):
        broken = replace(whole, checkpoint_dir=str(tmp_path / str(cut)), checkpoint_seconds=checkpoint_seconds)
        messages = run_trial(broken)
        assert any(isinstance(each, Progress) and each.step == cut for each in messages)
        messages.close()  # type: ignore[attr-defined]
        torch.manual_seed(cut)  # another process draws other numbers
        resumed = ending_of(broken)
        # Other programs are measured only where they take processor time, which no test can rule out.
        assert set(resumed) - {"slowdown_by_others"} == set(undisturbed) - {"slowdown_by_others"}
        for name in (*BRANCHES, "val_loss", "train_accuracy", "num_steps", "num_epochs"):
            assert resumed.get(name) == undisturbed.get(name)
    assert counted == 3 * counted[:1]  # each trial once


@pytest.mark.parametrize(
    "values",
    [
        {"distributed.world_size": 2},
        {"batch.schedule": "linear"},
        {"diagnostics.branch_tolerance": 0.0},
        {"budget.epochs": 1.0},
        {"budget.epochs": 0.8},
        {"budget.epochs": 1.2, "budget.epochs_rule": "power", "optimizer.reference_batch": 512},
    ],
)
def test_what_has_no_branches_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(InputError, match="branch"):
        build_config({"diagnostics.branch_after": 1.0, **values}, "test")


# ---------------------------------------------------------------------- the noisy quadratic


START = theory.start(quadratic.DIMENSIONS) ** 2


@pytest.fixture(autouse=True, scope="module")
def _quadratic() -> Iterator[None]:
    yield
    MODELS.pop("noisy_quadratic", None)
    DATASETS.pop("noisy_quadratic", None)
    sys.modules.pop("sweep_plugin_quadratic_plugin", None)


def test_expected_steps_are_those_of_the_recursion() -> None:
    expected = theory.expected_losses([0.8] * 400, 32, quadratic.DIMENSIONS)
    steps = theory.steps_until(range(401), list(expected))
    assert quadratic.expect_steps(32, 0.8) == pytest.approx(steps, rel=1e-4)
    assert quadratic.expect_fewest_steps(32) <= min(quadratic.expect_steps(32, rate) for rate in (0.9, 1.07, 1.2))
    assert math.isinf(quadratic.expect_steps(2, 1.9))  # the noise keeps the loss above the target


def test_trials_on_the_quadratic_have_the_exact_values() -> None:
    quadratic.load_quadratic()
    steps = np.mean(quadratic.find_steps(256, 1.7, seeds=2))
    assert steps == pytest.approx(quadratic.expect_steps(256, 1.7), rel=0.1)
    assert all(map(math.isnan, quadratic.find_steps(512, 2.2, seeds=2)))  # it diverges
    design = quadratic.Design(branch_seeds=2)
    branches = quadratic.measure_branches(design)
    assert abs(branches.error) < 0.2, branches
    assert branches.exact == pytest.approx(30, rel=0.05)
    assert branches.samples <= 2 * (design.trunk + 21 * design.length)
    # B_crit of one step grows along the training
    assert theory.critical_batch(quadratic.expect_branch_squares(design)) > 52 > theory.critical_batch(START) > 1


# ---------------------------------------------------------------------- public points


def test_the_plain_law_on_public_points() -> None:
    points = reference_points.read_points("resnet")
    plain = reference_points.LAWS["plain"]
    errors = np.abs(reference_points.leave_one_out(plain, points, "linear"))
    least, slope = np.exp(reference_points.fit(plain, points, "linear"))
    regimes = fit_regimes(points.batches, points.epochs / points.batches)  # steps but for the size of the split
    assert regimes is not None
    assert regimes.critical_batch == pytest.approx(least / slope, rel=1e-3)
    assert regimes.critical_batch == pytest.approx(47_066, rel=0.01)
    assert np.median(errors) == pytest.approx(0.035, abs=1e-3)
    # a warm-up that brings nothing explains part of the epochs of large batches
    found = {
        name: reference_points.describe(reference_points.LAWS[name], "linear") for name in ("plain", "warmup_whole")
    }
    assert found["warmup_whole"]["extrapolated_largest"] < 10 < 17 < found["plain"]["extrapolated_largest"]


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
BRANCHED: dict[str, Any] = {
    "local_critical_batch": [150.0, 600.0, math.nan] + [math.nan] * (NUM - 3),
    "local_critical_batch_low": [90.0, 400.0, 512.0] + [math.nan] * (NUM - 3),
    "num_branches": [9, 9, 12] + [math.nan] * (NUM - 3),
}


def test_the_three_estimates_of_one_study() -> None:
    found = estimate_critical_batches(select_comparable(measured_frames(**NOISE, **BRANCHED)))
    assert isinstance(found.steps, StepsEstimate)
    assert found.steps.batch.value == pytest.approx(300, rel=0.01)
    assert isinstance(found.noise, CriticalBatch)
    assert isinstance(found.branches, CriticalBatch)
    assert (found.noise.value, found.branches.value) == pytest.approx((200, 300))
    assert found.noise.low < 200 < found.noise.high < 400
    assert found.branches.detail.endswith(
        "2 trainings; in 1 training no branch exceeded the tolerance, up to 512 samples"
    )


def test_one_training_has_the_interval_of_its_branches_and_none_may_be_bounded() -> None:
    rest = [math.nan] * (NUM - 1)
    one = {"local_critical_batch": [150.0, *rest], "local_critical_batch_low": [90.0, *rest],
           "local_critical_batch_high": [400.0, *rest], "num_branches": [9, *rest]}  # fmt: skip
    found = estimate_critical_batches(select_comparable(measured_frames(**one)))
    assert not isinstance(found.branches, str)
    assert found.branches[:3] == (150, 90, 400)
    none = {"local_critical_batch_low": [256.0, *rest], "num_branches": [9, *rest]}
    found = estimate_critical_batches(select_comparable(measured_frames(**none)))
    assert str(found.branches).endswith(": in 1 training no branch exceeded the tolerance, up to 256 samples")
    diverged = {"num_branches": [3, *rest]}
    found = estimate_critical_batches(select_comparable(measured_frames(**diverged)))
    assert str(found.branches).endswith(": in 1 training the branch with the training's own batch diverged")


def test_the_figure_has_the_law_the_regimes_and_every_estimate_on_one_axis() -> None:
    figure = draw(measured_frames(**NOISE, **BRANCHED))
    steps, samples = figure.panels
    for panel, power in ((steps, 0), (samples, 1)):
        (points,) = (each for each in panel.layers if isinstance(each, Points))
        assert points.x == BATCHES
        assert points.y == pytest.approx([ideal_steps(batch) * batch**power for batch in BATCHES], rel=1e-3)
        borders = [each.value for each in panel.layers if isinstance(each, Rule)]
        assert borders == pytest.approx([60, 1500], rel=0.02)  # 20 % more samples, 20 % more steps
        marks = [each for each in panel.layers if isinstance(each, Intervals)]
        assert [each.x[0] for each in marks] == pytest.approx([300, 200, 300], rel=0.01)
        assert marks[1].y[0] == pytest.approx(ideal_steps(200) * 200**power, rel=0.01)
        assert marks[1].x_low[0] < 200 < marks[1].x_high[0]
        law = next(each for each in panel.layers if isinstance(each, Lines) and each.name == "law")
        assert law.segments[0][1][0] == pytest.approx(ideal_steps(32) * 32**power, rel=0.01)
    assert "300 samples" in figure.caption
    # the mean of two trainings whose batches differ by a factor of four has a wide interval
    assert "Local critical batch by branches: 300 samples (interval too uncertain to state)" in figure.caption


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
    for remedy in ("target accuracy", "diagnostics.noise_scale = true", "diagnostics.branch_after"):
        assert remedy in absent.remedy
    alone = draw(frames([(each | {"num_branches": 9, "local_critical_batch": 64.0 + n}, points)
                         for n, (each, points) in enumerate(short)]))  # fmt: skip
    (panel,) = alone.panels
    assert [text for _, text in panel.y.ticks] == ["local critical batch by branches"]
    assert "no training ran to a target accuracy" in alone.caption
