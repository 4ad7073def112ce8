"""The search space: values, bounds, and points that need no earlier point."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sweep.config.space import Parameter, count_grid_points, draw_point, pick_grid_point

SPACE = {
    "batch.micro": Parameter(log2=(5, 10)), "batch.accumulation": Parameter(choice=(1, 2, 4)),
    "optimizer.momentum": Parameter(float_=(0.5, 0.9)), "optimizer.lr": Parameter(log=(1e-3, 1.0)),
}  # fmt: skip


def test_log2_holds_both_ends() -> None:
    values = SPACE["batch.micro"].grid_values
    assert values == (32, 64, 128, 256, 512, 1024)
    assert [SPACE["batch.micro"].at(u) for u in (0.0, 0.999)] == [32, 1024]


def test_log_is_even_in_the_logarithm() -> None:
    assert SPACE["optimizer.lr"].at(0.5) == pytest.approx(math.sqrt(1e-3), rel=1e-12)
    assert SPACE["optimizer.momentum"].at(0.25) == pytest.approx(0.6)


@given(st.floats(0, 0.999999), st.sampled_from(list(SPACE)))
def test_share_inverts_at(u: float, path: str) -> None:
    parameter = SPACE[path]
    value = parameter.at(u)
    back = parameter.share(value)
    if parameter.grid_values is None:
        assert back == pytest.approx(u, abs=1e-9)
    else:
        assert parameter.at(back) == value


@pytest.mark.parametrize(("form", "message"), [
    ({"log2": [5, 5]}, "low < high"), ({"log": [0.0, 1.0]}, "above 0"), ({"log2": [0, 31]}, "exponents from 0 to 30"),
    ({"choice": []}, "one value or more"), ({"choice": [1, 1]}, "each once"),
    ({"log": [0.1, 1.0], "float": [0.1, 1.0]}, "exactly one of"), ({}, "exactly one of"),
    ({"uniform": [0, 1]}, "Extra inputs"), ({"float": [0.0, math.inf]}, "finite"),
])  # fmt: skip
def test_bad_forms(form: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Parameter.model_validate(form)


def test_grid_visits_every_point_once_and_not_in_rows() -> None:
    space = {"a": Parameter(choice=(1, 2, 3)), "b": Parameter(int_=(0, 4)), "c": Parameter(choice=("x", "y"))}
    points = [tuple(pick_grid_point(space, index).values()) for index in range(count_grid_points(space) or 0)]
    assert len(points) == len(set(points)) == 30
    assert len({point[0] for point in points[:4]}) > 1
    assert len({point[2] for point in points[:4]}) > 1
    with pytest.raises(IndexError):
        pick_grid_point(space, 30)


def test_a_continuous_space_has_no_grid() -> None:
    assert count_grid_points(SPACE) is None


def test_random_points_depend_on_seed_and_index_only_and_cover_evenly() -> None:
    assert draw_point(SPACE, 3, 17) == draw_point(SPACE, 3, 17)
    assert draw_point(SPACE, 3, 17) != draw_point(SPACE, 4, 17)
    counts = Counter(draw_point(SPACE, 0, index)["batch.micro"] for index in range(1200))
    assert set(counts) == set(SPACE["batch.micro"].grid_values or ())
    assert min(counts.values()) > 140  # 200 expected, standard deviation 13
