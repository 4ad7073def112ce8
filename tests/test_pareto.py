"""Dominance against hand-made cases and against the definition."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sweep.analysis.statistics import front_rank, hypervolume, non_dominated, reference_point


def by_definition(values):
    better = [
        [np.all(a <= b) and np.any(a < b) for a in values]  # a dominates b
        for b in values
    ]
    return ~np.array(better, dtype=bool).reshape(len(values), len(values)).any(axis=1)


@settings(max_examples=60, deadline=None)
@given(arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 4)), elements=st.integers(-3, 3).map(float)))
def test_front_is_the_definition(values):
    assert np.array_equal(non_dominated(values), by_definition(values))
    assert np.array_equal(front_rank(values) == 0, by_definition(values))


def test_signs_turn_the_direction():
    values = np.array([[0.9, 10.0], [0.8, 5.0], [0.7, 7.0], [0.9, 12.0]])
    assert non_dominated(values, [-1, 1]).tolist() == [True, True, False, False]
    assert front_rank(values, [-1, 1]).tolist() == [0, 0, 1, 1]


def test_duplicates_stay_together_and_missing_values_never_win():
    values = np.array([[1.0, 2.0], [1.0, 2.0], [np.nan, 0.0], [0.0, -np.inf], [3.0, 3.0]])
    assert non_dominated(values).tolist() == [True, True, False, False, False]
    assert front_rank(values).tolist() == [0, 0, -1, -1, 1]


def test_empty_and_wrong_shapes():
    assert non_dominated(np.zeros((0, 3))).shape == (0,)
    with pytest.raises(ValueError, match="2 objectives require 2 signs, not 3"):
        non_dominated(np.zeros((1, 2)), [1, 1, 1])
    with pytest.raises(ValueError, match="shape"):
        non_dominated(np.zeros(3))


def test_a_front_of_a_hundred_thousand_rows():
    points = np.random.default_rng(0).normal(size=(100_000, 3))
    sphere = points / np.linalg.norm(points, axis=1)[:, None]
    mask = non_dominated(np.abs(sphere) * -1)  # the worst case: every row is on the front
    assert mask.all()


def test_hypervolume_of_two_boxes():
    # boxes 2x1 and 1x2 from the corner (2, 2), overlapping in 1x1
    values = np.array([[0.0, 1.0], [1.0, 0.0], [5.0, 5.0], [np.nan, 0.0]])
    assert hypervolume(values, [2.0, 2.0]) == pytest.approx(3.0)
    assert hypervolume(values * [-1, 1], [-2.0, 2.0], [-1, 1]) == pytest.approx(3.0)
    assert hypervolume(values, [-1.0, -1.0]) == 0.0


def test_reference_point_lies_beyond_the_worst():
    values = np.array([[0.5, 10.0], [0.9, 30.0], [np.nan, 99.0]])
    assert reference_point(values, [-1, 1]) == pytest.approx([0.46, 32.0])
    with pytest.raises(ValueError, match="one row"):
        reference_point(np.array([[np.nan]]))
