"""Samplers: what they learn from, what they avoid, what depends on the index alone; a search for each batch size."""

import math
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records_factory import make_record, make_spec, make_store, search
from test_tuner import run

from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import find_differences
from sweep.records.messages import Outcome
from sweep.records.records import TrialRecord
from sweep.search.sampler import WINDOW, select_window
from sweep.search.samplers import make_sampler


def too_large(values: dict[str, float]) -> tuple[Outcome, dict[str, float | int]]:
    """Everything above 128 runs out of memory, where the objectives seem to pull."""
    micro = values["batch.micro"]
    if micro > 128:
        return "out_of_memory", {}
    return "complete", {"val_accuracy": 0.5 + 0.0005 * micro, "train_seconds": 10.0 / micro, "peak_memory_bytes": 5}


@pytest.mark.parametrize("sampler", ["tpe", "nsga2"])
def test_infeasible_outcomes_are_learned_from(sampler: str) -> None:
    records = search(make_spec(sampler=sampler, trials=120), 120, too_large)
    lost = [item.outcome == "out_of_memory" for item in records]
    assert sum(lost[:30]) > 5  # three of seven sizes are too large, so a blind search keeps losing
    assert sum(lost[-60:]) <= 20


def test_tpe_finds_the_better_half_more_often_than_chance() -> None:
    def judge(values: dict[str, float]) -> tuple[Outcome, dict[str, float | int]]:
        return "complete", {"val_accuracy": 1 - abs(np.log10(values["optimizer.lr"]) + 1)}

    spec = make_spec(objectives=["val_accuracy"], trials=60)
    rates = [item.config.optimizer.lr for item in search(spec, 60, judge)[30:]]
    assert np.mean([0.03 < lr < 0.33 for lr in rates]) > 0.6  # a third of the range by chance


@pytest.mark.parametrize(
    ("sampler", "retune"),
    [*((name, []) for name in ("tpe", "nsga2", "gp", "qmc", "random", "cost_aware")),
     *((name, ["optimizer.lr"]) for name in ("tpe", "cost_aware"))],
)  # fmt: skip
def test_a_continued_search_proposes_what_an_unbroken_one_would(sampler: str, retune: list[str]) -> None:
    spec = make_spec(sampler=sampler, trials=40, retune=retune)
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


def test_the_grid_ends() -> None:
    spec = make_spec(sampler="grid", space={"batch.micro": {"log2": [4, 6]}})
    sampler = make_sampler(spec, [])
    assert sorted(point["batch.micro"] for index in range(3) if (point := sampler.propose(index))) == [16, 32, 64]
    assert sampler.propose(3) is None


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


# ---------------------------------------------------------------------- a search of its own for each batch size


SPACE: dict[str, Any] = {
    "batch.micro": {"log2": [4, 6]}, "batch.accumulation": {"choice": [1, 4]}, "optimizer.lr": {"log": [1e-4, 1.0]},
}  # fmt: skip


def retuning(**fields: Any) -> StudySpec:
    return make_spec(**({"space": SPACE, "retune": ["optimizer.lr"], "objectives": ["val_accuracy"]} | fields))


def best_rate(values: dict[str, Any]) -> float:
    """Grows with the global batch."""
    return float(1e-5 * values["batch.micro"] * values["batch.accumulation"])


def judge(values: dict[str, Any]) -> tuple[Outcome, dict[str, float | int]]:
    return "complete", {"val_accuracy": 0.9 - 0.1 * abs(math.log10(values["optimizer.lr"] / best_rate(values)))}


def by_batch(records: list[TrialRecord]) -> dict[tuple[Any, Any], list[TrialRecord]]:
    found = defaultdict(list)
    for record in records:
        found[record.values["batch.micro"], record.values["batch.accumulation"]].append(record)
    return found


@pytest.mark.parametrize("sampler", ["tpe", "cost_aware"])
def test_each_batch_size_finds_its_own_rate(sampler: str) -> None:
    found = by_batch(search(retuning(sampler=sampler), 120, judge))
    assert {len(records) for records in found.values()} == {20}
    assert len(found) == 6
    for records in found.values():
        later = [record.values["optimizer.lr"] for record in records[-8:]]
        misses = sorted(abs(math.log10(float(lr or 0) / best_rate(records[0].values))) for lr in later)
        assert misses[3] < 0.7  # the range is four decades wide: by chance the half of them is beyond 1


def test_all_batch_sizes_are_asked_with_the_same_quasi_random_rates() -> None:
    found = by_batch(search(retuning(sampler="qmc"), 24, judge))
    rates = [[record.values["optimizer.lr"] for record in records] for records in found.values()]
    assert len(rates) == 6
    assert all(row == rates[0] for row in rates)


def test_a_grid_ends_when_every_batch_size_had_every_rate() -> None:
    spec = retuning(sampler="grid", space=SPACE | {"optimizer.lr": {"choice": [0.01, 0.1]}})
    sampler = make_sampler(spec, [])
    points = [sampler.propose(index) for index in range(12)]
    assert len({repr(sorted(point.items())) for point in points if point}) == 12
    assert sampler.propose(12) is None


def test_what_cannot_be_retuned_is_refused_with_the_remedy() -> None:
    with pytest.raises(InputError, match=r"optimizer\.weight_decay is no parameter of the space"):
        retuning(retune=["optimizer.lr", "optimizer.weight_decay"])
    with pytest.raises(InputError, match=r"batch\.micro is no parameter of the space outside batch"):
        retuning(retune=["batch.micro"])
    with pytest.raises(InputError, match=r"the space has model\.name too; name it"):
        retuning(space=SPACE | {"model.name": {"choice": ["resnet8", "vit_micro"]}})
    with pytest.raises(InputError, match=r"not none; sweep batch\.micro"):
        retuning(space={"optimizer.lr": {"log": [1e-4, 1.0]}})


def test_a_study_without_it_is_the_study_that_it_was() -> None:
    assert find_differences(make_spec(), make_spec()) == []
    assert find_differences(retuning(), retuning(retune=[])) == ["retune: ['optimizer.lr'] -> []"]


def test_a_study_through_the_tuner_gives_each_batch_size_its_trials(tmp_path: Path) -> None:
    spec = retuning(trials=12, confirm={"max_configurations": 0, "seeds": 0})
    with closing(make_store(tmp_path / "study.sqlite", spec)) as store:
        run(store, spec)
        records = store.trial_records("s")
    assert {len(found) for found in by_batch(records).values()} == {2}
    assert {record.outcome for record in records} == {"complete"}
