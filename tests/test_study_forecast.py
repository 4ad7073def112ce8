"""What a study will cost: the amount of work, the cost of a trial from probes, and the forecast of the whole."""

import json
import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from records_factory import add_trials, make_ending, make_record, make_spec, make_store

from sweep.config.study import Confirm
from sweep.config.trial import TrialConfig, build_config
from sweep.probing.cost_model import CostModel, ScriptCosts, TrialCost, compute_workload, interpolate
from sweep.probing.gate import MemoryGate
from sweep.probing.shape import derive_shape, find_largest_accumulation, make_probed_config, make_shape_key
from sweep.records.loading import read_frames
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.records.records import ProbeRecord, TrialRecord
from sweep.search.pruner import NUM_NEAREST
from sweep.search.seeds import list_confirmations
from sweep.search.study_forecast import (
    FACTOR,
    WIDTH,
    Forecast,
    RemainingWork,
    TimeLeft,
    list_remaining,
    make_forecast,
    predict_left,
)
from sweep.training.trial import run_trial

# The law of a made-up machine: seconds of a micro batch of m samples, of an update, of what comes before the clock.
FIXED, PER_SAMPLE, UPDATE, SETUP, WARMUP, LAUNCH = 2e-3, 1e-4, 5e-4, 0.2, 0.3, 0.02
NUM_TRAIN, NUM_VALIDATION, EVAL_RATE = 1000, 200, 10_000.0
NO_COST = TrialCost(train_seconds=0.0, other_seconds=0.0)


def config(**values: Any) -> TrialConfig:
    return build_config({key.replace("__", "."): value for key, value in values.items()}, "test")


def probe_of(wanted: TrialConfig, pace: float = 1.0) -> ProbeRecord:
    """What a probe on the made-up machine tells."""
    probed = make_probed_config(wanted)
    micro, accumulation = probed.micro_batch, find_largest_accumulation(probed)
    step = pace * (UPDATE + accumulation * (FIXED + PER_SAMPLE * micro))
    return ProbeRecord(
        shape_key=make_shape_key(derive_shape(wanted), ""), device="made up", shape=derive_shape(wanted).text,
        micro_batch=micro, step_seconds_median=step, step_seconds_mean=step, update_seconds=pace * UPDATE,
        eval_images_per_second=EVAL_RATE, setup_seconds=SETUP, warmup_seconds=first_steps(micro, accumulation),
        memory_seconds=0.0, launch_seconds=LAUNCH,
        peak_memory_bytes=1_000_000 + 1000 * micro + (4000 if accumulation > 1 else 0), num_parameters=1000,
        num_train=NUM_TRAIN, num_validation=NUM_VALIDATION,
    )  # fmt: skip


def first_steps(micro: int, accumulation: int) -> float:
    """Five steps and what is done once."""
    return WARMUP + 5 * accumulation * (FIXED + PER_SAMPLE * micro)


# ---------------------------------------------------------------------- the amount of work


@pytest.mark.parametrize("values", [
    {"budget.epochs": 3, "batch.micro": 16},
    {"budget.epochs": 1.5, "batch.micro": 32, "batch.accumulation": 2},
    {"budget.steps": 9, "batch.micro": 64, "batch.global": 96},
    {"budget.samples": 410, "batch.micro": 16, "model.norm": "group"},
])  # fmt: skip
def test_the_amount_is_what_a_trial_does(values: dict[str, Any]) -> None:
    wanted = build_config({"data.subset": 200, **values}, "test")
    said = list(run_trial(TrialTask(number=0, config=wanted, device="cpu")))
    ending = said[-1]
    assert isinstance(ending, Ending)
    amount = compute_workload(wanted, 200)
    assert round(amount.epochs * amount.steps_per_epoch) == ending.measurements["num_steps"]
    assert amount.num_evaluations == sum(isinstance(message, Evaluation) for message in said)
    assert sum(size * count for size, count in amount.micro_batches) == 200


