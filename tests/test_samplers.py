"""Samplers: the one that weighs expected gains against seconds, with the models behind it, and the others."""

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from curve_table import CurveTable, table_spec
from records_factory import make_record, make_spec, search

from studies import shipped_studies
from sweep.analysis.response import Deviation, GaussianProcess
from sweep.config.metrics import METRICS
from sweep.config.study_file import load_study
from sweep.config.trial import TrialConfig
from sweep.records.messages import Outcome
from sweep.records.records import TrialRecord
from sweep.search.cost_aware import (
    CostAxis,
    Encoding,
    Surrogate,
)
from sweep.search.sampler import WINDOW, make_point_key, select_window
from sweep.search.samplers import make_sampler

Measured = tuple[Outcome, dict[str, float | int]]
ALIKE: dict[str, float | int] = {"val_accuracy": 0.5, "train_seconds": 1.0, "peak_memory_bytes": 10}


# ---------------------------------------------------------------------- models


def test_a_gaussian_process_finds_what_matters_and_how_noisy_it_is() -> None:
    rng = np.random.default_rng(0)
    x = rng.random((60, 3))
    y = 3.0 + np.sin(5.0 * x[:, 0]) + 0.5 * x[:, 1] + rng.normal(0.0, 0.05, 60)
    model = GaussianProcess(x, y)
    at = rng.random((200, 3))
    mean, deviation = model.predict(at)
    error = mean - (3.0 + np.sin(5.0 * at[:, 0]) + 0.5 * at[:, 1])
    assert np.sqrt(np.mean(error**2)) < 0.06
    assert 0.8 < np.mean(np.abs(error) < 1.96 * deviation) <= 1.0
    assert 0.02 < model.deviations[0] < 0.1
    assert model.parameters[2] > model.parameters[0] + 1.0  # the third feature says nothing: its scale is long


def test_a_gaussian_process_tells_deviations_apart() -> None:
    # the mean of 1 or of 25 measurements of a rough function, with the noise of each
    rng = np.random.default_rng(2)
    x = rng.random((100, 1))
    neighbors = np.exp(-np.abs(x - x.T) / 0.1)
    counts = np.where(np.arange(100) % 2, 25.0, 1.0)
    rough = np.linalg.cholesky(neighbors + 1e-9 * np.eye(100)) @ rng.normal(size=100)
    y = np.sin(3.0 * x[:, 0]) + 0.1 * rough + 0.3 * rng.normal(size=100) / np.sqrt(counts)
    parts = [Deviation(neighbors, 0.2, 1.0), Deviation(np.diag(1.0 / counts), 0.2, 1.0)]
    found = GaussianProcess(x, y, deviations=parts).deviations
    assert found == [pytest.approx(0.1, abs=0.05), pytest.approx(0.3, abs=0.06)]


@pytest.mark.parametrize("y", [[1.0], [2.0, 2.0, 2.0]])
def test_a_gaussian_process_lives_on_next_to_nothing(y: list[float]) -> None:
    mean, deviation = GaussianProcess(np.full((len(y), 2), 0.5), np.array(y)).predict(
        np.array([[0.5, 0.5], [0.0, 1.0]])
    )
    assert mean == pytest.approx([y[0], y[0]])
    assert deviation[1] > deviation[0] > 0


def test_an_axis_goes_up_with_the_cost_and_back_to_it() -> None:
    for name, values in {
        "val_accuracy": [0.0, 0.35, 0.98, 1.0], "train_seconds": [1e-3, 1.0, 1e4], "images_per_second": [1.0, 5e4],
        "generalization_gap": [-0.1, 0.0, 0.4],
    }.items():  # fmt: skip
        costs = METRICS[name].sign * np.array(values)
        places = CostAxis(name).of_values(np.array(values))
        assert CostAxis(name).of_costs(costs) == pytest.approx(places)
        assert CostAxis(name).costs(places) == pytest.approx(costs)
        assert (np.diff(places) * METRICS[name].sign > 0).all()
    assert not np.isfinite(CostAxis("train_seconds").of_values(np.array([0.0]))).any()
    assert np.isfinite(CostAxis("train_seconds").of_costs(np.array([-1.0, 0.0]))).all()
    # the same number of images more or less counts for more where few are wrong
    steps = np.diff(CostAxis("val_accuracy").of_values(np.array([0.50, 0.51, 0.98, 0.99])))
    assert abs(steps[2]) > 3 * abs(steps[0])


