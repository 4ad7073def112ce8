"""The configuration of a trial: its keys, the space over them, and the columns that hold them."""

import math
from collections import Counter
from typing import Annotated, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from sweep.config.errors import InputError
from sweep.config.metrics import METRICS, UNITS, MetricUnit
from sweep.config.space import Parameter, count_grid_points, draw_point, pick_grid_point
from sweep.config.trial import TrialConfig, build_config, config_keys, flatten_config, flatten_table, replace_keys
from sweep.records.messages import TrialTask, decode_task, encode_task
from sweep.records.records import CONFIG_COLUMNS, config_column


def test_defaults_are_valid_and_flatten_to_every_key() -> None:
    flat = flatten_config(TrialConfig())
    assert flat["batch.micro"] == 64
    assert flat["batch.global"] is None
    assert tuple(flat) == config_keys()
    assert build_config(flat, "round trip") == TrialConfig()


@pytest.mark.parametrize(("values", "global_batch", "accumulation"), [
    ({"batch.micro": 32, "batch.accumulation": 4}, 128, 4),
    ({"batch.micro": 32, "batch.global": 80}, 80, 3),
    ({"batch.micro": 64, "batch.global": 64}, 64, 1),
    ({"batch.micro": 256, "batch.global": 100}, 100, 1),
])  # fmt: skip
def test_global_batch(values: dict[str, int], global_batch: int, accumulation: int) -> None:
    config = build_config(values, "test")
    assert config.global_batch_size == global_batch
    assert config.num_accumulation == accumulation


def test_one_budget_replaces_the_others() -> None:
    values = replace_keys({"budget.epochs": 3.0, "batch.accumulation": 2}, {"budget.steps": 7, "batch.global": 48})
    config = build_config(values, "test")
    assert (config.budget.epochs, config.budget.steps) == (None, 7)
    assert (config.batch.accumulation, config.batch.global_) == (None, 48)


def test_two_budgets_are_refused() -> None:
    with pytest.raises(InputError, match=r"give one budget, not epochs and steps"):
        build_config({"budget.epochs": 3.0, "budget.steps": 7}, "here")


@pytest.mark.parametrize(("values", "message"), [
    ({"batch.micr": 3}, r"here: unknown key 'batch.micr'. Did you mean 'batch.micro'"),
    ({"batch.micro": 0}, r"here: batch.micro: .*greater than or equal to 1 \(given: 0\)"),
    ({"batch.micro": "64"}, r"batch.micro: .*valid integer"),
    ({"batch.micro": True}, r"batch.micro: .*valid integer"),
    ({"optimizer.lr": float("nan")}, r"optimizer.lr: .*finite"),
    ({"optimizer.lr": 0.0}, r"optimizer.lr: .*greater than 0"),
    ({"model.name": "resnet9"}, r"model.name: unknown model 'resnet9'. Did you mean 'resnet8'\?"),
    ({"precision.dtype": "int8"}, r"precision.dtype: .*'fp32'"),
])  # fmt: skip
def test_bad_values_name_place_key_value_and_rule(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_config(values, "here")


def test_toml_tables_and_dotted_keys_mean_the_same() -> None:
    assert flatten_table({"batch": {"micro": 8}, "data.name": "digits"}) == {"batch.micro": 8, "data.name": "digits"}


def test_task_survives_json() -> None:
    config = build_config({"batch.global": 96, "optimizer.lr": 1 / 3, "data.root": 'a "b" ü'}, "test")
    task = TrialTask(number=3, config=config, read_test=True)
    assert decode_task(encode_task(task)) == task


# ---------------------------------------------------------------------- the space

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


# ---------------------------------------------------------------------- columns and units


def test_every_key_has_a_column_of_its_type() -> None:
    assert tuple(column.path for column in CONFIG_COLUMNS) == (*config_keys(), "script")
    kinds = {column.path: (column.kind, column.always_set) for column in CONFIG_COLUMNS}
    assert kinds["batch.micro"] == ("int", False)
    assert kinds["batch.global"] == ("int", False)
    assert kinds["budget.epochs"] == ("float", False)
    assert kinds["model.norm"] == ("text", True)
    assert kinds["precision.compile"] == ("bool", True)
    defaults = flatten_config(TrialConfig()) | {"script": None}
    for column in CONFIG_COLUMNS:
        cell = column.to_cell(defaults[column.path])
        assert column.from_cell(cell) == defaults[column.path]


def test_a_literal_beside_a_scalar_is_stored_as_null() -> None:
    column = config_column("batch.micro", Annotated[int, Field(ge=1)] | Literal["auto"])
    assert (column.kind, column.null_value) == ("int", "auto")
    assert [column.to_cell("auto"), column.to_cell(5)] == [None, 5]
    assert [column.from_cell(None), column.from_cell(5)] == ["auto", 5]


@pytest.mark.parametrize("annotation", [int | str, int | None | Literal["auto"], list[int], Literal["a", 1], None])
def test_what_fits_no_column_is_refused_when_it_is_declared(annotation: object) -> None:
    with pytest.raises(TypeError, match=r"model\.x"):
        config_column("model.x", annotation)


def test_every_unit_is_declared() -> None:
    undeclared = {item.unit for item in METRICS.values()} - UNITS.keys()
    assert not undeclared, f"declare {undeclared} in UNITS of sweep/config/metrics.py"


def test_a_unit_of_what_is_minimized_declares_its_worst_value() -> None:
    units = {
        name: UNITS[name] for name in sorted({item.unit for item in METRICS.values() if item.direction == "minimize"})
    }
    undeclared = [name for name, unit in units.items() if not unit.is_share and unit.worst == MetricUnit().worst]
    assert not undeclared, f"give `worst` of {undeclared} in sweep/config/metrics.py, above every possible value"