def test_micro_batches_are_counted_by_their_size() -> None:
    amount = compute_workload(config(batch__micro=64, batch__accumulation=2, budget__epochs=4), 1000)
    assert (amount.steps_per_epoch, amount.epochs) == (8, 4.0)
    assert amount.micro_batches == ((40, 1.0), (64, 15.0))
    of_two_ranks = compute_workload(config(batch__micro=32, distributed__world_size=2, budget__epochs=4), 1000)
    assert of_two_ranks.micro_batches == ((20, 1.0), (32, 15.0))


def test_a_growing_batch_takes_its_average_and_a_target_its_cap() -> None:
    grown = compute_workload(config(batch__micro=10, batch__schedule="linear", batch__schedule_factor=3.0), 1000)
    assert grown.steps_per_epoch == 50  # of 20 samples on average
    target = compute_workload(config(batch__micro=10, budget__target=0.9, budget__max_epochs=5.0), 1000)
    assert (target.is_cap, target.epochs, target.num_evaluations) == (True, 5.0, 20)


# ---------------------------------------------------------------------- the cost of a trial


def test_a_line_between_probes_that_never_falls() -> None:
    known = {16: 2.0, 64: 3.0, 256: 12.0}
    assert [interpolate(known, size) for size in (16, 40, 64, 160)] == [2.0, 2.5, 3.0, 7.5]
    assert interpolate(known, 512) == 24.0
    assert interpolate(known, 8) == pytest.approx(2.0 - 1 / 6)
    assert interpolate({16: 4.0, 64: 3.0}, 128) == 3.0
    assert interpolate({100: 1.0}, 100) == 1.0
    assert interpolate({100: 1.0}, 200) == pytest.approx(1.997)  # a long computation is in proportion
    assert interpolate({100: 1e-3}, 200) == pytest.approx(1.7e-3)  # a short one has a part that is not


def test_the_train_seconds_of_a_linear_machine_are_exact() -> None:
    probes = [probe_of(config(batch__micro=micro)) for micro in (16, 256)]
    costs = CostModel(probes)
    for micro, accumulation in ((16, 1), (64, 4), (100, 2), (256, 1)):
        wanted = config(batch__micro=micro, batch__accumulation=accumulation, budget__epochs=3)
        windows = math.ceil(NUM_TRAIN / (micro * accumulation))
        num_micro = sum(
            math.ceil(min(micro * accumulation, NUM_TRAIN - start) / micro)
            for start in range(0, NUM_TRAIN, micro * accumulation)
        )
        epoch = windows * UPDATE + num_micro * FIXED + NUM_TRAIN * PER_SAMPLE
        cost = costs.predict(wanted)
        assert cost is not None
        assert cost.train_seconds == pytest.approx(3 * epoch, rel=1e-9)
        images = 3 * NUM_VALIDATION + NUM_VALIDATION
        least = SETUP + first_steps(micro, min(accumulation, 2)) + LAUNCH + images / EVAL_RATE
        assert least < cost.other_seconds < least + 0.1 + 0.1 * cost.train_seconds + 1e-9


def test_learning_rates_and_seeds_change_no_cost_but_a_confirming_trial_reads_one_split_more() -> None:
    costs = CostModel([probe_of(config(batch__micro=16)), probe_of(config(batch__micro=256))])
    one = config(batch__micro=64)
    assert costs.predict(one) == costs.predict(config(batch__micro=64, optimizer__lr=0.7, seed=5))
    search, confirm = costs.predict(one), costs.predict(one, read_test=True)
    assert (confirm or NO_COST).seconds - (search or NO_COST).seconds == pytest.approx(NUM_VALIDATION / EVAL_RATE)
    assert (costs.predict(config(batch__micro=16, budget__seconds=7.0)) or NO_COST).train_seconds == 7.0


def test_another_kind_or_a_far_size_is_guessed_and_nothing_by_nothing() -> None:
    assert CostModel().predict(config()) is None
    failed = ProbeRecord(
        shape_key="k", device="made up", shape=derive_shape(config()).text, outcome="out_of_memory", micro_batch=64
    )
    assert CostModel([failed]).predict(config()) is None
    sizes = CostModel([probe_of(config(batch__micro=16)), probe_of(config(batch__micro=64))])
    predicted = {micro: sizes.predict(config(batch__micro=micro)) for micro in (4, 8, 16, 48, 128, 256)}
    assert {micro for micro, cost in predicted.items() if cost and cost.is_guess} == {4, 256}
    costs = CostModel([probe_of(config(model__name="vit_micro"), pace=5.0), probe_of(config())])
    adam, known = (costs.predict(each) or NO_COST for each in (config(optimizer__name="adamw"), config()))
    assert (adam.is_guess, known.is_guess) == (True, False)
    assert adam.seconds == known.seconds