# ---------------------------------------------------------------------- features


def encoding(**fields: Any) -> Encoding:
    return Encoding(table_spec(**fields))


def point(model: str, micro: int, accumulation: int, lr: float = 0.1, decay: float = 0.0) -> dict[str, Any]:
    return {
        "model.name": model, "batch.micro": micro, "batch.accumulation": accumulation, "optimizer.lr": lr,
        "optimizer.weight_decay": decay,
    }  # fmt: skip


def test_accuracy_is_shared_across_accumulation_where_the_update_is_the_same() -> None:
    split = [point("vit_micro", 64, 1), point("vit_micro", 16, 4), point("vit_micro", 16, 1)]
    one, other, smaller = encoding().accuracy(split)
    assert one.tolist() == other.tolist() != smaller.tolist()
    one, other = encoding().accuracy([point("resnet8", 64, 1), point("resnet8", 16, 4)])
    assert one.tolist() != other.tolist()  # BatchNorm sees the micro batch
    grouped = encoding(base={"model.norm": "group"})
    one, other = grouped.accuracy([point("resnet8", 64, 1), point("resnet8", 16, 4)])
    assert one.tolist() == other.tolist()


def test_costs_see_the_split_and_neither_the_rate_nor_the_decay() -> None:
    one, same, split = encoding().cost(
        [point("vit_micro", 64, 1), point("vit_micro", 64, 1, 0.003, 0.003), point("vit_micro", 16, 4)]
    )
    assert one.tolist() == same.tolist() != split.tolist()
    # until a target accuracy, time depends on all that training depends on
    until = encoding(base={"budget.target": 0.9})
    one, other = until.cost([point("vit_micro", 64, 1), point("vit_micro", 64, 1, 0.003)])
    assert one.tolist() != other.tolist()


def test_two_decades_of_a_batch_size_count_as_two_of_a_rate() -> None:
    points = [point("resnet8", 16, 1, lr) for lr in (0.003, 0.03, 0.3)] + [point("resnet8", 160, 10)]
    table = encoding().accuracy(points)
    rate, batch, micro = 2, -2, -1
    assert table[:3, rate] - table[0, rate] == pytest.approx([0.0, 0.5, 1.0])
    assert table[3, batch] - table[0, batch] == pytest.approx(1.0)
    assert table[3, micro] - table[0, micro] == pytest.approx(0.5)


# ---------------------------------------------------------------------- the sampler


def seconds_to_tune(table: CurveTable, sampler: str, tolerance: float, seed: int) -> float:
    """What the trials cost until each batch size of the best model was tuned, to within ``tolerance`` of accuracy."""
    spec = table_spec(sampler=sampler, seed=seed, trials=400)
    ends = [table.mean_end(index) for index in range(len(table.points))]
    places = {make_point_key(item): index for index, item in enumerate(table.points)}
    configs = [spec.config(item) for item in table.points]
    groups = [(each.model.name, each.global_batch_size) for each in configs]
    best: dict[tuple[str, int], float] = {}
    for group, end in zip(groups, ends, strict=True):
        best[group] = max(end, best.get(group, 0.0))
    wanted = {group for group, end in best.items() if end >= max(ends) - 0.02}
    spent, seen = 0.0, set()
    proposals, records = make_sampler(spec, []), 0
    while wanted:
        values = proposals.propose(records)
        assert values is not None
        index = places[make_point_key(values)]
        *_, last = table.evaluations(index, seed)
        record = table.record(index, records, last)
        if index not in seen:
            spent += table.costs(index)[0] + 1.0
        seen.add(index)
        if ends[index] >= best[groups[index]] - tolerance:
            wanted.discard(groups[index])
        measured = record.measurements | {"total_seconds": table.costs(index)[0] + 1.0}
        proposals.learn(
            TrialRecord(number=records, phase="search", values=record.values, outcome="complete", measurements=measured)
        )
        records += 1
    return spent


def test_it_tunes_the_batch_sizes_for_a_fraction_of_the_seconds() -> None:
    ours, blind = [], []
    for seed in range(3):
        table = CurveTable(table_spec(), seed, 0.2)
        ours.append(seconds_to_tune(table, "cost_aware", 0.005, seed))
        blind.append(seconds_to_tune(table, "qmc", 0.005, seed))
    assert np.median(ours) < 0.5 * np.median(blind)


