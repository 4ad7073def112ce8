"""Converts the space and the records to Optuna: distributions, parameters, finished trials."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from sweep.config.metrics import METRICS
from sweep.config.space import Parameter, Space
from sweep.config.study import StudySpec
from sweep.config.trial_config import Scalar
from sweep.records.messages import INFEASIBLE
from sweep.records.trial_record import TrialRecord

CONSTRAINT = "infeasible"  # Optuna: <= 0 is feasible
NUMBER_ATTRIBUTE = "number"  # user attribute: the number of the trial on record


def make_optuna_name(path: str, parameter: Parameter) -> str:
    """The parameter's name in Optuna, where a power of two is searched by its exponent."""
    return f"{path} (log2)" if parameter.log2 is not None else path


def list_directions(spec: StudySpec) -> list[Literal["minimize", "maximize"]]:
    return [METRICS[name].direction or "minimize" for name in spec.objectives]


def make_distributions(space: Space) -> dict[str, BaseDistribution]:
    """Optuna's distribution of each parameter, by Optuna's name of it."""
    return {make_optuna_name(path, parameter): _make_distribution(parameter) for path, parameter in space.items()}


def _make_distribution(parameter: Parameter) -> BaseDistribution:
    if parameter.choice is not None:
        return CategoricalDistribution(parameter.choice)
    if (whole := parameter.log2 or parameter.int_) is not None:
        return IntDistribution(*whole)
    if parameter.log is not None:
        return FloatDistribution(*parameter.log, log=True)
    assert parameter.float_ is not None
    return FloatDistribution(*parameter.float_)


def to_optuna_params(space: Space, values: Mapping[str, Scalar]) -> dict[str, Any]:
    """Optuna's parameters of a point; ``values`` by dotted path, keys outside the space are left out.

    Raises:
        ValueError: when a value lies outside the space.
    """
    return {make_optuna_name(path, item): _to_optuna(path, item, values[path]) for path, item in space.items()}


def _to_optuna(path: str, parameter: Parameter, value: Scalar) -> Scalar:
    if parameter.choice is not None:
        for choice in parameter.choice:
            # True does not match 1, although Python calls them equal; 1.0 does, because a field of floats records 1 so
            if choice == value and isinstance(choice, bool) == isinstance(value, bool):
                return choice
        raise ValueError(f"{path}: {value!r} is none of {parameter.choice}")
    if not isinstance(value, int | float):
        raise ValueError(f"{path}: {value!r} is no number")
    if parameter.log2 is not None:
        exponent = int(value).bit_length() - 1
        if value != 2**exponent or not parameter.log2[0] <= exponent <= parameter.log2[1]:
            raise ValueError(f"{path}: {value!r} is not in log2 = {list(parameter.log2)}")
        return exponent
    return _within(path, value, parameter.int_ or parameter.log or parameter.float_ or (), parameter.int_ is not None)


def _within(path: str, value: float, bounds: tuple[float, ...], whole: bool) -> float:
    low, high = bounds
    # exp(log(low)) may be less than low by a rounding error
    nearest = min(max(value, low), high)
    if not math.isclose(nearest, value, rel_tol=1e-9, abs_tol=1e-12):
        raise ValueError(f"{path}: {value!r} is outside [{low}, {high}]")
    return int(nearest) if whole else float(nearest)


def from_optuna_params(space: Space, params: Mapping[str, Any]) -> dict[str, Any]:
    """The inverse of :func:`to_optuna_params`: values by dotted path, ready for ``spec.config``."""
    values = {}
    for path, parameter in space.items():
        value = params[make_optuna_name(path, parameter)]
        values[path] = 2**value if parameter.log2 is not None else value
    return values


def read_objectives(record: TrialRecord, spec: StudySpec) -> list[float] | None:
    """The record's objectives in order; None where one was not measured or is not finite."""
    values = [record.measurements.get(name) for name in spec.objectives]
    finite = [float(value) for value in values if value is not None and math.isfinite(value)]
    return finite if len(finite) == len(values) else None


def find_worst_values(records: Iterable[TrialRecord], spec: StudySpec) -> list[float]:
    """The worst value of each objective among complete ``records``; that of its metric where there is none."""
    rows = [values for record in records if record.outcome == "complete" and (values := read_objectives(record, spec))]
    return pick_worst(rows, spec) if rows else [METRICS[name].worst for name in spec.objectives]


def pick_worst(rows: Sequence[list[float]], spec: StudySpec) -> list[float]:
    """The worst value of each objective among ``rows``, shape ``[n, objectives]``."""
    columns = zip((METRICS[name].sign for name in spec.objectives), zip(*rows, strict=True), strict=True)
    return [max(column, key=lambda value: sign * value) for sign, column in columns]


def make_frozen_trial(record: TrialRecord, spec: StudySpec, worst: list[float]) -> FrozenTrial:
    """An ended search trial as Optuna records it.

    A trial that ended because of its configuration is COMPLETE with the ``worst`` values as placeholders and a
    constraint above 0: if it were FAIL, samplers would propose such configurations again and again. A crash is not due
    to the configuration and is FAIL; so is a complete trial that lacks an objective.

    Raises:
        ValueError: the trial still runs or its configuration is outside the space.
    """
    if record.outcome is None:
        raise ValueError(f"trial {record.number} still runs")
    state, values, constraint = _convert_outcome(record, spec, worst)
    return create_trial(
        state=state,
        values=values,
        params=to_optuna_params(spec.space, record.values),
        distributions=make_distributions(spec.space),
        user_attrs=_list_attributes(record),
        constraints=None if constraint is None else {CONSTRAINT: constraint},
    )


def _convert_outcome(
    record: TrialRecord, spec: StudySpec, worst: list[float]
) -> tuple[TrialState, list[float] | None, float | None]:
    if record.outcome in INFEASIBLE:
        return TrialState.COMPLETE, list(worst), 1.0
    if record.outcome == "pruned":
        return TrialState.PRUNED, None, 0.0
    values = read_objectives(record, spec)
    if record.outcome != "complete" or values is None:
        return TrialState.FAIL, None, None
    return TrialState.COMPLETE, values, 0.0


def _list_attributes(record: TrialRecord) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        NUMBER_ATTRIBUTE: record.number,
        "outcome": record.outcome,
        "phase": record.phase,
        "seed": record.values.get("seed"),
    }
    if record.outcome in INFEASIBLE:
        attributes["placeholder_values"] = True
    if record.reused_from:
        attributes["reused_from"] = record.reused_from
    return attributes
