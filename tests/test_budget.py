"""Budgets: what they buy, where a training stands in them, when it is evaluated; and whole trials under each."""

import math
from itertools import count, pairwise
from types import SimpleNamespace

import pytest
import training_factory

from sweep.config.errors import InputError
from sweep.config.trial import build_config, replace_keys
from sweep.probing.cost_model import compute_workload
from sweep.records.messages import INFEASIBLE, Ending, Evaluation
from sweep.training.budget import Budget, EvaluationSchedule, TrainingPoint
from sweep.training.data.windows import count_budget_steps


def budget(*, is_growing: bool = False, **values: object) -> Budget:
    section = build_config({f"budget.{key}": value for key, value in values.items()}, "test").budget
    return Budget(section, 100, 32, 4, is_growing=is_growing)


@pytest.mark.parametrize(("power", "expected"), [(0.0, 10.0), (0.4, 10 * 4**0.4), (0.5, 20.0), (1.0, 40.0)])
def test_epochs_follow_a_power_of_the_batch(power: float, expected: float) -> None:
    config = build_config({"batch.micro": 1024, "budget.epochs": 10.0, "rules.epochs": power}, "test")
    applied = config.apply_rules()
    budget = applied.budget
    assert (budget.epochs, applied.rules.epochs) == (pytest.approx(expected), "none")
    steps = count_budget_steps(budget, num_samples=10_240, global_batch=1024)
    assert steps == math.ceil(expected * 10 - 1e-9)  # with power 1 the 400 steps of 10 epochs of 256
    workload = compute_workload(config, 10_240)
    assert workload.epochs * workload.steps_per_epoch == steps


def test_epochs_by_rule_require_epochs() -> None:
    with pytest.raises(InputError, match=r"rules.epochs = 0.4 has no epochs to scale, the budget is steps; give"):
        build_config({"budget.steps": 10, "rules.epochs": 0.4}, "test")


def test_steps_are_counted_where_their_number_is_known() -> None:
    epochs, samples = [(2.5, 10), (0.5, 2), (0.01, 1)], [(100, 4), (101, 5), (250, 10)]
    counted = [({"steps": 7}, 7), *(({"epochs": value}, steps) for value, steps in epochs)]
    for values, steps in [*counted, *(({"samples": value}, steps) for value, steps in samples)]:
        found = budget(**values)
        assert found.num_steps == steps
        assert [found.is_spent(TrainingPoint(count, 0, 1e9)) for count in (steps - 1, steps)] == [False, True]
        assert found.position(TrainingPoint(1, 32, 0.0)) == 1
        assert found.share(TrainingPoint(steps, 0, 0.0)) == 1.0


def test_a_growing_batch_is_counted_in_samples_and_its_steps_are_nominal() -> None:
    found = budget(epochs=2.0, is_growing=True)
    assert found.num_steps == 8
    assert found.position(TrainingPoint(1, 50, 0.0)) == pytest.approx(2.0)
    assert not found.is_spent(TrainingPoint(50, 199, 0.0))
    assert found.is_spent(TrainingPoint(1, 200, 0.0))
    assert found.position(TrainingPoint(1, 200, 0.0)) < 8
    assert found.expected_steps(TrainingPoint(3, 100, 0.0)) == 6
    assert budget(steps=5, is_growing=True).is_spent(TrainingPoint(5, 1, 0.0))


def test_seconds_are_train_seconds_and_schedules_follow_their_share() -> None:
    found = budget(seconds=20.0)
    found.expect_step_seconds(0.05)
    assert found.num_steps == 400
    assert found.position(TrainingPoint(7, 0, 5.0)) == pytest.approx(100.0)
    assert [found.is_spent(TrainingPoint(1, 1, seconds)) for seconds in (19.99, 20.0)] == [False, True]
    other = budget(seconds=20.0)
    other.load_state_dict(found.state_dict())
    assert other.num_steps == 400


def test_a_target_is_capped_in_epochs() -> None:
    assert budget(target_accuracy=0.9).num_steps == 400
    found = budget(target_accuracy=0.9, max_epochs=3.0)
    assert (found.num_steps, found.target_accuracy) == (12, 0.9)


def test_setting_one_budget_replaces_the_others() -> None:
    values = replace_keys({"budget.epochs": 3.0}, {"budget.target_accuracy": 0.5})
    assert build_config(values, "test").budget.epochs is None
    values = replace_keys(values | {"budget.max_epochs": 7.0}, {"budget.seconds": 9.0})
    section = build_config(values, "test").budget
    assert (section.seconds, section.target_accuracy, section.max_epochs) == (9.0, None, 7.0)
    assert build_config({"budget.max_epochs": 7.0}, "test").budget.epochs == 10.0
    with pytest.raises(InputError, match="give one budget, not steps and target_accuracy"):
        build_config({"budget.steps": 7, "budget.target_accuracy": 0.5}, "test")


