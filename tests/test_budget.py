"""Budgets and learning-rate schedules: their closed forms, when to evaluate, and whole trials under each."""

import math
from collections.abc import Callable
from itertools import count, pairwise
from types import SimpleNamespace

import pytest
import training_factory

from sweep.config.errors import InputError
from sweep.config.scaling import grade_warmup
from sweep.config.sections import Durations, RulesSection, ScheduleSection, parse_durations
from sweep.config.trial import build_config, flatten_config
from sweep.probing.cost_model import compute_workload
from sweep.records.messages import INFEASIBLE, Ending, Evaluation
from sweep.training.budget import Budget, EvaluationSchedule, TrainingPoint
from sweep.training.data.windows import count_budget_steps
from sweep.training.schedules import SCHEDULES, RateSchedule, Span


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
    assert budget(target=0.9).num_steps == 400
    found = budget(target=0.9, max_epochs=3.0)
    assert (found.num_steps, found.target) == (12, 0.9)


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
    told, ending = train(budget__target=0.6, batch__micro=micro)
    assert ending.outcome == "complete"
    measured = ending.measurements
    assert told[-1].val_accuracy >= 0.6 > max((each.val_accuracy for each in told[:-1]), default=0.0)
    assert measured["steps_to_target"] == measured["num_steps"] == told[-1].step
    assert measured["seconds_to_target"] == measured["train_seconds"] == told[-1].train_seconds
    assert measured["num_epochs"] < 100
    assert told[0].samples == max(80 if micro == 16 else 100, micro)  # a quarter of 300 is passed by then


def test_a_target_that_is_missed_is_an_outcome_and_no_number() -> None:
    told, ending = train(budget__target=0.999, budget__max_epochs=2.0)
    assert ending.outcome == "target_missed"
    assert ending.outcome in INFEASIBLE  # a sampler learns to stay away
    assert "below budget.target = 0.999, in budget.max_epochs = 2 epochs" in ending.error
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


SPAN = Span(steps=50, steps_per_epoch=10, samples_per_epoch=640)


def section(**values: object) -> ScheduleSection:
    return build_config({f"schedule.{key}": value for key, value in values.items()}, "test").schedule


def factors(schedule: ScheduleSection, span: Span = SPAN) -> list[float]:
    return [RateSchedule(schedule, span).factor(step) for step in range(span.steps)]


@pytest.mark.parametrize("final", [0.0, 0.1])
@pytest.mark.parametrize(("name", "form"), [
    ("constant", lambda _share, _final: 1.0),
    ("cosine", lambda share, final: final + (1 - final) * 0.5 * (1 + math.cos(math.pi * share))),
    ("linear", lambda share, final: 1 - share + share * final),
])  # fmt: skip
def test_schedules_have_their_closed_form(name: str, form: Callable[[float, float], float], final: float) -> None:
    found = factors(section(name=name, warmup=0.2, final=final))
    assert found[:10] == pytest.approx([(step + 1) / 10 for step in range(10)])
    assert found[10:] == pytest.approx([form((step - 10) / 40, final) for step in range(10, 50)])
    assert min(found) > 0


def test_triangular_has_its_peak_where_asked_and_no_other_warm_up() -> None:
    found = factors(section(name="triangular", peak=0.3, final=0.2, warmup=0.1))
    assert found[:15] == pytest.approx([(step + 1) / 15 for step in range(15)])
    assert found[15:] == pytest.approx([1 - 0.8 * (step - 15) / 35 for step in range(15, 50)])


@pytest.mark.parametrize(("warmup", "num_warmup", "share", "start"), [
    (0.1, 5, 0.4, 30), (0.0, 0, 1.0, 0), ("10 steps", 10, 0.2, 40),
    (0.9, 45, 0.5, 45),  # a warm-up that reaches into the decay shortens it
])  # fmt: skip
def test_wsd_is_stable_between_its_warm_up_and_its_decay(
    warmup: object, num_warmup: int, share: float, start: int
) -> None:
    found = factors(section(name="wsd", warmup=warmup, decay_share=share, final=0.1))
    assert found[num_warmup:start] == [1.0] * (start - num_warmup)
    decay = [1 - 0.9 * math.sqrt((step - start) / (50 - start)) for step in range(start, 50)]
    assert found[start:] == pytest.approx(decay)
    assert found[:num_warmup] == pytest.approx([(step + 1) / num_warmup for step in range(num_warmup)])