FOLDER = {"data.name": "imagefolder", "data.root": "a", "data.image_size": 32}
VIT = {"model.name": "vit_micro"}


@pytest.mark.parametrize(("probed", "wanted", "is_known"), [
    ({}, VIT, False), (VIT, VIT | {"model.patch_size": 4}, False), ({}, {"data.name": "cifar10"}, False),
    ({}, {"data.subset": 500}, False), ({}, {"data.validation_share": 0.3}, False),
    (FOLDER, FOLDER | {"data.root": "b"}, False), (FOLDER, FOLDER | {"data.image_size": 64}, False),
    ({}, {"optimizer.name": "adamw"}, True), ({}, {"model.norm": "group"}, True),
    ({}, {"distributed.world_size": 2}, True),
])  # fmt: skip
def test_another_model_and_other_images_stand_for_nothing(
    probed: dict[str, Any], wanted: dict[str, Any], is_known: bool
) -> None:
    cost = CostModel([probe_of(config(**probed))]).predict(config(**wanted))
    assert (cost is not None and cost.is_guess) == is_known


@pytest.mark.parametrize(("wanted", "is_known"), [
    ({"data.subset": 500}, True), ({"data.subset": 500, "data.validation_share": 0.05}, True),
    ({"data.name": "cifar10", "data.subset": 500}, False), (VIT | {"data.subset": 500}, False),
])  # fmt: skip
def test_probes_can_stand_for_fewer_of_the_same_images(wanted: dict[str, Any], is_known: bool) -> None:
    costs = CostModel([probe_of(config(batch__micro=size)) for size in (16, 64)])
    whole = costs.predict(config())
    costs.set_num_images(config(**wanted), 500, 50)
    part = costs.predict(config(**wanted))
    assert (part is not None and not part.is_guess) == is_known
    if part is not None and whole is not None:
        assert part.train_seconds == pytest.approx(whole.train_seconds * 500 / NUM_TRAIN, rel=0.05)
        assert part.other_seconds < whole.other_seconds
    assert costs.predict(config()) == whole, "what was probed stays"


def test_the_order_of_probes_changes_no_prediction() -> None:
    kinds: list[dict[str, Any]] = [
        {"optimizer.name": "adamw"}, {"model.norm": "group"}, {"data.subset": 100}, {"data.subset": 200},
    ]  # fmt: skip
    probes = [
        probe_of(config(batch__micro=micro, batch__accumulation=count, **kind), pace=1.0 + number)
        for number, kind in enumerate(kinds)
        for micro, count in ((16, 1), (16, 4), (64, 1))
    ]
    wanted = config(batch__micro=32), config(data__subset=500, batch__micro=32, optimizer__lr=0.3)
    predicted = []
    for listed in (probes, probes[::-1]):
        costs = CostModel(listed[:3])
        costs.set_num_images(wanted[1], 500, 50)
        for probe in listed[3:]:
            costs.add(probe)
            costs.predict(wanted[1])
        predicted.append([costs.predict(each) for each in wanted])
    assert None not in predicted[0]
    assert predicted[0] == predicted[1]


# ---------------------------------------------------------------------- the forecast of a study


def forecast(
    sample: Sequence[TrialConfig], limit_bytes: int = 10**9, pace: float = 1.0, **known: Any
) -> tuple[Forecast, list[TrialConfig]]:
    probed: list[TrialConfig] = []
    costs = CostModel()

    def probe(wanted: TrialConfig, _seconds: float) -> ProbeRecord:
        probed.append(wanted)
        return probe_of(wanted, pace)

    def find(wanted: TrialConfig) -> ProbeRecord | None:
        return probe_of(wanted, pace) if any(derive_shape(wanted) == derive_shape(one) for one in probed) else None

    def predict(wanted: TrialConfig) -> int:
        return probe_of(wanted).peak_memory_bytes or 0

    work = RemainingWork(**{"sample": sample, "num_trials": 20, "most_confirm": 0, "is_exact": False, **known})
    return make_forecast(work, costs, find, probe, MemoryGate(limit_bytes, predict)), probed


