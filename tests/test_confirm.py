"""Which configurations are confirmed, and in what order."""

import numpy as np
from records_factory import make_spec

from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig, flatten_config
from sweep.records.messages import Outcome
from sweep.records.trial_record import TrialRecord
from sweep.search.seed_allocation.confirmation import (
    choose_candidates,
    collect_costs,
    count_confirmations,
    find_front,
    list_confirmations,
)

NOISE = 0.003

OBJECTIVES = ["val_accuracy", "train_seconds"]


def record(spec: StudySpec, number: int, accuracy: float, seconds: float, outcome: Outcome = "complete") -> TrialRecord:
    config = spec.config({"batch.micro": 16, "optimizer.lr": 0.001 * (number + 1)})
    measured = {"val_accuracy": accuracy, "train_seconds": seconds}
    return TrialRecord(
        number=number, phase="search", values=flatten_config(config), outcome=outcome, measurements=measured
    )


def spec(**confirm: int) -> StudySpec:
    return make_spec(objectives=OBJECTIVES, confirm=confirm)


def five(study: StudySpec) -> list[TrialRecord]:
    """Numbers 0, 1, 2, 4 are the front: most accurate, compromise, fastest, and one close to the most accurate."""
    points = [(0.95, 10.0), (0.90, 4.0), (0.60, 1.0), (0.85, 9.0), (0.949, 9.9)]
    return [record(study, number, *point) for number, point in enumerate(points)]


def test_the_front_minds_the_direction_of_each_objective() -> None:
    study = spec()
    assert [item.number for item in find_front(five(study), OBJECTIVES)] == [0, 1, 2, 4]
    _, costs = collect_costs(five(study), OBJECTIVES)
    assert costs[0].tolist() == [-0.95, 10.0]


def test_only_complete_search_trials_with_every_objective_count() -> None:
    study = spec()
    lost = record(study, 9, 0.99, 0.1, "diverged")
    partial = TrialRecord(
        number=10, phase="search", values=lost.values, outcome="complete", measurements={"val_accuracy": 0.99}
    )
    confirmed = TrialRecord(
        number=11, phase="confirm", values=lost.values, outcome="complete", measurements=dict(lost.measurements)
    )
    assert [item.number for item in find_front([lost, partial, confirmed], OBJECTIVES)] == []


def test_what_the_answer_may_name_comes_first_then_the_rest_of_the_front() -> None:
    # at a useful accuracy only the most accurate and the one close to it; then the best two of the rest
    for limit, numbers in {1: [0], 2: [0, 4], 3: [0, 4, 1], 4: [0, 4, 1, 2], 10: [0, 4, 1, 2]}.items():
        study = spec(max_configurations=limit, seeds=1)
        assert [item.number for item in choose_candidates(five(study), study)] == numbers


def test_the_best_of_each_objective_and_the_compromise_come_first() -> None:
    study = spec(max_configurations=3, seeds=1)
    points = [(0.952, 9.0), (0.955, 10.0), (0.945, 4.0), (0.94, 1.0), (0.5, 0.5)]
    records = [record(study, number, *point) for number, point in enumerate(points)]
    assert [item.number for item in choose_candidates(records, study)] == [1, 3, 2]


def test_nothing_is_confirmed_where_nothing_is_complete_or_nothing_is_asked() -> None:
    study = spec(max_configurations=3, seeds=2)
    assert list_confirmations([record(study, 0, 0.1, 1.0, "diverged")], study) == []
    assert list_confirmations(five(study), spec(max_configurations=0, seeds=2)) == []
    assert list_confirmations(five(study), spec(max_configurations=3, seeds=0)) == []


def test_done_confirmations_are_not_repeated() -> None:
    study = spec(max_configurations=1, seeds=2)
    (first, second) = list_confirmations(five(study), study)
    assert (first.seed, second.seed) == (1, 2)
    done = TrialRecord(number=5, phase="confirm", values=flatten_config(first), outcome="complete", measurements={})
    assert list_confirmations([*five(study), done], study) == [second]


