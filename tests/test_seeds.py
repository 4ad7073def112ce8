"""Which configurations are confirmed, in what order, and when a search ends before its last trial."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frames_factory import MadeFrames, frames_of
from records_factory import make_record, make_spec, make_store
from scipy.stats import norm
from test_tuner import by_phase, run

from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig
from sweep.records.messages import Outcome
from sweep.records.records import TrialRecord
from sweep.search.cost_aware import CostAxis, GaussianPrediction, find_curve_gains
from sweep.search.samplers import make_sampler
from sweep.search.seeds import (
    SearchEnd,
    count_confirmations,
    find_candidates,
    find_front,
    list_confirmations,
    measure_time_left,
)
from sweep.search.tuner import Stopped

NOISE = 0.003
OBJECTIVES = ["val_accuracy", "train_seconds"]


def record(spec: StudySpec, number: int, accuracy: float, seconds: float, outcome: Outcome = "complete") -> TrialRecord:
    config = spec.config({"batch.micro": 16, "optimizer.lr": 0.001 * (number + 1)})
    measured = {"val_accuracy": accuracy, "train_seconds": seconds}
    return make_record(config, measured, number, outcome=outcome)


def spec(answer: dict[str, Any] | None = None, **confirm: float) -> StudySpec:
    return make_spec(objectives=OBJECTIVES, confirm=confirm, answer=answer or {})


def frames_for(records: list[TrialRecord], study: StudySpec) -> MadeFrames:
    rows = [
        {f"config.{key}": value for key, value in item.values.items()}
        | {"number": item.number, "phase": item.phase, "outcome": item.outcome, "seed": item.config.seed}
        | {"global_batch_size": item.config.global_batch_size}
        | dict(item.measurements)
        for item in records
    ]
    return frames_of(study, rows)


def confirmations(records: list[TrialRecord], study: StudySpec) -> list[TrialConfig]:
    return list_confirmations(frames_for(records, study), records, study)


def five(study: StudySpec) -> list[TrialRecord]:
    """Numbers 0, 1, 2, 4 are the front: most accurate, compromise, fastest, and one close to the most accurate."""
    points = [(0.95, 10.0), (0.90, 4.0), (0.60, 1.0), (0.85, 9.0), (0.949, 9.9)]
    return [record(study, number, *point) for number, point in enumerate(points)]


def test_only_complete_search_trials_with_every_objective_count() -> None:
    study = spec()
    lost = record(study, 9, 0.99, 0.1, "diverged")
    partial = replace(lost, outcome="complete", measurements={"val_accuracy": 0.99})
    confirmed = replace(lost, outcome="complete", phase="confirm")
    assert [item.number for item in find_front([lost, partial, confirmed], OBJECTIVES)] == []


def test_nothing_is_confirmed_where_nothing_is_complete_or_nothing_is_asked() -> None:
    study = spec()
    assert confirmations([record(study, 0, 0.1, 1.0, "diverged")], study) == []
    assert confirmations(five(study), spec(max_configurations=0)) == []
    assert confirmations(five(study), spec(seeds=0)) == []


def test_what_the_answer_would_name_gets_the_fewest_seeds_first_in_turn() -> None:
    points = {1: (0.95, 10.0), 2: (0.94, 1.0), 3: (0.6, 0.5)}
    records, spent = race(points, max_configurations=2, share=100.0, seeds=3)
    assert spent == {1: 3, 2: 3, 3: 0}  # the useless one is named for nothing
    seeds = [item.config.seed for item in records if item.phase == "confirm"]
    assert seeds == sorted(seeds)
    assert count_confirmations(records) == {"configurations": 2, "seeds": 6}


@pytest.mark.parametrize("outcome", ["diverged", None], ids=["failed", "running"])
def test_trainings_without_a_result_are_not_listed_again_and_count_as_spent(outcome: Outcome | None) -> None:
    study = spec(max_configurations=2, seeds=3, share=100.0)
    records = five(study)
    listed = []
    for number in range(10, 16):
        (config, *_) = confirmations(records, study)
        listed.append((config.optimizer.lr, config.seed))
        records.append(make_record(config, {}, number, phase="confirm", outcome=outcome))
    assert sorted(seed for _, seed in listed) == [1, 1, 2, 2, 3, 3]
    assert len(set(listed)) == 6
    assert confirmations(records, study) == []


def test_where_no_further_configuration_may_begin_the_one_that_did_gets_its_seeds() -> None:
    space = {"batch.micro": {"choice": [32, 64, 128]}, "optimizer.lr": {"log": [0.001, 0.1]}}
    confirm = {"max_configurations": 1, "seeds": 3}
    study = make_spec(objectives=OBJECTIVES, trials=3, space=space, confirm=confirm)
    values, records = [(64, 0.0224, 0.481, 10.9), (32, 0.007, 0.589, 4.2), (128, 0.0011, 0.665, 10.1)], []
    for number, (micro, rate, accuracy, seconds) in enumerate(values):
        config = study.config({"batch.micro": micro, "optimizer.lr": rate})
        records.append(make_record(config, {"val_accuracy": accuracy, "train_seconds": seconds}, number))
    for number, accuracy in ((3, 0.575), (4, 0.242), (5, 0.356)):  # others are more probably right from the first on
        (config, *_) = confirmations(records, study)
        assert config.batch.micro == 128
        measured = {"val_accuracy": accuracy, "train_seconds": 10.1}
        records.append(make_record(config, measured, number, phase="confirm"))
    assert confirmations(records, study) == []


def race(
    points: dict[int, tuple[float, float]], target: float | None = None, **confirm: float
) -> tuple[list[TrialRecord], dict[int, int]]:
    """Confirms to the end a search over all points of a space, by accumulation; the seeds that each got. The time to a
    ``target`` depends on the luck of seeds."""
    space = {"batch.accumulation": {"choice": list(points)}}
    base = {"batch.micro": 16, "optimizer.lr": 0.01, **({"budget.target": target} if target else {})}
    study = make_spec(objectives=OBJECTIVES, confirm=confirm, space=space, base=base)
    records: list[TrialRecord] = []

    def add(config: TrialConfig, phase: str, noise: Any) -> None:
        accuracy, seconds = points[config.num_accumulation]
        measured = {
            "val_accuracy": accuracy + noise[0],
            "train_seconds": seconds * (1 + noise[1] * (50 if target else 1)),
        }
        records.append(make_record(config, measured | {"total_seconds": seconds}, len(records), phase=phase))

    for number in points:
        add(study.config({"batch.accumulation": number}), "search", (0.0, 0.0))
    while left := confirmations(records, study):
        rng = np.random.default_rng((left[0].seed, 10 * left[0].num_accumulation))
        add(left[0], "confirm", NOISE * rng.normal(size=2))
    seeds = [item.config.num_accumulation for item in records if item.phase == "confirm"]
    return records, {number: seeds.count(number) for number in points}


def test_a_close_race_gets_more_seeds_than_what_is_far_behind() -> None:
    # within the tolerance of half a point, at its edge
    points = {1: (0.950, 10.0), 2: (0.9462, 5.0), 3: (0.60, 1.0), 4: (0.80, 4.0)}
    _, spent = race(points, share=100.0, seeds=30)
    assert spent[1] + spent[2] > 8
    assert spent[3] + spent[4] <= 6


def test_a_close_race_to_a_target_gets_more_seeds_whatever_was_reached_beyond_it() -> None:
    _, spent = race({1: (0.95, 10.0), 2: (0.91, 10.5), 3: (0.99, 50.0)}, target=0.9, share=100.0, seeds=30)
    assert spent[1] + spent[2] > 8
    assert spent[3] <= 3


def test_the_share_of_time_ends_the_confirming_but_for_one_that_can_be_named() -> None:
    points = {1: (0.950, 10.0), 2: (0.9462, 5.0), 3: (0.948, 8.0)}
    for share in (0.01, 1.0, 2.0):
        records, spent = race(points, share=share, seeds=30)
        seconds = sum(item.measurements["total_seconds"] for item in records if item.phase == "confirm")
        assert max(spent.values()) >= 3
        assert seconds <= max(share * 23.0, 30.0) + 1e-9
    _, little = race(points, share=0.01, seeds=30)
    assert sorted(little.values()) == [0, 0, 3]


# ---------------------------------------------------------------------- a search that ends early


SPACE = {"batch.micro": {"log2": [4, 7]}, "optimizer.lr": {"log": [0.003, 0.3]}}
PLANNED = 60


def settled_study(tolerance: float = 0.02, **fields: Any) -> Any:
    answer = {"tolerance": {"accuracy": tolerance}}
    return make_spec(**{"trials": PLANNED, "sampler": "cost_aware", "space": SPACE, "answer": answer, **fields})


def run_study(folder: Path, spec: Any) -> tuple[list[TrialRecord], list[str]]:
    with closing(make_store(folder / "study.sqlite", spec)) as store:
        events = run(store, spec)
        first = store.trial_records(spec.name)
        again = run(store, spec)
        assert not [event for event in again if not isinstance(event, Stopped)]  # a resumed study does no more
        assert store.trial_records(spec.name) == first
    return first, [event.reason for event in events if isinstance(event, Stopped)]


def test_a_search_ends_when_everything_is_settled_and_tells_why(tmp_path: Path) -> None:
    records, reasons = run_study(tmp_path, settled_study())
    search, confirm = by_phase(records, "search"), by_phase(records, "confirm")
    assert PLANNED / 2 <= len(search) < PLANNED
    assert len(confirm) >= 3
    assert max(record.number for record in search) < min(record.number for record in confirm)
    assert f"the search ended after {len(search)} of {PLANNED} trials: every statement" in reasons[0]


def test_a_search_goes_on_after_seeds_where_the_luck_of_seeds_is_the_smaller_doubt(tmp_path: Path) -> None:
    records, reasons = run_study(tmp_path, settled_study(tolerance=0.0001))  # which no number of seeds tells
    phases = [record.phase for record in records]
    assert PLANNED / 2 <= phases.count("search") <= PLANNED
    assert "search" in phases[phases.index("confirm") :]
    assert "every statement" not in " ".join(reasons)


def test_a_search_that_does_not_learn_from_the_answer_runs_to_its_end(tmp_path: Path) -> None:
    records, reasons = run_study(tmp_path, settled_study(sampler="random"))
    assert len(by_phase(records, "search")) == PLANNED
    assert not reasons


def test_the_gain_of_the_curve_is_the_expected_improvement_at_its_own_batch_size() -> None:
    prediction = GaussianPrediction(np.array([-0.90, -0.94, -0.80]), np.array([0.02, 0.01, 0.001]), CostAxis(""))
    gains = find_curve_gains(["a", "b", "c"], prediction, {"a": -0.91, "b": -0.95}, least_useful=-0.92)
    # a batch size below the useful accuracy must first reach it; one that cannot gains nothing
    draws = norm.ppf((np.arange(100_000) + 0.5) / 100_000)
    for place, limit in enumerate([-0.92, -0.95, -0.92]):
        values = prediction.mean[place] + prediction.deviation[place] * draws
        assert gains[place] == pytest.approx(np.maximum(limit - values, 0.0).mean(), rel=0.01, abs=1e-9)
    assert gains[2] < 1e-12 < gains[1]


@pytest.mark.parametrize(("num_searched", "timeout", "seconds"), [
    (10, None, 50.0),  # all trials, half of whose time is for seeds
    (5, None, 25.0 + 50.0 + 25.0),  # the time of the five that were left out, and that for their seeds
    (5, "80s", 25.0 + 30.0 + 15.0),  # the search could have taken 30 seconds more
    (5, "1h", 100.0), (5, "40s", 25.0),
])  # fmt: skip
def test_what_an_early_search_leaves_is_for_seeds(num_searched: int, timeout: str | None, seconds: float) -> None:
    study = make_spec(objectives=OBJECTIVES, trials=10, search_timeout=timeout, confirm={"share": 0.5})
    records = [record(study, number, 0.9, 10.0) for number in range(num_searched)]
    assert measure_time_left(records, study).in_all == pytest.approx(seconds)


# micro batch, rate, accuracy and seconds of a real search on CIFAR-10 whose time is nearly over: 128 and 512 have two
# rates each, none of them a good one
_TWO_RATES = [
    (128, 0.00935, 0.508, 67), (32, 0.0905, 0.552, 84), (512, 0.0891, 0.340, 115), (32, 0.00500, 0.547, 78),
    (128, 0.00117, 0.418, 74), (32, 0.0207, 0.592, 77), (32, 0.0262, 0.586, 74), (32, 0.0156, 0.581, 85),
    (512, 0.00103, 0.379, 90),
]  # fmt: skip


def test_the_last_trials_go_where_the_answer_lacks_them() -> None:
    space = {"batch.micro": {"choice": [32, 128, 512, 1024]}, "optimizer.lr": {"log": [0.001, 0.1]}}
    study = make_spec(
        sampler="cost_aware", trials=14, search_timeout=995, space=space, objectives=OBJECTIVES,
        answer={"tolerance": {"accuracy": 0.01}},
    )  # fmt: skip
    records, sampler, end = list[TrialRecord](), make_sampler(study, []), SearchEnd(study)
    for micro, rate, accuracy, seconds in _TWO_RATES:
        config = study.config({"batch.micro": micro, "optimizer.lr": rate})
        measured = {"val_accuracy": accuracy, "train_seconds": seconds, "total_seconds": seconds}
        records.append(make_record(config, measured, len(records)))
        sampler.learn(records[-1])
    for rate in (0.003, 0.03):
        config = study.config({"batch.micro": 1024, "optimizer.lr": rate})
        records.append(make_record(config, {}, len(records), outcome="out_of_memory"))
        sampler.learn(records[-1])
    alone = sampler.propose(len(records))
    assert alone is not None
    assert alone["batch.micro"] == 32  # by the models of the search nothing else can be as good

    end.decide(find_candidates(frames_for(records, study)))  # type: ignore[arg-type]
    assert end.lacking == {("resnet8", 128), ("resnet8", 512), ("resnet8", 1024)}
    sampler.require(end.lacking)
    required = sampler.propose(len(records))
    assert required is not None
    assert required["batch.micro"] in (128, 512)
    sampler.require(frozenset({("resnet8", 1024)}))  # which does not fit
    assert sampler.propose(len(records)) == alone