def sizes(*micros: int, **values: Any) -> list[TrialConfig]:
    return [config(batch__micro=micro, budget__epochs=500, **values) for micro in micros]


def seconds_of(sample: Sequence[TrialConfig]) -> list[float]:
    costs = CostModel([probe_of(each) for each in sample])
    return [cost.seconds for each in sample if (cost := costs.predict(each))]


def between(found: Forecast) -> tuple[float, float, float]:
    low, middle, high = (
        found.expected_total_seconds_low, found.expected_total_seconds, found.expected_total_seconds_high,
    )  # fmt: skip
    assert low is not None and middle is not None and high is not None  # noqa: PT018
    return low, middle, high


def test_a_known_list_of_trials_is_added_up_and_its_interval_is_that_of_the_machine() -> None:
    sample = sizes(16, 32, 64, 128, 256)
    found, _ = forecast(sample, num_trials=5, is_exact=True)
    low, middle, high = between(found)
    assert middle == pytest.approx(FACTOR * sum(seconds_of(sample)), rel=0.02)
    assert math.log(high / middle) == pytest.approx(0.1645 * WIDTH, rel=0.1)
    assert math.log(middle / low) == pytest.approx(0.1645 * WIDTH, rel=0.1)
    again, _ = forecast(sample, num_trials=5, is_exact=True)
    assert between(again) == (low, middle, high)


def test_slots_share_the_work_and_limits_cut_it() -> None:
    sample = sizes(16, 64)
    one = between(forecast(sample, num_trials=2, is_exact=True)[0])
    two = between(forecast(sample, num_trials=2, is_exact=True, slots=2)[0])
    assert two[1] == pytest.approx(one[1] / 2)
    cut, _ = forecast(sample, num_trials=2, is_exact=True, limit_seconds=0.9 * one[1])
    assert between(cut)[2] == pytest.approx(0.9 * one[1])
    assert cut.is_cut_by_timeout
    short, _ = forecast(sample, num_trials=2, is_exact=True, trial_limit_seconds=0.5)
    assert between(short)[1] == pytest.approx(FACTOR, rel=0.02)


def test_what_will_not_fit_is_counted_and_replaced() -> None:
    sample = sizes(16, 64, 256)
    found, _ = forecast(sample, limit_bytes=1_100_000, num_trials=3, is_exact=True)
    assert found.num_not_fitting == 1
    # in the place of a refused proposal another is made, which fits
    assert between(found)[1] == pytest.approx(1.5 * FACTOR * sum(seconds_of(sample)[:2]), rel=0.02)
    assert (found.peak_memory_bytes_low, found.peak_memory_bytes_high) == (1_016_000, 1_256_000)
    adaptive, _ = forecast(sample, limit_bytes=1_100_000)
    assert adaptive.num_not_fitting == 10  # one for each two that fit


def test_probes_are_few_begin_with_every_kind_and_spread_over_sizes() -> None:
    sample = [*sizes(16, 32, 64, 128, 256), *sizes(16, 256, model__name="vit_micro")]
    _, probed = forecast(sample, num_trials=10**6)
    assert [(one.model.name, one.micro_batch) for one in probed] == [
        ("resnet8", 16), ("vit_micro", 16), ("resnet8", 256), ("vit_micro", 256), ("resnet8", 64), ("resnet8", 32),
        ("resnet8", 128),
    ]  # fmt: skip
    _, few = forecast(sizes(*range(8, 128)), num_trials=10**6)
    assert len(few) == 16
    _, least = forecast(sample, num_trials=1, limit_seconds=1e-6)
    assert len(least) == 1  # more would cost more than a tenth of what is allowed