@pytest.mark.parametrize("milestones", ["0.4, 0.8", "20, 40 steps", "2, 4 epochs", "1280, 2560 samples"])
def test_step_falls_at_milestones_in_any_unit(milestones: str) -> None:
    found = factors(section(name="step", warmup=0.1, milestones=milestones, gamma=0.2))
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[5:20] == [1.0] * 15
    assert found[20:40] == pytest.approx([0.2] * 20)
    assert found[40:] == pytest.approx([0.04] * 10)


@pytest.mark.parametrize("warmup", [0.2, "0.2", "10 steps", "1 epoch", "640 samples"])
def test_warm_up_in_any_unit(warmup: object) -> None:
    assert factors(section(warmup=warmup)) == factors(section(warmup=0.2))


def test_a_text_and_its_parts_are_one_configuration() -> None:
    text, parts = section(warmup="2 epochs"), section(warmup=2.0, warmup_unit="epochs")
    assert text == parts
    flat = flatten_config(build_config({"schedule.warmup": "2 epochs"}, "test"))
    assert (flat["schedule.warmup"], flat["schedule.warmup_unit"]) == (2.0, "epochs")
    assert build_config(flat, "again").schedule == text


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_warm_up_may_take_everything_or_nothing(name: str) -> None:
    span = Span(10, 5, 100)
    for warmup, factor in ((1.0, 1.0), ("30 steps", 10 / 30)) if name != "triangular" else ():
        assert RateSchedule(section(name=name, warmup=warmup, milestones="1.0"), span).factor(9) == factor
    assert RateSchedule(section(name=name, warmup=0.0, peak=0.0), span).factor(0) == 1.0
    assert RateSchedule(section(name=name), Span(1, 1, 100)).factor(0) == 1.0


def test_a_graded_warm_up_grows_with_the_logarithm_of_the_batch() -> None:
    for batch, graded in ((64, 0.0), (256, 0.0), (512, 0.0), (1024, 2.0), (2048, 4.0), (4096, 6.0), (16384, 6.0)):
        assert grade_warmup(6.0, RulesSection(warmup="graded"), batch) == pytest.approx(graded)
        assert grade_warmup(6.0, RulesSection(), batch) == 6.0


@pytest.mark.parametrize(("text", "durations"), [
    ("0.5", Durations((0.5,), "fraction")), ("0.5, 0.75", Durations((0.5, 0.75), "fraction")),
    ("0.5 0.75", Durations((0.5, 0.75), "fraction")), ("30,60 epochs", Durations((30.0, 60.0), "epochs")),
    (" 1 Epoch ", Durations((1.0,), "epochs")), ("1e4 samples", Durations((1e4,), "samples")),
])  # fmt: skip
def test_durations(text: str, durations: Durations) -> None:
    assert parse_durations(text) == durations


@pytest.mark.parametrize(("values", "message"), [
    ({"warmup": 1.5}, r"warmup: 1.5 is no fraction .*'1.5 steps'"),
    ({"warmup": -0.1}, r"schedule.warmup: .*greater than or equal to 0"),
    ({"warmup": "soon"}, r"'soon' is no duration"), ({"warmup": "5 miles"}, r"unknown unit 'miles'"),
    ({"warmup": "1, 2 epochs"}, r"give one duration"),
    ({"warmup": "5 epochs", "warmup_unit": "steps"}, r"give one unit"),
    ({"milestones": "60, 30 epochs"}, r"schedule.milestones: .*rising order"),
    ({"milestones": "30, 60"}, r"60 is no fraction"), ({"name": "cosin"}, r"Did you mean 'cosine'"),
])  # fmt: skip
def test_bad_durations_are_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        section(**values)
