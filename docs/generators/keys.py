"""The keys of a configuration and of a study: type, bounds, default, unit, meaning."""

import json
from collections.abc import Iterator
from typing import Any

from generators.markdown import table

from sweep.config.study import StudySpec
from sweep.config.tables import DATASETS, MODELS, OPTIMIZERS, SCHEDULES
from sweep.config.trial import TrialConfig

Json = dict[str, Any]
# Names that are checked against a table; a schema does not show them.
_NAMED: dict[str, dict[str, Any]] = {
    "model.name": MODELS,
    "data.name": DATASETS,
    "optimizer.name": OPTIMIZERS,
    "schedule.name": SCHEDULES,
}


def keys_of(schema: Json, definitions: Json, prefix: str = "") -> Iterator[tuple[str, Json]]:
    """Every dotted key of a JSON schema with its part of the schema."""
    for name, part in schema["properties"].items():
        reference = part.get("$ref", "").rpartition("/")[2]
        if reference and "properties" in definitions[reference]:
            yield from keys_of(definitions[reference], definitions, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def describe_type(path: str, part: Json) -> tuple[str, str]:
    """The type of a key, and its bounds or choices."""
    if path in _NAMED:
        return "text", " ".join(f"`{name}`" for name in sorted(_NAMED[path]))
    kinds, rules = [], []
    for form in part.get("anyOf", [part]):
        kind, rule = _form(form)
        kinds += [kind] if kind not in kinds else []
        rules += [rule] if rule else []
    return " or ".join(kinds), "; ".join(dict.fromkeys(rules))


_KINDS = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text", "null": "absent"}


def _form(form: Json) -> tuple[str, str]:
    choices = form.get("enum", [form["const"]] if "const" in form else [])
    if choices:
        return "text", " ".join(f"`{choice}`" for choice in choices)
    if form.get("type") == "array":
        kind = "tables" if form["items"].get("type") == "object" else "texts"
        return f"list of {kind}", f"{form.get('minItems', 0)} or more"
    if form.get("type") == "object":
        return "table", ""
    bounds = [
        f"{sign} {_number(form[name])}"
        for sign, names_of in (("≥", ("minimum",)), (">", ("exclusiveMinimum", "gt")), ("≤", ("maximum",)))
        for name in names_of
        if name in form
    ]
    bounds += [f"< {_number(form['exclusiveMaximum'])}"] if "exclusiveMaximum" in form else []
    if "pattern" in form:
        bounds.append(f"matches `{form['pattern']}`")
    return _KINDS[form["type"]], ", ".join(bounds)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _default(value: Any) -> str:
    if value is None:
        return "absent"
    return f"`{json.dumps(value)}`"


def configuration_keys() -> list[tuple[str, ...]]:
    """Key, type, bounds, default, unit and meaning of every field of a configuration."""
    schema = TrialConfig.model_json_schema(by_alias=True)
    defaults = dict(_leaves(TrialConfig().model_dump(mode="json", by_alias=True)))
    rows: list[tuple[str, ...]] = []
    for path, part in keys_of(schema, schema["$defs"]):
        kind = describe_type(path, part)
        rows.append((f"`{path}`", *kind, _default(defaults[path]), part["unit"], part["description"]))
    return rows


def _leaves(values: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def configuration() -> str:
    return table(("key", "type", "bounds or choices", "default", "unit", "meaning"), configuration_keys())


def study() -> str:
    schema = StudySpec.model_json_schema(by_alias=True)
    rows: list[tuple[str, ...]] = []
    for path, part in keys_of(schema, schema["$defs"]):
        default = _default(part["default"]) if "default" in part else ("required" if path == "name" else "empty")
        rows.append((f"`{path}`", *describe_type(path, part), default, part["description"]))
    return table(("key", "type", "bounds or choices", "default", "meaning"), rows)