@pytest.mark.parametrize(("dear", "cheap"), [("resnet8", "vit_micro"), ("vit_micro", "resnet8")])
def test_what_probes_foretell_decides_where_nothing_was_measured(dear: str, cheap: str) -> None:
    def known(_metric: str, config: TrialConfig) -> float:
        return 10.0 if config.model.name == dear else 1.0

    for seed in range(4):
        spec = table_spec(sampler="cost_aware", seed=seed)
        failed = search(spec, 64, lambda _values: ("crashed", {}))
        after = make_sampler(spec, failed, known).propose(64)  # those that fill the space are over
        assert after is not None
        assert after["model.name"] == cheap


def test_measurements_replace_predictions() -> None:
    made = Encoding(spec := table_spec())
    learner = Surrogate("train_seconds", made)
    near, far = point("resnet8", 16, 1), point("vit_micro", 64, 4)
    learner.set_predictions([near, far], [1.0, 5.0])
    assert learner.fit([])
    assert np.exp(learner.predict([near, far]).mean) == pytest.approx([1.0, 5.0], rel=0.05)
    # the machine is slower than the probes said, as a trial of the one shape shows; so the other is as well
    slower = make_record(spec.config(near), {"train_seconds": 2.0}, 0)
    assert learner.fit([slower])
    assert np.exp(learner.predict([near, far]).mean) == pytest.approx([2.0, 10.0], rel=0.05)


def accuracy_record(number: int, micro: int, accuracy: float, error: float = 0.0) -> TrialRecord:
    spec = table_spec()
    config, measured = spec.config(point("resnet8", micro, 1)), {"val_accuracy": accuracy}
    outcome, errors = ("pruned", {"val_accuracy": error}) if error else ("complete", {})
    return make_record(config, measured, number, outcome=outcome, errors=errors)


def test_a_pruned_trial_pulls_the_accuracy_less_than_a_complete_one() -> None:
    whole = [accuracy_record(number, micro, 0.8) for number, micro in enumerate((16, 32, 16, 32))]

    def predict(*records: TrialRecord) -> float:
        learner = Surrogate("val_accuracy", Encoding(table_spec()))
        assert learner.fit([*whole, *records])
        return -float(learner.axis.costs(learner.predict([point("resnet8", 64, 1)]).mean)[0])

    predicted = [predict(accuracy_record(4, 64, 0.5, error)) for error in (0.0, 0.05, 0.3)]
    assert 0.49 < predicted[0] < predicted[1] - 0.001 < predicted[2] - 0.01
    # where a trial at the same point went to its end, the other one adds nothing
    complete = accuracy_record(4, 64, 0.6)
    assert predict(complete, accuracy_record(5, 64, 0.1, 0.05)) == pytest.approx(predict(complete), abs=0.002)
    unknown = Surrogate("val_accuracy", Encoding(table_spec()))
    assert not unknown.fit([accuracy_record(0, 64, 0.5, float("inf"))])


def test_each_name_of_a_choice_gets_its_turn_first() -> None:
    spec = table_spec(sampler="cost_aware")
    for seed in range(6):
        records = search(spec.model_copy(update={"seed": seed}), 2, lambda _values: ("complete", ALIKE))
        assert {record.values["model.name"] for record in records} == {"resnet8", "vit_micro"}


@pytest.mark.parametrize("objectives", [
    ["val_accuracy"], ["val_accuracy", "val_loss", "train_seconds", "peak_memory_bytes"],
    ["generalization_gap", "images_per_second", "num_parameters"],
])  # fmt: skip
def test_any_objectives(objectives: list[str]) -> None:
    def judge(values: dict[str, Any]) -> Measured:
        miss = abs(np.log10(values["optimizer.lr"]) + 1.0)
        measured: dict[str, float | int] = {
            "val_accuracy": 0.9 - 0.2 * miss, "val_loss": 0.1 + 0.2 * miss,
            "train_seconds": 1.0 + 100 / values["batch.micro"], "peak_memory_bytes": 1000 * values["batch.micro"],
            "total_seconds": 2.0 + 100 / values["batch.micro"], "images_per_second": 1000.0 + values["batch.micro"],
            "generalization_gap": 0.1 * miss, "num_parameters": 75_000,
        }  # fmt: skip
        return "complete", measured

    records = search(make_spec(sampler="cost_aware", objectives=objectives), 24, judge)
    rates = [abs(np.log10(record.config.optimizer.lr) + 1.0) for record in records[8:]]
    assert np.median(rates) < 0.6  # 0.85 by chance
    assert len({make_point_key(record.values) for record in records}) == 24