def test_a_guess_widens_the_interval() -> None:
    sample = [*sizes(16, 64), *sizes(16, 64, model__name="vit_micro", distributed__world_size=2)]
    sure, _ = forecast(sample[:2], num_trials=2, is_exact=True)
    guessed, _ = forecast(sample, num_trials=4, is_exact=True)  # several ranks are not probed
    assert (sure.share_guessed, guessed.share_guessed) == (0.0, 0.5)
    (low, _, high), (wide_low, _, wide_high) = between(sure), between(guessed)
    assert wide_high / wide_low > 2 * high / low


def test_pruning_lowers_the_low_end_once_it_can_judge() -> None:
    sample = sizes(16, 64)
    for num_trials in (NUM_NEAREST, 4 * NUM_NEAREST):
        low, middle, high = between(forecast(sample, num_trials=num_trials, is_exact=True)[0])
        pruned = between(forecast(sample, num_trials=num_trials, is_exact=True, is_pruned=True)[0])
        if num_trials == NUM_NEAREST:
            assert pruned == (low, middle, high)
        else:
            assert pruned[0] < 0.9 * low
            assert pruned[1] < middle
            assert pruned[2] <= high


def test_confirming_trials_are_forecast_as_the_rule_takes_them() -> None:
    # the fewest seeds with which a configuration can be named, and the most by the limits
    for seeds, planned in ((5, (3, 20)), (1, (1, 4)), (0, (0, 0))):
        confirm = Confirm(max_configurations=4, seeds=seeds)
        assert (confirm.least_trials, confirm.most_trials) == planned
    sample = sizes(64)
    one = FACTOR * (CostModel([probe_of(sample[0])]).predict(sample[0], read_test=True) or NO_COST).seconds
    limits = {"num_trials": 0, "least_confirm": 3}
    none_left, ten_left, four_at_most = (
        between(forecast(sample, **limits, most_confirm=most, confirm_left_seconds=left * one / FACTOR)[0])
        for left, most in ((-1, 20), (10, 20), (10, 4))
    )
    assert none_left[1] / one == pytest.approx(3.0, rel=0.05)
    assert 7.0 < ten_left[1] / one < 9.0
    assert ten_left[2] / one < 10.0 * 1.25  # the time for them, were it not for the machine's own pace
    assert four_at_most[1] / one == pytest.approx(4.0, rel=0.05)
    assert all(low < middle < high for low, middle, high in (none_left, ten_left, four_at_most))


def test_the_time_for_confirming_grows_with_that_of_the_search() -> None:
    sample = sizes(64)
    most = {"num_trials": 20, "is_exact": True, "least_confirm": 3, "most_confirm": 100}
    none, half, whole = (
        between(forecast(sample * 20, **most, confirm_share=share)[0])[1] for share in (1e-9, 0.5, 1.0)
    )
    assert none == pytest.approx(FACTOR * (sum(seconds_of(sample * 20)) + 3 * seconds_of(sample)[0]), rel=0.02)
    search = FACTOR * sum(seconds_of(sample * 20))
    assert 1.25 < half / search < 1.5
    assert 1.5 < whole / search < 2.0


def test_nothing_probed_is_said_as_that() -> None:
    gate = MemoryGate(1000, lambda _config: None)
    failed = ProbeRecord(shape_key="k", device="made up", outcome="crashed")
    work = RemainingWork(sample=sizes(16), num_trials=1, most_confirm=0, is_exact=True)
    found = make_forecast(work, CostModel(), lambda _config: None, lambda _config, _seconds: failed, gate)
    assert (found.expected_total_seconds, found.peak_memory_bytes_high, found.num_probes) == (None, None, 1)
    assert json.loads(json.dumps(found.document()))["num_not_fitting"] == 0