def test_evaluations_come_at_epochs_and_at_most_fifty() -> None:
    def points(num_epochs: int, step: int) -> list[int]:
        found = EvaluationSchedule(100, num_epochs, until_target=False)
        ends = range(step, 100 * num_epochs + 1, step)
        return [after for after in ends if found.is_passed(after - step, after)]

    assert points(3, 10) == [100, 200, 300]
    assert points(3, 30) == [120, 210, 300]
    assert points(120, 100) == list(range(300, 12001, 300))


def test_until_a_target_all_batch_sizes_are_asked_at_the_same_samples() -> None:
    found = EvaluationSchedule(1000, 100, until_target=True)
    passed = [after for after in range(1, 100_001) if found.is_passed(after - 1, after)]
    assert passed[:20] == [250 * count for count in range(1, 21)]
    gaps = [later / earlier for earlier, later in pairwise(passed[20:])]
    assert max(gaps) < 1.051
    assert 60 < len(passed) < 100
    coarse = [after for after in range(640, 100_001, 640) if found.is_passed(after - 640, after)]
    assert all(any(point <= after < point + 640 for point in passed) for after in coarse)


def train(**values: object) -> tuple[list[Evaluation], Ending]:
    defaults = {"data.subset": 300, "optimizer.lr": 0.05, "seed": 1}
    return training_factory.train(training_factory.make_config(defaults, **values))


@pytest.mark.parametrize("micro", [16, 100])
def test_a_target_that_is_reached_ends_the_training_there(micro: int) -> None:
    told, ending = train(budget__target_accuracy=0.6, batch__micro=micro)
    assert ending.outcome == "complete"
    measured = ending.measurements
    assert told[-1].val_accuracy >= 0.6 > max((each.val_accuracy for each in told[:-1]), default=0.0)
    assert measured["steps_to_target"] == measured["num_steps"] == told[-1].step
    assert measured["seconds_to_target"] == measured["train_seconds"] == told[-1].train_seconds
    assert measured["num_epochs"] < 100
    assert told[0].samples == max(80 if micro == 16 else 100, micro)  # a quarter of 300 is passed by then


def test_a_target_that_is_missed_is_an_outcome_and_no_number() -> None:
    told, ending = train(budget__target_accuracy=0.999, budget__max_epochs=2.0)
    assert ending.outcome == "target_missed"
    assert ending.outcome in INFEASIBLE  # a sampler learns to stay away
    assert "below budget.target_accuracy = 0.999, in budget.max_epochs = 2 epochs" in ending.error
    assert "Traceback" not in ending.error
    assert not {"steps_to_target", "seconds_to_target"} & ending.measurements.keys()
    assert ending.measurements["val_accuracy"] == told[-1].val_accuracy
    assert ending.measurements["train_accuracy"] > 0
    assert ending.measurements["num_epochs"] == 2.0


def test_seconds_end_a_training_and_its_rate_comes_down_with_them() -> None:
    told, ending = train(budget__seconds=0.5, schedule__warmup=0.0, data__subset=1300)
    assert ending.outcome == "complete"
    measured = ending.measurements
    assert measured["train_seconds"] >= 0.5
    assert told[-1].step == measured["num_steps"]
    assert told[-1].learning_rate < 0.05 * 0.5
    assert "val_accuracy" in measured


@pytest.mark.parametrize("budget_seconds", [3.05 + 0.1 * tick for tick in range(8)])
def test_a_budget_that_ends_between_two_looks_at_the_clock_is_spent_for_both(monkeypatch, budget_seconds) -> None:
    # every look takes a tenth of a second, so that each of a step's looks is in turn the first to find it spent
    monkeypatch.setattr("sweep.measurement.clock.time", SimpleNamespace(perf_counter=count(0.0, 0.1).__next__))
    told, ending = train(budget__seconds=budget_seconds)
    assert ending.outcome == "complete"
    assert told[-1].step == ending.measurements["num_steps"]
    assert ending.measurements["train_seconds"] >= budget_seconds


def test_batch_norm_survives_a_last_sample_alone() -> None:
    # 8 x 8 pixels become 1 x 1 in a ResNet-18, and one value per channel has no variance
    one = {"model__name": "resnet18", "data__subset": 33, "batch__micro": 16, "budget__epochs": 1.0}
    told, ending = train(**one)
    assert (ending.outcome, ending.error, told[-1].step, told[-1].samples) == ("complete", "", 2, 33)
    told, ending = train(**(one | {"batch__micro": 8, "batch__accumulation": 5}))
    assert (ending.outcome, ending.error, told[-1].step) == ("complete", "", 1)


def test_batch_norm_of_single_samples_is_refused_in_words() -> None:
    _, ending = train(model__name="resnet18", data__subset=32, batch__micro=1, budget__steps=2)
    assert ending.outcome == "crashed"
    assert "set batch.micro to 2 or more" in ending.error
    assert "Traceback" not in ending.error
