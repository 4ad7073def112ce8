"""The statements about the batch size, on studies whose truth is known."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames_factory import MadeFrames, frames_of, make_spec

from benchmarks.answer_truth import FAMILIES, HARD, MadeStudy
from benchmarks.answer_truth import make_spec as make_truth_spec
from reports.evidence import gather_evidence
from reports.labels import format_value
from reports.texts import describe_batch_answer, describe_first, describe_use_setting
from sweep.analysis import recommend
from sweep.analysis.answer import Answer, BatchAnswer, Statement
from sweep.analysis.recommendation import as_document
from sweep.config.metrics import format_probability
from sweep.config.space import Parameter
from sweep.config.study import AnswerRules, Tolerance
from sweep.config.trial import flatten_config
from sweep.records.inputs import DataSummary

# effective batch size: accuracy at the best rate, seconds
CURVE = {16: (0.950, 100.0), 64: (0.949, 30.0), 256: (0.920, 10.0)}
RATES = (0.003, 0.01, 0.03)  # the middle one is the best


def make_study(
    curve: dict[int, tuple[float, float]], num_seeds: int = 5, noise: float = 0.001, seed: int = 0,
    rates: tuple[float, ...] = RATES, sizes: tuple[int, ...] = (), **changes: Any,
) -> MadeFrames:  # fmt: skip
    """Each batch size at each rate once, and the best rate of each with so many fresh seeds."""
    space = {
        "batch.micro": {"choice": sorted({*curve, *sizes})},
        "optimizer.lr": {"choice": sorted({*RATES, *rates})},
    }
    spec = make_spec(space=space, base={"model.name": "resnet8"}, trials=len(curve) * len(rates), **changes)
    rng = np.random.default_rng(seed)
    rows: list[dict[str, Any]] = []
    best = rates[len(rates) // 2]

    def add(batch: int, rate: float, phase: str, offset: int) -> None:
        accuracy, seconds = curve[batch]
        config = spec.config({"batch.micro": batch, "optimizer.lr": rate}, seed=spec.seed + offset)
        row: dict[str, Any] = {f"config.{key}": value for key, value in flatten_config(config).items()}
        row |= {"number": len(rows), "phase": phase, "seed": config.seed, "global_batch_size": batch}
        row |= {"val_accuracy": accuracy - 0.02 * (rate != best) + noise * rng.normal()}
        row |= {"train_seconds": seconds * float(np.exp(0.01 * rng.normal()))}
        rows.append(row | {"peak_memory_bytes": batch * 2.0**20, "total_seconds": seconds + 1.0})

    for batch in curve:
        for rate in rates:
            add(batch, rate, "search", 0)
    for offset in range(1, num_seeds + 1):
        for batch in curve:
            add(batch, best, "confirm", offset)
    return frames_of(spec, rows)


def answer_of(study: MadeFrames) -> BatchAnswer:
    answer: Answer = recommend(study)
    assert answer.batch_size is not None
    return answer.batch_size


def statement(found: BatchAnswer, name: str) -> Statement:
    (chosen,) = [each for each in found.statements if each.name == name]
    return chosen


def points_of(given: Statement) -> float:
    """The points of accuracy that a statement names as a difference."""
    (found,) = re.findall(r"([-+][\d.]+) points of accuracy", given.text)
    return float(found)


def test_the_fastest_batch_that_loses_no_more_than_the_tolerance_is_named() -> None:
    found = answer_of(make_study(CURVE))
    use = statement(found, "use")
    assert (use.batches, use.is_settled, use.missing) == ((64,), True, None)
    assert use.probability >= 0.95
    assert use.text.startswith("Use an effective batch size of 64 (micro batch 64, learning rate 0.01, resnet8)")
    slack, eligible = "5 % of the time and 0.25 points of accuracy", "that lose at most 0.5 points of accuracy"
    assert f"the fastest, to within {slack}, of the batch sizes {eligible} against the best." in use.text
    good = statement(found, "equally_good")
    assert (good.batches, good.is_settled) == ((16, 64), True)
    assert "16, 64 are equally good; 256 is worse" in good.text
    largest = statement(found, "largest_without_loss")
    assert (largest.batches, largest.is_settled) == ((64,), True)
    larger, smaller = statement(found, "next_larger"), statement(found, "next_smaller")
    assert (larger.batches, smaller.batches) == ((256,), (16,))
    assert "0.33 times the training time" in larger.text
    assert points_of(larger) == pytest.approx(-2.9, abs=0.05)
    assert "3.33 times the training time" in smaller.text


@pytest.mark.parametrize(("num_epochs", "num_steps", "words"), [
    (1.0, None, "trained for 1 epoch."), (12.5, 2000, "for 12.5 epochs."), (12_345.0, None, "for 12,345 epochs."),
    (2.0, 20, "20 optimizer steps only: after longer trainings another batch size may be the one to use."),
    (None, None, ""),
])  # fmt: skip
def test_the_length_of_the_training_is_stated(num_epochs: float | None, num_steps: int | None, words: str) -> None:
    study = make_study(CURVE)
    study.trials["num_epochs"] = pd.Series([num_epochs] * len(study.trials), dtype="Float64")
    study.trials["num_steps"] = pd.Series([num_steps] * len(study.trials), dtype="Int64")
    answer = answer_of(study)
    assert answer.named.num_epochs == num_epochs
    text = statement(answer, "use").text
    assert text.endswith(words)
    assert ("trained for" in text) == bool(words)


@pytest.mark.parametrize(("given", "words"), [
    (256, ("256, against 64: 0.33 times the training time", "4.00 times the memory")),
    (16, ("16, against 64: 3.33 times the training time", "0.25 times the memory", "the best is over 99 %")),
    (64, ("Your effective batch size, 64, is the one that is named.",)),
    (32, ("32 costs is not known: resnet8 completed no", "made.toml --set name=made_batch_32 --set batch.micro=32")),
])  # fmt: skip
def test_a_given_batch_size_is_compared_with_the_one_to_use(given: int, words: tuple[str, ...]) -> None:
    answer = recommend(make_study(CURVE), given_batch=given)
    assert answer.batch_size is not None
    found = statement(answer.batch_size, "given")
    assert [each for each in words if each not in found.text] == []
    within = {point.batch: format_probability(point.p_without_loss) for point in answer.batch_size.curve}
    assert given not in (16, 256) or found.text.endswith(f"against the best is {within[given]}.")
    assert (found.batches, found.is_estimate) == ((given,), True)
    if given == 256:
        assert points_of(found) == pytest.approx(-2.9, abs=0.05)
    unnamed = recommend(make_study(CURVE, num_seeds=0), given_batch=16).batch_size
    assert unnamed is not None
    assert "not known yet" in statement(unnamed, "given").text


def test_the_tolerance_decides_what_is_named() -> None:
    wide = make_study(CURVE, answer={"tolerance": {"accuracy": 0.08}})
    assert statement(answer_of(wide), "use").batches == (256,)
    narrow = make_study(CURVE, noise=0.0001, answer={"tolerance": {"accuracy": 0.0005}})
    assert statement(answer_of(narrow), "use").batches == (16,)


def test_what_is_not_settled_tells_how_many_trainings_would_settle_it() -> None:
    close = {16: (0.950, 100.0), 64: (0.949, 30.0)}
    found = answer_of(make_study(close, 3, noise=0.006))
    use = statement(found, "use")
    assert not use.is_settled
    assert use.missing == "sweep run made.toml --set confirm.share=1.0"
    assert use.needed != ""
    later = answer_of(make_study(close, 60, noise=0.006))
    assert statement(later, "use").is_settled
    assert statement(later, "use").batches == (64,)


def test_no_command_adds_seeds_where_the_images_are_what_is_missing() -> None:
    study = make_study({16: (0.950, 100.0), 64: (0.946, 30.0)}, 20)
    use = statement(answer_of(replace(study, data=DataSummary(name="digits", num_val=300))), "use")
    assert not use.is_settled
    assert "no number of seeds would settle it on these validation images" in use.needed
    assert use.missing is None
    assert statement(answer_of(study), "use").is_settled  # on images that are not counted


def test_a_probability_is_about_the_batch_sizes_that_are_named_and_the_rest_is_not_known_yet() -> None:
    study = make_study({16: (0.950, 100.0), 64: (0.949, 30.0), 256: (0.949, 10.0)})
    is_fresh = (study.trials["phase"] == "confirm") & (study.trials["global_batch_size"] == 256)
    found = answer_of(replace(study, trials=study.trials[~is_fresh].reset_index(drop=True)))
    good, largest = statement(found, "equally_good"), statement(found, "largest_without_loss")
    assert (good.is_settled, largest.is_settled) == (False, False)
    assert (good.batches, largest.batches) == ((16, 64), (64,))
    assert "16, 64 are equally good; 256 is not known yet" in good.text
    certain = dict(describe_batch_answer(found).statements)
    assert certain[good.text].endswith("% probability for the batch sizes named as good or worse; not settled")
    assert certain[largest.text].endswith("% probability for 64; larger ones are not known yet")


def test_batch_sizes_that_were_tried_too_little_or_not_at_all_are_named_and_leave_the_statement_open() -> None:
    curve = {8: (0.95, 200.0), 16: (0.95, 100.0), 64: (0.95, 30.0), 128: (0.9, 20.0)}
    study = make_study(curve, rates=(0.001, 0.003, 0.01, 0.03, 0.1), sizes=(32, 1024))
    sizes, rates = study.trials["global_batch_size"], study.trials["config.optimizer.lr"]
    is_left_out = (sizes == 64) & ~rates.isin([0.01, 0.03]) | (sizes == 128) & (rates != 0.01)
    found = answer_of(replace(study, trials=study.trials[~is_left_out].reset_index(drop=True)))
    good, largest = statement(found, "equally_good"), statement(found, "largest_without_loss")
    # what is as good as the best with two configurations already is not in doubt
    # and what is surely worse needs no tuning
    assert "8, 16, 64 are equally good; 128 is worse. As good already, although too few" in good.text
    lack = "Not tuned enough to tell: 32, 1024 with no complete training."
    assert good.text.endswith(f"to count as tuned: 64. {lack}")
    assert largest.text.endswith(lack.replace("32, ", ""))  # a smaller one changes nothing
    certain = dict(describe_batch_answer(found).statements)
    for each in (good, largest):
        assert not each.is_settled
        assert certain[each.text].endswith("; not settled" if each is good else "not known yet")
        assert each.missing == "sweep run made.toml --trials 40"  # seeds tune nothing


# The search of a demo: effective batch size, learning rate, and the accuracies of the seeds in percent. Another run
# tuned 512 and found it as good as the best.
DEMO = (
    (32, 0.0886, 98.81), (32, 0.00996, 99.21, 98.61, 98.81, 99.01), (32, 0.00123, 98.41),
    (64, 0.0118, 99.21, 98.41, 98.21, 98.61, 99.01, 98.81), (64, 0.0428, 99.01, 98.41, 98.41), (64, 0.0186, 99.01),
    (128, 0.00188, 97.42), (128, 0.0699, 99.01), (128, 0.0204, 99.01), (128, 0.0647, 98.81),
    (128, 0.0146, 98.41, 98.81, 98.21, 98.21), (128, 0.031, 98.41, 98.21), (128, 0.1, 97.62),
    (256, 0.0182, 98.61, 98.41, 98.61, 98.41, 98.61), (256, 0.00623, 98.61), (256, 0.0803, 97.62),
    (256, 0.0137, 98.21), (256, 0.00141, 94.05), (512, 0.00146, 90.48), (1024, 0.0899, 57.14),
)  # fmt: skip


def test_a_batch_size_whose_loss_is_taken_from_other_ones_is_not_called_worse() -> None:
    rates = {"log": [1e-3, 1e-1]}
    space = {"batch.micro": {"log2": [5, 10]}, "optimizer.lr": rates}
    spec = make_spec(space=space, answer={"tolerance": {"accuracy": 0.015}}, base={"model.name": "resnet8"}, trials=20)
    rows: list[dict[str, Any]] = []
    for batch, rate, *accuracies in DEMO:
        for seed, accuracy in enumerate(accuracies):
            config = spec.config({"batch.micro": batch, "optimizer.lr": rate}, seed=spec.seed + seed)
            row: dict[str, Any] = {f"config.{key}": value for key, value in flatten_config(config).items()}
            row |= {"number": len(rows), "phase": "confirm" if seed else "search", "seed": config.seed}
            row |= {"global_batch_size": batch, "val_accuracy": accuracy / 100, "train_seconds": 1.0 + 100 / batch}
            rows.append(row | {"peak_memory_bytes": batch * 2.0**20, "total_seconds": 3.0 + 100 / batch})
    study = frames_of(spec, rows)
    found = answer_of(study)
    within = {point.batch: point.p_without_loss for point in found.curve}
    assert 0.1 < within[512] < 0.5 < 0.95 < within[256]
    assert within[1024] < 0.05  # far below, whatever the rate
    lack = "1024 is worse. Not tuned enough to tell: 512 with 1 of at least 3 configurations."
    good, largest = statement(found, "equally_good"), statement(found, "largest_without_loss")
    assert good.text.endswith(lack)
    # 512 is the faster one, and may be as good
    assert (good.is_settled, largest.is_settled, statement(found, "use").is_settled) == (False, False, False)


@pytest.mark.parametrize("flag", ["", "slowed_by_others"])
@pytest.mark.parametrize(("rates", "more"), [(RATES, "--set confirm.share="), (RATES[1:2], "--trials ")])
def test_the_next_step_is_more_trials_where_a_batch_size_is_tuned_too_little(
    rates: tuple[float, ...], more: str, flag: str
) -> None:
    race = {16: (0.950, 100.0), 64: (0.9455, 30.0)}
    study = make_study(race, num_seeds=3, noise=0.002, rates=rates)
    use = statement(answer_of(replace(study, trials=study.trials.assign(quality_flags=flag))), "use")
    assert not use.is_settled
    assert ("no reliable training time" in use.text) == bool(flag)
    assert more in (use.missing or "")


def test_a_batch_size_is_not_called_as_good_as_the_best_where_no_other_one_is_tuned() -> None:
    study = make_study({32: (0.95, 30.0), 64: (0.90, 20.0)}, sizes=(16,))
    rows = study.trials
    is_kept = (rows["global_batch_size"] == 32) | ((rows["phase"] == "search") & (rows["config.optimizer.lr"] == 0.01))
    found = answer_of(replace(study, trials=rows[is_kept].reset_index(drop=True)))
    good, largest = statement(found, "equally_good"), statement(found, "largest_without_loss")
    assert (good.batches, good.probability, good.is_settled) == ((), 0.0, False)
    assert (largest.batches, largest.probability, largest.is_settled) == ((), 0.0, False)
    lack = "Not tuned enough to tell: 64 with 1 of at least 3 configurations; 16 with no complete training."
    assert good.text.endswith(f"resnet8 has fewer than two that count as tuned. {lack}")
    assert good.missing == largest.missing == "sweep run made.toml --trials 12"


def test_where_no_batch_size_is_known_to_be_good_or_worse_there_is_no_probability() -> None:
    good = statement(answer_of(make_study({16: (0.95, 100.0), 64: (0.95, 30.0)}, 3, noise=0.03)), "equally_good")
    assert "16, 64 are not known yet to be as good or worse" in good.text
    assert (good.batches, good.probability, good.is_settled) == ((), 0.0, False)
    found = answer_of(make_study({16: (0.95, 100.0), 64: (0.95, 30.0), 256: (0.3, 9.0)}, 3, noise=0.03, seed=1))
    good = statement(found, "equally_good")  # that one is worse is known, and no batch size is named
    assert (good.batches, good.probability > 0.0) == ((), True)
    assert dict(describe_batch_answer(found).statements)[good.text] == "not settled"


def test_batch_sizes_that_are_each_known_to_be_good_and_not_all_together_are_open_to_more_seeds() -> None:
    equal = {16: (0.95, 100.0), 32: (0.95, 60.0), 64: (0.95, 30.0), 128: (0.95, 20.0)}
    found = answer_of(make_study(equal, 3, noise=0.003, seed=4))
    good = statement(found, "equally_good")
    assert (good.batches, good.is_settled) == ((16, 32, 64, 128), False)
    assert "not known" not in good.text + dict(describe_batch_answer(found).statements)[good.text]
    assert found.next_step == good.missing == "sweep run made.toml --set confirm.share=1.0"


def test_the_learning_rate_is_the_one_that_the_training_had() -> None:
    study = make_study(CURVE)
    scaled = {"config.rules.lr": "linear", "config.rules.reference_batch": 256}
    found = answer_of(replace(study, trials=study.trials.assign(**scaled)))
    assert "(micro batch 64, learning rate 0.0025 scaled from 0.01, resnet8)" in statement(found, "use").text
    assert found.named.learning_rate == pytest.approx(0.0025)
    assert describe_use_setting(found.named, "optimizer.lr") == "learning rate 0.0025 scaled from 0.01"
    assert describe_use_setting(found.named, "batch.micro") == "micro batch 64"
    assert [point.learning_rate for point in found.curve] == pytest.approx([0.01 / 16, 0.01 / 4, 0.01])
    document = as_document(recommend(replace(study, trials=study.trials.assign(**scaled))))
    assert document["uses"]["accuracy"]["learning_rate"] == pytest.approx(
        document["uses"]["accuracy"]["global_batch_size"] / 25600
    )


def test_a_batch_size_whose_trainings_learned_nothing_does_not_count_as_tuned() -> None:
    study = make_study({16: (0.95, 100.0), 64: (0.95, 30.0), 256: (0.9, 10.0)}, num_seeds=3)
    at_large = (study.trials["global_batch_size"] == 256) & (study.trials["config.optimizer.lr"] != 0.01)
    trials = study.trials.assign(val_accuracy=study.trials["val_accuracy"].mask(at_large, 0.101))
    name = study.trials["config.data.name"].iloc[0]
    data = DataSummary(name=name, num_val=400, classes={str(label): {"val": 40} for label in range(10)})
    assert study.spec is not None
    spec = study.spec.model_copy(update={"space": study.spec.space | {"optimizer.lr": Parameter(log=(1e-6, 1.0))}})
    for known, is_named in ((data, True), (None, False)):
        found = answer_of(replace(study, trials=trials, data=known, spec=spec))
        assert ("256 with 1 of at least 3 configurations" in statement(found, "equally_good").text) == is_named
        point = next(each for each in found.curve if each.batch == 256)
        assert any("of 3 that were tried, 2 were no better than chance" in each for each in point.remarks) == is_named


EQUAL = {16: (0.950, 100.0), 64: (0.949, 30.0), 256: (0.949, 10.0)}
UNUSED = re.compile(r"(?:(?<= because )|(?<=compared: ))([\d, and]+) ha(?:s|ve) no reliable training time")


@pytest.mark.parametrize(("doubtful", "in_use", "in_larger", "in_smaller"), [
    ((), "", "", ""),
    ((256,), "", "256", ""),  # it is worse, and no rival
    ((16,), "16", "", "16"),
    ((16, 64, 256), "16 and 64", "64 and 256", "64 and 16"),
])  # fmt: skip
def test_a_time_that_is_not_used_makes_nothing_the_fastest_and_no_ratio(
    doubtful: tuple[int, ...], in_use: str, in_larger: str, in_smaller: str
) -> None:
    study = make_study(CURVE)
    flags = ["slowed_by_others" if size in doubtful else "" for size in study.trials["global_batch_size"]]
    answer = recommend(replace(study, trials=study.trials.assign(quality_flags=flags)))
    found = answer.batch_size
    assert found is not None
    use = statement(found, "use")
    assert (use.batches, use.is_settled, ": it is the fastest" in use.text) == ((64,), not in_use, not in_use)
    assert (use.missing is None) == use.is_settled
    for name, names in (("use", in_use), ("next_larger", in_larger), ("next_smaller", in_smaller)):
        text = statement(found, name).text
        assert UNUSED.findall(text) == [names] * bool(names)
        assert ("times the training time" in text) == (name != "use" and not names)
    assert [point.is_time_doubtful for point in found.curve] == [size in doubtful for size in CURVE]
    assert ["not reliable" in row[3][1] for row in describe_batch_answer(found).rows] == [
        size in doubtful for size in CURVE
    ]
    for chip in describe_first(gather_evidence(replace(study, trials=study.trials.assign(quality_flags=flags)))).chips:
        assert not ("not reliable" in chip.sure and "with a reliable value" in chip.sure)
    speed = answer.uses["speed"]
    assert speed.next_best is not None
    numbers = {point.number: point.is_time_doubtful for point in found.curve}
    assert ("train_seconds" in speed.next_best.differences) == (not {*doubtful} & {16, 64})
    assert numbers[speed.number or 0] == (speed.global_batch_size in doubtful)
    assert not (speed.is_settled and {*doubtful} & {16, 64})


def test_a_rival_without_fresh_seeds_counts_and_is_named() -> None:
    study = make_study(EQUAL)
    is_fresh = (study.trials["phase"] == "confirm") & (study.trials["global_batch_size"] == 256)
    found = answer_of(replace(study, trials=study.trials[~is_fresh].reset_index(drop=True)))
    use, larger = statement(found, "use"), statement(found, "next_larger")
    assert use.batches == (64,)
    assert use.probability < 0.5
    assert "256 is more probable (" in use.text
    assert ": it is the fastest" not in use.text
    assert larger.text.startswith("The next larger one, 256 (not confirmed): 0.33 times")
    given = recommend(replace(study, trials=study.trials[~is_fresh].reset_index(drop=True)), given_batch=256).batch_size
    assert given is not None
    assert "256 (not confirmed), against 64: 0.33 times" in statement(given, "given").text


def test_a_batch_size_has_a_probability_of_its_own_whatever_the_rate() -> None:
    # two rates are as good as each other, so that which of them is better stays open
    study = make_study({16: (0.95, 100.0), 64: (0.90, 90.0)}, num_seeds=4, noise=0.004)
    trials, is_other = study.trials, study.trials["config.optimizer.lr"] == 0.003
    trials = trials.assign(val_accuracy=trials["val_accuracy"] + 0.02 * is_other)
    tight = study.spec.model_copy(update={"answer": AnswerRules(tolerance=Tolerance(accuracy=0.002, time=0.05))})
    answer = recommend(replace(study, trials=trials, spec=tight))
    found = answer.batch_size
    assert found is not None
    use, rest = statement(found, "use"), statement(found, "configuration")
    assert (use.batches, rest.batches, use.is_settled, rest.is_settled) == ((16,), (16,), True, False)
    assert use.probability > rest.probability == found.named.probability
    assert (use.missing, found.next_step) == (None, rest.missing)
    assert rest.missing
    document = as_document(answer)["batch_size"]
    assert document["statements"][0]["probability"] == use.probability
    assert document["named"]["probability"] == rest.probability
    assert document["next_step"] == found.next_step
    (point, *_) = found.curve
    assert use.probability <= point.p_without_loss


def test_only_one_batch_size_has_no_probability() -> None:
    found = answer_of(make_study({16: (0.95, 100.0)}))
    use = statement(found, "use")
    assert (use.batches, use.probability, use.is_settled, use.missing) == ((16,), 0.0, False, None)
    assert "no other effective batch size was tried" in use.text
    assert describe_batch_answer(found).statements[0][1] == "not settled"


def test_a_point_of_the_curve_has_the_estimates_of_its_configuration() -> None:
    answer = recommend(make_study(CURVE, num_seeds=3, noise=0.01))
    assert answer.batch_size is not None
    found, estimates = answer.batch_size, {item.number: item for item in answer.configurations}
    for point, row in zip(found.curve, describe_batch_answer(found).rows, strict=True):
        values = estimates[point.number].values
        assert (point.accuracy, point.seconds) == (values["val_accuracy"], values["train_seconds"])
        assert ("best measured" in row[2][1]) == (point.accuracy.median > point.best_measured)
    (named,) = (point for point in found.curve if point.batch == found.named.global_batch_size)
    assert named.number == found.named.number
    above = replace(named, best_measured=named.accuracy.median - 0.01)
    (row,) = describe_batch_answer(replace(found, curve=(above,))).rows
    assert format_value("fraction", above.best_measured) in row[2][1]


@pytest.mark.parametrize(("chance", "is_near"), [(0.94, True), (0.5, False)])
def test_an_accuracy_near_chance_is_called_so(chance: float, is_near: bool) -> None:
    study, num = make_study(CURVE), 400
    most = round(chance * num)
    classes = {"a": {"val": most}, "b": {"val": num - most}}
    data = DataSummary(name=study.trials["config.data.name"].iloc[0], num_val=num, classes=classes)
    assert ("near chance" in statement(answer_of(replace(study, data=data)), "use").text) == is_near


@pytest.mark.parametrize(("sizes", "best", "planned", "failed", "end"), [
    ((16, 64), 16, (), (), "smallest"),
    ((16, 64), 64, (), (), "largest"),
    ((16, 64), 64, (256,), (), ""),
    ((16, 64), 64, (), (128,), ""),  # a larger one does not fit
    ((16, 64), 16, (8,), (), ""),
    ((1, 64), 1, (), (), ""),  # nothing is smaller
])  # fmt: skip
def test_the_end_of_the_range_of_batch_sizes_is_said(
    sizes: tuple[int, int], best: int, planned: tuple[int, ...], failed: tuple[int, ...], end: str
) -> None:
    small, large = sizes
    study = make_study({small: (0.95, 100.0), large: (0.95 if best == large else 0.92, 30.0)}, sizes=planned)
    others = study.trials.head(len(failed)).assign(
        number=1000, global_batch_size=failed, outcome="out_of_memory", val_accuracy=np.nan
    )
    use = statement(answer_of(replace(study, trials=pd.concat([study.trials, others], ignore_index=True))), "use")
    assert use.batches == (best,)
    assert re.findall(r"It is the (\w+) batch size that was tried", use.text) == [end] * bool(end)


def test_what_accumulation_costs_is_stated_of_the_batch_size_that_is_named() -> None:
    study = make_study(CURVE)
    assert [each for each in answer_of(study).statements if each.name == "accumulation"] == []
    trials = study.trials.assign(**{"config.batch.accumulation": 1})
    split = trials[trials["global_batch_size"].isin([16, 64])].copy()
    split = split.assign(**{"config.batch.micro": split["global_batch_size"] // 4, "config.batch.accumulation": 4})
    split = split.assign(
        train_seconds=split["train_seconds"] * 1.5, peak_memory_bytes=split["peak_memory_bytes"] * 0.25
    )
    split["number"] += len(trials)
    split["val_accuracy"] -= 0.02
    both = pd.concat([trials, split], ignore_index=True)
    for doubtful, batch in (((), 64), ((64,), 16), ((16, 64), 64)):
        flags = ["slowed_by_others" if size in doubtful else "" for size in both["global_batch_size"]]
        found = answer_of(replace(study, trials=both.assign(quality_flags=flags)))
        said = statement(found, "accumulation")
        assert (said.batches, said.is_estimate) == ((batch,), True)
        assert f"{batch} as {batch // 4} x 4 instead of {batch} x 1: " in said.text
        assert ("1.50 times the training time" in said.text) == (batch not in doubtful)
        assert "0.25 times the memory, -2.00 points of accuracy (-2." in said.text  # by their own trainings
    searched = both[both["phase"] == "search"].assign(quality_flags="")
    said = statement(answer_of(replace(study, trials=searched)), "accumulation")
    assert said.text.endswith(" The accuracy is not compared: no configuration has several seeds.")


@pytest.mark.parametrize(("columns", "keys"), [
    ({}, "--set batch.micro=32"),
    ({"config.batch.accumulation": 2}, "--set batch.micro=32 --set batch.accumulation=1"),
    ({"config.batch.global": 128}, "--set batch.global=32 --set batch.micro=32"),
])  # fmt: skip
def test_a_batch_size_that_was_not_tried_is_set_by_the_keys_of_the_study(columns: dict[str, int], keys: str) -> None:
    study = make_study(CURVE)
    answer = recommend(replace(study, trials=study.trials.assign(**columns)), given_batch=32).batch_size
    assert answer is not None
    assert statement(answer, "given").text.endswith(f"--set name=made_batch_32 {keys}")


def test_a_limit_is_named_in_the_statements_that_it_changes() -> None:
    study = make_study(CURVE)
    limited = recommend(study, min_accuracy=0.9)
    assert limited.batch_size is not None
    use = statement(limited.batch_size, "use")
    assert use.batches == (256,)  # faster, and accurate enough although it loses more than the tolerance
    assert "it is the fastest, to within 5 %, of the batch sizes with an accuracy of at least 90 %" in use.text
    assert statement(limited.batch_size, "largest_without_loss").batches == (64,)
    assert "The limits do not apply to this statement." in statement(limited.batch_size, "largest_without_loss").text
    slow = recommend(study, max_seconds=50.0)
    assert slow.batch_size is not None
    assert "against the best within the limits." in statement(slow.batch_size, "use").text
    assert "limits" not in " ".join(each.text for each in answer_of(study).statements)


def test_limits_that_nothing_keeps_to_are_named_and_no_training_is_proposed() -> None:
    impossible = recommend(make_study(CURVE), max_seconds=1.0, min_accuracy=0.9999)
    assert impossible.batch_size is not None
    use = statement(impossible.batch_size, "use")
    assert use.missing is None
    assert "the most accurate one reaches 9" in use.text
    assert "99.99 % is required; the fastest one takes 10 s, the limit is 1 s." in use.text
    assert all(item.number is None and item.missing is None for item in impossible.uses.values())


def test_the_curve_names_what_was_tuned_too_little() -> None:
    at_edge = answer_of(make_study(CURVE, rates=(0.01, 0.1, 0.03)))
    assert [point.batch for point in at_edge.curve] == [16, 64, 256]
    remarks = [remark for point in at_edge.curve for remark in point.remarks if "learning rate" in remark]
    upper = (
        "its best learning rate is at the upper edge of the searched range: widen it upward (optimizer.lr in the study)"
    )
    assert remarks == [upper] * 3
    few = answer_of(make_study(CURVE, rates=(0.01,)))
    assert few.curve[0].remarks[0] == "too few configurations to count as tuned: only one configuration was tried"
    middle = answer_of(make_study(CURVE))
    of_tuning = [remark for point in middle.curve for remark in point.remarks if "did not reach" not in remark]
    assert not of_tuning
    assert [point.num_seeds for point in middle.curve] == [5, 5, 5]
    assert [point.p_without_loss > 0.95 for point in middle.curve] == [True, True, False]
    assert middle.curve[1].accuracy.low < 0.949 < middle.curve[1].accuracy.high
    assert middle.curve[2].seconds.median == pytest.approx(10.0, rel=0.03)


def test_a_learning_rate_at_an_edge_is_named_only_where_no_other_one_is_better() -> None:
    study = make_study({16: (0.95, 100.0), 64: (0.95, 30.0)}, rates=(0.01, 0.03, 0.003))  # the second one has seeds
    rows = study.trials
    is_better = (rows["global_batch_size"] == 16) & (rows["config.optimizer.lr"] == 0.01)
    curve = answer_of(
        replace(study, trials=rows.assign(val_accuracy=rows["val_accuracy"].mask(is_better, 0.953)))
    ).curve
    assert [point.learning_rate for point in curve] == [0.03, 0.03]
    assert ["edge" in " ".join(point.remarks) for point in curve] == [False, True]


@pytest.mark.parametrize("best", [0.95, 0.99])
def test_what_was_not_tried_is_no_more_accurate_than_possible(best: float) -> None:
    study = make_study({16: (best, 100.0), 64: (best - 0.001, 30.0)}, num_seeds=3, rates=(0.01,), sizes=(1024,))
    answer = recommend(study)
    item = answer.uses["accuracy"]
    assert 0 < item.regret <= 1 - item.values["val_accuracy"].low
    assert answer.batch_size is not None
    (model,) = answer.batch_size.models
    # the target is half a point below what the batch sizes of the curve reach, rounded down
    least = min(point.accuracy.median for point in answer.batch_size.curve)
    assert 0.005 <= least - model.target_accuracy < 0.006


# --- about the whole space

DRAWN = [(family, number) for family in ("cliff", "wide_range", "two_optima", "heavy_tails") for number in range(2)]


def answer_made(family: str, number: int, **changes: Any) -> BatchAnswer:
    truth = (FAMILIES | HARD)[family](np.random.default_rng(number), 0.004)
    spec = make_truth_spec(truth, 12, number, answer={"tolerance": {"accuracy": 0.01}}, **changes)
    return answer_of(MadeStudy(truth, spec, 1000, number).run())  # type: ignore[arg-type]


@pytest.mark.parametrize(("family", "number"), DRAWN)
def test_a_statement_about_several_is_no_more_probable_than_each_of_its_parts(family: str, number: int) -> None:
    answer = answer_made(family, number)
    within = {point.batch: point.p_without_loss for point in answer.curve}
    by_name = {each.name: each for each in answer.statements}
    for each in answer.statements:
        assert 0 <= each.probability <= 1
        assert not each.is_settled or each.probability >= 0.95
    use, together = by_name["use"], by_name["equally_good"]
    assert all(use.probability <= within[batch] for batch in use.batches)
    if "configuration" in by_name:
        assert by_name["configuration"].probability <= use.probability
    if together.probability:
        assert together.probability <= min([1.0, *(within[batch] for batch in together.batches)])
        worse = re.search(r"([\d, ]+) (?:is|are) worse", together.text)
        named = map(int, worse[1].replace(" ", "").strip(",").split(",")) if worse else ()
        assert together.probability <= min([1.0, *(1 - within[batch] for batch in named)])
    largest = by_name["largest_without_loss"]
    assert all(largest.probability == within[batch] for batch in largest.batches)


def test_what_was_not_tried_makes_a_statement_less_sure() -> None:
    study = make_study(CURVE)
    assert study.spec is not None
    assert answer_of(study).statements[0].is_settled
    space = study.spec.space | {"optimizer.lr": Parameter(log=(1e-6, 1e3))}  # of whose decades seven are unknown
    wide = answer_of(replace(study, spec=study.spec.model_copy(update={"space": space})))
    assert not wide.statements[0].is_settled
    assert wide.named.number == answer_of(study).named.number


def test_a_model_or_a_batch_size_that_was_not_tried_leaves_the_answer_open() -> None:
    study = make_study(CURVE)
    assert study.spec is not None
    assert answer_of(study).statements[0].is_settled
    for key, values in (("model.name", ("resnet8", "vit_micro")), ("batch.micro", (16, 64, 256, 512))):
        space = study.spec.space | {key: Parameter(choice=values)}
        open_answer = answer_of(replace(study, spec=study.spec.model_copy(update={"space": space})))
        assert not open_answer.statements[0].is_settled, key


SECONDS_TO_TARGET = {16: 30.0, 64: 10.0, 256: 14.0}  # at the middle rate


def reach_target(metric: str, rates: tuple[float, ...] = RATES, confirmed: float = RATES[1]) -> MadeFrames:
    """Trainings that end at a target: the larger the batch, the farther the last evaluation passed it. At another rate
    than the middle one they take 1.5 times as long."""
    is_loss = metric == "val_loss"
    target, beyond = (2.0, -0.5) if is_loss else (0.9, 0.08)
    spec = make_spec(
        space={"batch.micro": {"choice": list(SECONDS_TO_TARGET)}, "optimizer.lr": {"choice": list(RATES)}},
        base={"budget.target": target} | ({} if is_loss else {"model.name": "resnet8"}), trials=9,
        **({"script": {"command": "train", "metric": metric}} if is_loss else {}),
    )  # fmt: skip
    rng, rows = np.random.default_rng(0), list[dict[str, Any]]()
    seeds = [(0, rate) for rate in rates] + [(seed, confirmed) for seed in range(1, 5)]
    for batch in SECONDS_TO_TARGET:
        for seed, rate in seeds:
            config = spec.config({"batch.micro": batch, "optimizer.lr": rate}, seed=spec.seed + seed)
            row: dict[str, Any] = {f"config.{key}": value for key, value in flatten_config(config).items()}
            seconds = SECONDS_TO_TARGET[batch] * (1.5 if rate != RATES[1] else 1.0) * float(np.exp(0.02 * rng.normal()))
            row |= {"number": len(rows), "phase": "confirm" if seed else "search", "seed": config.seed}
            row |= {"global_batch_size": batch, metric: target + beyond * batch / 256, "train_seconds": seconds}
            row |= {"seconds_to_target": seconds, "num_steps": 100, "steps_to_target": 100}
            rows.append(row | {"peak_memory_bytes": batch * 2.0**20, "total_seconds": seconds + 1.0})
    return frames_of(spec, rows)


@pytest.mark.parametrize(("metric", "words"), [("val_accuracy", "that reach 90 %"), ("val_loss", "that reach 2 nats")])
def test_trainings_until_a_target_are_told_apart_by_their_time_alone(metric: str, words: str) -> None:
    found = answer_of(reach_target(metric))
    use = statement(found, "use")
    assert (use.batches, use.is_settled, use.missing) == ((64,), True, None)
    assert f"{words} (budget.target) on these validation data" in use.text
    assert {each.name for each in found.statements} == {"use", "configuration", "next_larger", "next_smaller"}
    larger = statement(found, "next_larger").text
    (ratio,) = re.findall(r"([\d.]+) times the training time", larger)
    assert float(ratio) == pytest.approx(1.4, abs=0.05)
    assert not re.search("points|nats", larger)
    target = 0.9 if metric == "val_accuracy" else 2.0
    for point in found.curve:
        assert point.accuracy.median == pytest.approx(target)  # the value that counts, not the one behind it
        assert point.steps_to_target.median == point.num_steps.median
        assert point.seconds_to_target.median == pytest.approx(SECONDS_TO_TARGET[point.batch], rel=0.05)
    assert [each.target_accuracy for each in found.models] == [pytest.approx(target)]


@pytest.mark.parametrize("lacks_a_time", [False, True])
def test_a_rate_that_was_not_tried_may_reach_the_target_sooner(lacks_a_time: bool) -> None:
    study = reach_target("val_accuracy", rates=RATES[:1], confirmed=RATES[0])
    if lacks_a_time:  # which says nothing about the others
        study.trials.loc[study.trials["global_batch_size"] == 16, "train_seconds"] = pd.NA
    use = statement(answer_of(study), "use")
    assert (use.batches, use.is_settled) == ((64,), False)
    assert use.needed == "settings that were not tried may be better"


def test_a_configuration_whose_seeds_often_miss_the_target_is_not_settled() -> None:
    study = reach_target("val_accuracy")
    fresh = study.trials.index[(study.trials["global_batch_size"] == 64) & (study.trials["phase"] == "confirm")]
    study.trials.loc[fresh[0], ["outcome", "seconds_to_target"]] = ["target_missed", pd.NA]
    study.trials.loc[study.trials["global_batch_size"] == 256, "outcome"] = "target_missed"
    use = statement(answer_of(study), "use")
    assert (use.batches, use.is_settled) == ((64,), True)  # one of four may be luck
    assert "1 of its 4 trainings with fresh seeds did not complete. No training reached the target at 256." in use.text
    more = study.trials.loc[[fresh[0]] * 2].assign(number=[97, 98], seed=[97, 98])
    use = statement(answer_of(replace(study, trials=pd.concat([study.trials, more], ignore_index=True))), "use")
    assert (use.batches, use.is_settled) == ((64,), False)
    assert "3 of its 6 trainings with fresh seeds did not complete." in use.text
    assert (use.needed, bool(use.missing)) == ("settings whose seeds complete are required", True)