@pytest.mark.parametrize("limits", [{"trials": 20}, {"trials": 100, "search_timeout": 1200}])
def test_the_last_trials_go_to_batch_sizes_that_would_not_count_as_tuned(limits: dict[str, int]) -> None:
    space = {"batch.micro": {"log2": [4, 9]}, "optimizer.lr": {"log": [1e-3, 1.0]}}
    spec = make_spec(sampler="cost_aware", space=space, objectives=["val_accuracy", "train_seconds"], **limits)

    def judge(values: dict[str, Any]) -> Measured:
        micro, miss = values["batch.micro"], abs(np.log10(values["optimizer.lr"]) + 1.5)
        seconds = 3000.0 / micro
        accuracy = {16: 0.935, 256: 0.5}.get(micro, 0.95) - 0.05 * miss  # so that 16 would have one or two trials
        measured: dict[str, float | int] = {
            "val_accuracy": accuracy,
            "train_seconds": seconds,
            "total_seconds": seconds,
        }
        return ("out_of_memory", {}) if micro == 512 else ("complete", measured)

    records = search(spec, 40 if spec.search_timeout else 20, judge)
    taken = np.cumsum([record.measurements.get("total_seconds", 0.0) for record in records])
    records = records[: np.searchsorted(taken, spec.search_timeout or np.inf)]  # that end in time
    counts = Counter(record.config.batch.micro for record in records)
    assert min(counts[micro] for micro in (16, 32, 64, 128)) >= 3
    assert counts[256] == 2  # far behind
    assert counts[512] < 3  # does not fit


# micro batch, accumulation, rate and accuracy of a real search of 20: 512 and 1024 had one rate each, not a good one
_ONE_RATE_EACH = [
    (64, 1, 0.0118, 0.992), (256, 4, 0.0899, 0.571), (128, 4, 0.0015, 0.905), (32, 1, 0.0886, 0.984),
    (256, 1, 0.0182, 0.984), (32, 4, 0.0019, 0.974), (128, 1, 0.0647, 0.988), (64, 4, 0.0062, 0.986),
    (32, 4, 0.0412, 0.982), (128, 1, 0.0119, 0.988), (32, 1, 0.0073, 0.99), (32, 4, 0.0082, 0.988),
    (32, 1, 0.0192, 0.988), (32, 1, 0.001, 0.986), (64, 4, 0.0488, 0.97), (256, 1, 0.0067, 0.984),
    (64, 1, 0.0608, 0.986),
]  # fmt: skip


def test_one_bad_rate_is_no_reason_to_give_a_batch_size_up() -> None:
    spec, records = load_study(shipped_studies()["quickstart"]), []
    for number, (micro, accumulation, rate, accuracy) in enumerate(_ONE_RATE_EACH):
        config = spec.config({"batch.micro": micro, "batch.accumulation": accumulation, "optimizer.lr": rate})
        seconds = {32: 2.7, 64: 1.9, 128: 1.3, 256: 1.15}[micro]
        measured = {"val_accuracy": accuracy, "train_seconds": seconds, "peak_memory_bytes": 1e5 * micro}
        records.append(make_record(config, measured, number))
    for required in (None, frozenset[tuple[str, int]]()):  # nor where the answer takes both for worse
        sampler = make_sampler(spec, records)
        sampler.require(required)
        point = sampler.propose(len(records))
        assert point is not None
        assert point["batch.micro"] * point["batch.accumulation"] in (64, 512, 1024)  # of which none had three


@pytest.mark.parametrize("outcome", ["crashed", "out_of_memory"])
def test_where_everything_fails_it_goes_on_asking_elsewhere(outcome: Outcome) -> None:
    records = search(make_spec(sampler="cost_aware"), 20, lambda _values: (outcome, {}))
    assert len({make_point_key(record.values) for record in records}) == 20
    assert len({record.config.batch.micro for record in records}) >= 4