def test_the_sample_is_what_the_sampler_will_propose() -> None:
    spec = make_spec(trials=8, sampler="random", confirm={"max_configurations": 2, "seeds": 3, "share": 0.5})
    work = list_remaining(spec, 2)
    # the time for confirming is that of half of the 8
    assert (work.is_exact, len(work.sample), work.most_confirm, work.slots) == (True, 8, 4, 2)
    more = spec.model_copy(update={"confirm": spec.confirm.model_copy(update={"share": 5.0})})
    assert list_remaining(more, 2).most_confirm == 6
    adaptive = list_remaining(make_spec(trials=8), 1)
    assert (adaptive.is_exact, adaptive.num_trials) == (False, 8)
    assert {one.micro_batch for one in adaptive.sample} == {2**k for k in range(4, 11)}
    space = {"batch.micro": {"log2": [4, 6]}}
    finite = list_remaining(make_spec(trials=50, space=space), 1)
    assert finite.num_trials == 3


def test_a_study_that_has_trained_enough_has_its_open_confirmations_ahead(tmp_path: Path) -> None:
    spec = make_spec(trials=4, confirm={"max_configurations": 2, "seeds": 3, "share": 0.5})
    with closing(make_store(tmp_path / "study.sqlite", spec)) as store:
        add_trials(store, ["complete", "complete", "diverged"])
        begun = list_remaining(spec, 1, store.trial_records("s"))
        assert (begun.num_trials, begun.least_confirm, begun.most_confirm) == (1, 3, 3)
        add_trials(store, ["complete"], first=3)
        records = store.trial_records("s")
        searched = list_remaining(spec, 1, records)
        assert (searched.num_trials, searched.is_exact) == (0, False)
        ahead = [searched.most_confirm]
        while due := list_confirmations(read_frames(store.database, "s"), store.trial_records("s"), spec):
            number = 4 + len(ahead)
            store.add_trial("s", number, "confirm", due[0], f"key{number}")
            store.finish_trial("s", number, make_ending(3))
            ahead.append(list_remaining(spec, 1, store.trial_records("s")).most_confirm)
    assert ahead == [3, 2, 1, 0]
    done = list_remaining(make_spec(trials=4, confirm={"seeds": 0}), 1, records)
    assert (done.num_trials, done.most_confirm, done.sample) == (0, 0, [])


# ---------------------------------------------------------------------- the time left while a study runs


def ended(paces: Sequence[float], wanted: TrialConfig) -> list[TrialRecord]:
    """Trials that took so many times what is forecast."""
    (usual,) = seconds_of([wanted])
    return [make_record(wanted, {"total_seconds": pace * usual}, number) for number, pace in enumerate(paces)]


def left_after(paces: Sequence[float], num_left: int, costs: CostModel | None = None) -> tuple[TimeLeft, float]:
    """What is forecast of so many trials after others of these paces, and what they take at the last pace, with what
    a study takes besides its trials."""
    (wanted,) = sizes(64)
    work = RemainingWork(sample=[wanted] * num_left, num_trials=num_left, most_confirm=0, is_exact=True)
    left = predict_left(work, costs or CostModel([probe_of(wanted)]), ended(paces, wanted))
    assert left is not None
    return left, FACTOR * num_left * paces[-1] * seconds_of([wanted])[0]


@pytest.mark.parametrize("num_idle", [0, 1, 8, 16])
@pytest.mark.parametrize("pace", [0.4, 1.0, 3.0])
@pytest.mark.parametrize("num_loaded", [1, 4])
def test_a_load_that_begins_after_the_forecast_is_within_the_interval(
    num_idle: int, pace: float, num_loaded: int
) -> None:
    left, truth = left_after([1.0] * num_idle + [pace] * num_loaded, 3)
    assert left.low < truth < left.high
    idle = left_after([1.0], 3)[0]
    assert left.high - left.low >= 0.99 * (idle.high - idle.low) or pace < 1.0


def test_the_pace_is_that_of_the_latest_trials() -> None:
    paces = [left_after(each, 3)[0].pace for each in ([1.0] * 20, [1.0] * 20 + [2.0] * 8, [5.0] * 20 + [1.0] * 8)]
    assert paces == pytest.approx([1.0, 2.0, 1.0])
    (wanted,) = sizes(64)
    reused = [replace(each, reused_from="other/0") for each in ended([9.0], wanted)]
    work = RemainingWork(sample=[wanted], num_trials=1, most_confirm=0, is_exact=True)
    left = predict_left(work, CostModel([probe_of(wanted)]), reused)
    assert left is not None
    assert left.pace == 1.0
    assert predict_left(work, CostModel(), []) is None