def trained(config: TrialConfig, number: int, accuracy: float, seconds: float) -> TrialRecord:
    noise = NOISE * np.random.default_rng((config.seed, int(1000 * config.optimizer.lr))).normal(size=2)
    measured = {"val_accuracy": accuracy + noise[0], "train_seconds": seconds * (1 + noise[1])}
    return TrialRecord(
        number=number, phase="confirm", values=flatten_config(config), outcome="complete", measurements=measured
    )


def race(study: StudySpec, points: dict[float, tuple[float, float]]) -> tuple[list[TrialRecord], dict[float, int]]:
    """Confirms to the end a search over the points by learning rate; the seeds that each got."""
    records = []
    for number, (lr, point) in enumerate(points.items()):
        config = study.config({"batch.micro": 16, "optimizer.lr": lr})
        measured = {"val_accuracy": point[0], "train_seconds": point[1], "total_seconds": point[1]}
        records.append(
            TrialRecord(
                number=number, phase="search", values=flatten_config(config), outcome="complete", measurements=measured
            )
        )
    while left := list_confirmations(records, study):
        records.append(trained(left[0], len(records), *points[left[0].optimizer.lr]))
    seeds = [record.config.optimizer.lr for record in records if record.phase == "confirm"]
    return records, {lr: seeds.count(lr) for lr in points}


def test_a_place_that_is_settled_gets_no_second_seed_but_for_the_two_cheapest() -> None:
    study = spec(max_configurations=4, seeds=7)
    points = {0.01: (0.95, 10.0), 0.02: (0.90, 4.0), 0.03: (0.60, 1.0), 0.04: (0.80, 2.0)}
    records, spent = race(study, points)
    assert spent == {0.01: 1, 0.02: 1, 0.03: 2, 0.04: 2}
    assert count_confirmations(records) == {"configurations": 4, "seeds": 6}


def test_an_open_place_gets_seeds_until_there_are_no_more() -> None:
    study = spec(max_configurations=4, seeds=7)
    # the first two are one in truth as far as seven seeds can tell, the others far from everything
    points = {0.01: (0.950, 10.00), 0.02: (0.9501, 10.001), 0.03: (0.60, 1.0), 0.04: (0.80, 4.0)}
    _, spent = race(study, points)
    assert (spent[0.03], spent[0.04]) == (2, 2)
    assert max(spent[0.01], spent[0.02]) == 7


def test_what_noise_may_have_kept_from_the_front_is_confirmed_where_there_is_room() -> None:
    points = {0.01: (0.95, 10.0), 0.02: (0.949, 10.1), 0.03: (0.60, 1.0), 0.04: (0.70, 10.5)}
    _, spent = race(spec(max_configurations=4, seeds=3), points)
    assert spent[0.02] >= 2  # beaten by a thousandth
    assert spent[0.04] == 0  # beaten by far
    _, spent = race(spec(max_configurations=2, seeds=3), points)
    assert spent[0.02] == 0


def test_no_configuration_gets_its_second_seed_before_all_have_their_first() -> None:
    records, _ = race(spec(max_configurations=3, seeds=4), {0.01: (0.9, 3.0), 0.02: (0.8, 2.0), 0.03: (0.7, 1.0)})
    seeds = [record.config.seed for record in records if record.phase == "confirm"]
    assert seeds == sorted(seeds)


def test_failed_confirmations_count_as_spent() -> None:
    study = spec(max_configurations=1, seeds=3)
    records = five(study)
    for number in range(10, 13):
        (config, *_) = list_confirmations(records, study)
        records.append(
            TrialRecord(
                number=number, phase="confirm", values=flatten_config(config), outcome="diverged", measurements={}
            )
        )
    assert list_confirmations(records, study) == []
