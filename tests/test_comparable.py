"""One row per configuration."""

import math

import numpy as np
import pandas as pd
import pytest
from frames_factory import frames_of, make_frames, make_spec

from sweep.analysis.comparable import summarize_configurations
from sweep.analysis.statistics import configuration_groups

OBJECTIVES = ("val_accuracy", "train_seconds")


def trial(number, accuracy, seconds, lr=0.1, **rest):
    values = {"number": number, "config.optimizer.lr": lr, "val_accuracy": accuracy, "train_seconds": seconds}
    return values | {"global_batch_size": 64} | rest


def confirm(number, accuracy, seconds, seed, lr=0.1, **rest):
    return trial(number, accuracy, seconds, lr, phase="confirm", seed=seed, **{"config.seed": seed}, **rest)


def table(*rows):
    return summarize_configurations(frames_of(make_spec(), list(rows)).trials, OBJECTIVES)


def test_search_only():
    frame = table(trial(0, 0.9, 10.0, 0.1), trial(1, 0.8, 5.0, 0.2), trial(2, 0.7, 6.0, 0.3))
    assert frame["on_front"].tolist() == [True, True, False]
    assert frame["confirmed"].tolist() == [False] * 3
    assert frame["val_accuracy_low"].isna().all()
    assert frame["numbers"].tolist() == [(0,), (1,), (2,)]


def test_confirmed_median_leaves_out_the_seed_that_was_picked():
    frame = table(
        trial(0, 0.99, 10.0), trial(1, 0.8, 5.0, 0.2), confirm(2, 0.90, 11.0, 1), confirm(3, 0.93, 12.0, 2),
        confirm(4, 0.91, 13.0, 3),
    )  # fmt: skip
    first = frame.iloc[0]
    assert first["val_accuracy"] == 0.91
    # three seeds say little of their own spread, so the interval is wider than their range
    assert 0.85 < first["val_accuracy_low"] < 0.90
    assert 0.93 < first["val_accuracy_high"] < 0.96
    assert (first["val_accuracy_search"], first["num_seeds"]) == (0.99, 3)
    assert first["seeds"] == (1, 2, 3)
    assert frame["on_front"].tolist() == [True, False]  # only confirmed rows compete once there are any
    assert frame["on_search_front"].tolist() == [True, True]


def test_one_confirming_seed_has_no_interval_and_failed_seeds_are_counted():
    frame = table(
        trial(0, 0.9, 10.0), confirm(1, 0.8, 11.0, 1), confirm(2, None, None, 2, outcome="diverged"),
        confirm(3, None, None, 3, outcome=None),
    )  # fmt: skip
    row = frame.iloc[0]
    assert (row["val_accuracy"], row["num_seeds"], row["num_failed_seeds"]) == (0.8, 1, 1)
    assert math.isnan(row["val_accuracy_low"])


def test_missing_values_and_no_rows():
    frame = table(trial(0, None, 10.0), trial(1, 0.5, 20.0, 0.2))
    assert frame["on_front"].tolist() == [False, True]
    nothing = table()
    assert len(nothing) == 0
    assert {"on_front", "val_accuracy_low", "num_failed_seeds"} <= set(nothing.columns)
    assert len(table(trial(0, None, None, outcome="crashed"))) == 0


def test_groups_ignore_the_seed_and_join_missing_values():
    trials = pd.DataFrame(
        {"config.a": [1.0, np.nan, np.nan, 1.0], "config.b": ["x", None, None, "y"], "config.seed": [0, 1, 2, 3]}
    )
    assert configuration_groups(trials).tolist() == [0, 1, 1, 2]


@pytest.mark.parametrize("num_search", [1, 60])
def test_made_study(num_search):
    trials = make_frames(num_search, confirm=4).trials
    frame = summarize_configurations(trials, ("val_accuracy", "train_seconds", "peak_memory_bytes"))
    assert frame["num_seeds"].max() == 3
    assert frame["confirmed"].sum() == min(4, num_search)
    assert frame["test_accuracy"].notna().sum() == frame["confirmed"].sum()