@pytest.mark.parametrize("metric", ["test_mse", "log_mse"])
def test_a_quality_outside_of_its_scale_is_searched_all_the_same(metric: str) -> None:
    # a logarithm is not one of a factor, and an error of 0 has none
    spec = make_spec(sampler="cost_aware", script={"command": "python train.py", "metric": metric})
    assert spec.quality.scale == ("log" if metric == "test_mse" else "linear")
    measured = {"quality": 0.0 if metric == "test_mse" else -3.0, "train_seconds": 1.0, "peak_memory_bytes": 10}
    records = search(spec, 12, lambda _values: ("complete", measured))
    assert len({make_point_key(record.values) for record in records}) == 12


def test_equal_trials_and_a_space_of_one_point() -> None:
    spec = make_spec(sampler="cost_aware", space={"batch.micro": {"choice": [64]}})
    records = search(spec, 3, lambda _values: ("complete", ALIKE))
    assert len(records) == 1  # there is no second point
    wide = make_spec(sampler="cost_aware")
    equal = [replace(records[0], number=number) for number in range(12)]
    sampler = make_sampler(wide, equal)
    assert sampler.propose(12) is not None


# ---------------------------------------------------------------------- every sampler


def too_large(values: dict[str, float]) -> tuple[Outcome, dict[str, float | int]]:
    """Everything above 128 runs out of memory, where the objectives seem to pull."""
    micro = values["batch.micro"]
    if micro > 128:
        return "out_of_memory", {}
    return "complete", {"val_accuracy": 0.5 + 0.0005 * micro, "train_seconds": 10.0 / micro, "peak_memory_bytes": 5}


@pytest.mark.parametrize(
    ("sampler", "count", "blind", "most"), [("tpe", 120, 5, 20), ("nsga2", 120, 5, 20), ("cost_aware", 40, 0, 12)]
)
def test_infeasible_outcomes_are_learned_from(sampler: str, count: int, blind: int, most: int) -> None:
    records = search(make_spec(sampler=sampler, trials=count), count, too_large)
    lost = [item.outcome == "out_of_memory" for item in records]
    assert sum(lost[:30]) > blind  # three of seven sizes are too large, so a blind search keeps losing
    assert sum(lost[-60:]) <= most


def test_tpe_finds_the_better_half_more_often_than_chance() -> None:
    def judge(values: dict[str, float]) -> tuple[Outcome, dict[str, float | int]]:
        return "complete", {"val_accuracy": 1 - abs(np.log10(values["optimizer.lr"]) + 1)}

    spec = make_spec(objectives=["val_accuracy"], trials=60, sampler="tpe")
    rates = [item.config.optimizer.lr for item in search(spec, 60, judge)[30:]]
    assert np.mean([0.03 < lr < 0.33 for lr in rates]) > 0.6  # a third of the range by chance


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "gp", "qmc", "random", "cost_aware"])
def test_a_continued_search_proposes_what_an_unbroken_one_would(sampler: str) -> None:
    spec = make_spec(sampler=sampler, trials=40)
    count = 12 if sampler == "gp" else 30
    records = search(spec, count, too_large)
    for cut in (3, 11, count - 1) if sampler == "cost_aware" else (count - 1,):
        values = make_sampler(spec, records[:cut]).propose(cut)
        assert values is not None
        assert values["batch.micro"] == records[cut].config.batch.micro
        # Optuna's Gaussian process starts its fit from the last one's, an unbroken search from a nearer one.
        tolerance = 1e-2 if sampler == "gp" else 1e-9
        assert values["optimizer.lr"] == pytest.approx(records[cut].config.optimizer.lr, rel=tolerance)


def test_quasi_random_points_fill_the_space_more_evenly_than_random_ones() -> None:
    spec = make_spec(sampler="qmc")
    sampler = make_sampler(spec, [])
    points = [sampler.propose(index) for index in range(64)]
    shares = sorted(spec.space["optimizer.lr"].share(point["optimizer.lr"]) for point in points if point)
    # a scrambled Sobol sequence puts one of 64 points into each of 64 equal parts
    assert [int(share * 64) for share in shares] == list(range(64))