def test_without_probes_the_time_left_is_by_the_trials() -> None:
    left, truth = left_after([3.0, 3.0], 4, CostModel())
    assert left.pace == 1.0
    assert left.median == pytest.approx(truth, rel=0.02)


def test_the_time_left_ends_with_the_time_limits() -> None:
    spec = make_spec(trials=8, search_timeout="60s", confirm={"max_configurations": 0})
    for elapsed, expected in ((0.0, (100.0, 60.0)), (50.0, (50.0, 10.0)), (120.0, (0.0, 0.0))):
        work = list_remaining(spec, 1, limit_seconds=100.0, elapsed_seconds=elapsed)
        assert (work.limit_seconds, work.search_limit_seconds) == expected


def _script_trial(
    number: int, micro: int, accumulation: int = 1, *, steps: int | None = None, **own: Any
) -> TrialRecord:
    # 4,000 samples, or so many steps, by the law of the made-up machine; a wide script takes twice the time
    wanted = build_config({"batch.micro": micro, "batch.accumulation": accumulation, "script": own}, "test")
    taken = steps or 4000 // (micro * accumulation)
    seconds = taken * accumulation * (FIXED + PER_SAMPLE * micro) * (2 if own.get("width") == 2 else 1)
    measured = {
        "train_seconds": seconds, "total_seconds": seconds + SETUP, "num_steps": taken, "num_parameters": 1000,
        "observed_batch_size": micro * accumulation,
        "peak_memory_bytes": 10**6 + 1000 * micro + 4000 * (accumulation > 1),
    }  # fmt: skip
    return make_record(wanted, measured, number)


def test_the_trials_of_a_script_tell_what_others_cost() -> None:
    costs = ScriptCosts()
    asked = config(batch__micro=64)
    assert costs.predict(asked) is None
    failed = replace(_script_trial(0, 16), outcome="crashed")
    halved = replace(_script_trial(1, 128), measurements=_script_trial(1, 64).measurements)  # did something else
    for record in (failed, halved, _script_trial(2, 20), _script_trial(3, 50)):
        costs.learn(record)
    for micro, accumulation in ((20, 1), (40, 2), (50, 4), (80, 1)):
        expected = _script_trial(9, micro, accumulation).measurements
        cost = costs.predict(config(batch__micro=micro, batch__accumulation=accumulation))
        assert cost
        passes = 4000 / micro
        assert cost.train_seconds == pytest.approx(passes * (FIXED + PER_SAMPLE * micro))
        assert cost.other_seconds == pytest.approx(SETUP)
        assert not cost.is_guess
        peak = costs.predict_peak_memory_bytes(config(batch__micro=micro, batch__accumulation=accumulation))
        assert peak == expected["peak_memory_bytes"]
    far = costs.predict(config(batch__micro=512))
    assert far
    assert far.is_guess


def test_a_script_of_equally_many_steps_and_of_values_of_its_own() -> None:
    costs = ScriptCosts()
    records = (_script_trial(0, 20, steps=90), _script_trial(1, 50, steps=90), _script_trial(2, 20, steps=90, width=2))
    for record in records:
        costs.learn(record)
    cost = costs.predict(config(batch__micro=40, script={"width": 2}))
    assert cost
    one = 90 * 2 * (FIXED + PER_SAMPLE * 20)
    assert one < cost.train_seconds <= 2 * one  # one size of such is known, and a part of its time grows with it
    fixed = costs.predict(config(batch__micro=40, budget__steps=45, script={"width": 2}))
    assert fixed
    assert fixed.train_seconds == pytest.approx(cost.train_seconds / 2)
    assert costs.predict_peak_memory_bytes(config(batch__micro=4000)) == 10**6 + 1000 * 4000
    # one size of these values: its own peak is known, others are not
    assert costs.predict_peak_memory_bytes(config(batch__micro=20, script={"width": 2})) == 10**6 + 1000 * 20
    assert costs.predict_peak_memory_bytes(config(batch__micro=40, script={"width": 2})) is None
