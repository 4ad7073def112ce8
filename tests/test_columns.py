"""Columns derived from declarations."""

from typing import Annotated, Literal

import pytest
from pydantic import Field

from sweep.config.metrics import METRICS, UNITS, MetricUnit
from sweep.config.trial import TrialConfig, config_keys, flatten_config
from sweep.records.records import CONFIG_COLUMNS, config_column


def test_every_key_has_a_column_of_its_type() -> None:
    assert tuple(column.path for column in CONFIG_COLUMNS) == config_keys()
    kinds = {column.path: (column.kind, column.always_set) for column in CONFIG_COLUMNS}
    assert kinds["batch.micro"] == ("int", False)
    assert kinds["batch.global"] == ("int", False)
    assert kinds["budget.epochs"] == ("float", False)
    assert kinds["model.norm"] == ("text", True)
    assert kinds["precision.compile"] == ("bool", True)
    defaults = flatten_config(TrialConfig())
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