def test_the_window_keeps_the_front_and_the_latest() -> None:
    spec = make_spec(objectives=["val_accuracy", "train_seconds"])
    config = spec.config({"batch.micro": 64, "optimizer.lr": 0.1})
    records = [
        make_record(config, {"val_accuracy": 0.9 if number == 7 else 0.1, "train_seconds": 10.0}, number)
        for number in range(3 * WINDOW)
    ]
    kept = [item.number for item in select_window(records, spec)]
    assert len(kept) <= WINDOW
    assert 7 in kept
    assert kept[-WINDOW // 2 :] == list(range(3 * WINDOW - WINDOW // 2, 3 * WINDOW))
    assert kept == sorted(kept)
    assert len([number for number in kept if number < 1000]) > 100


@pytest.mark.parametrize("rates", [(1e-3, 1e-1), (1e-2, 1e4)])
def test_the_first_proposals_fill_the_range_and_none_repeats_another(rates: tuple[float, float]) -> None:
    space = {"batch.micro": {"log2": [4, 8]}, "optimizer.lr": {"log": list(rates)}}
    spec = make_spec(space=space, trials=20, objectives=["val_accuracy", "train_seconds"])
    for seed in range(3):
        # only rates below 0.1 learn anything
        records = search(spec.model_copy(update={"seed": seed}), 14, lambda values: ("complete", {
            "val_accuracy": 0.9 - 0.1 * abs(np.log10(values["optimizer.lr"] / 0.05)) if values["optimizer.lr"] < 0.5
            else 0.1, "train_seconds": 1.0,
        }))  # fmt: skip
        assert len({record.values["batch.micro"] for record in records[:5]}) == 5
        places = np.log10([record.values["optimizer.lr"] for record in records])
        gaps = np.diff(np.sort([*np.log10(rates), *places[:5]]))
        assert gaps.max() < 0.6 * np.ptp(np.log10(rates))
        sizes = np.log10([record.values["batch.micro"] for record in records])
        apart = np.hypot(places[:, None] - places, sizes[:, None] - sizes)[np.triu_indices(len(records), 1)]
        assert apart.min() >= 0.1 - 1e-9
        assert max(record.measurements["val_accuracy"] for record in records) > 0.87


@pytest.mark.parametrize(("chance", "batches", "best_rate", "changes"), [
    (0.1, [32, 128, 512], 0.05, {}), (0.1, [32, 128, 512], 0.002, {}),  # in the latter nothing learns at the center
    (None, [32, 128], 0.05, {"script": {"command": "python train.py", "metric": "val_loss:min"}}),
])  # fmt: skip
def test_few_trials_begin_each_batch_size_near_the_best_rate(
    chance: float | None, batches: list[int], best_rate: float, changes: dict[str, Any]
) -> None:
    space = {"batch.micro": {"choice": batches}, "optimizer.lr": {"log": [1e-3, 1.0]}}
    spec = make_spec(space=space, trials=8, **changes)
    name, sign = spec.quality.column, spec.quality.sign

    def learn(values: dict[str, Any]) -> float:
        return max(0.8 - 0.9 * abs(np.log10(values["optimizer.lr"] / best_rate)), 0.1)

    for seed in range(4):
        sampler = make_sampler(spec.model_copy(update={"seed": seed}), [], chance=chance)
        records = list[TrialRecord]()
        for index in range(8):
            values = sampler.propose(index)
            assert values is not None
            best = max(records, key=lambda record: learn(record.values), default=None)
            is_new = values["batch.micro"] not in {record.values["batch.micro"] for record in records}
            away = np.log10(values["optimizer.lr"] / (best.values["optimizer.lr"] if best else 1e-1**1.5))
            if is_new and (best is None or learn(best.values) > 0.15):
                assert abs(away) < 0.5
            elif is_new:  # the best one has learned nothing
                assert abs(away) > 0.5
            measured = ALIKE | {name: 0.5 + sign * (learn(values) - 0.5)}
            records.append(make_record(spec.config(values), measured, index))
            sampler.learn(records[-1])


def test_while_nothing_learns_the_search_goes_on_filling_the_space() -> None:
    space = {"batch.micro": {"log2": [4, 6]}, "optimizer.lr": {"log": [1e-4, 1e2]}}
    spec = make_spec(space=space, trials=12, objectives=["val_accuracy", "train_seconds"])
    records = search(spec, 6, lambda _: ("complete", {"val_accuracy": 0.1, "train_seconds": 1.0}))
    places = np.sort(np.log10([record.values["optimizer.lr"] for record in records]))
    assert np.diff([-4.0, *places, 2.0]).max() < 2.5
