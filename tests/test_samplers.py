"""Samplers: what they learn from, what they stay away from, what depends on the index alone."""

import numpy as np
import pytest
from records_factory import make_record, make_spec, search

from sweep.records.messages import Outcome
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


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "gp", "qmc", "random"])
def test_a_continued_search_proposes_what_an_unbroken_one_would(sampler: str) -> None:
    spec = make_spec(sampler=sampler, trials=40)
    count = 14 if sampler == "gp" else 30
    records = search(spec, count, too_large)
    again = make_sampler(spec, records[: count - 1])
    values = again.propose(count - 1)
    assert values is not None
    assert values["batch.micro"] == records[-1].config.batch.micro
    # the Gaussian process starts its fit from the last one's, an unbroken search from a nearer one
    tolerance = 1e-2 if sampler == "gp" else 1e-12
    assert values["optimizer.lr"] == pytest.approx(records[-1].config.optimizer.lr, rel=tolerance)


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
