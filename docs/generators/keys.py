"""The keys of a configuration and of a study: type, bounds, default, meaning."""

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
        forms = (part, *part.get("anyOf", ()))
        reference = next((form["$ref"] for form in forms if "$ref" in form), "").rpartition("/")[2]
        if reference and "properties" in definitions[reference]:
            yield from keys_of(definitions[reference], definitions, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", part


def describe_values(path: str, part: Json) -> str:
    """The values that a key takes: its choices, or its type and bounds."""
    if path in _NAMED:
        return " ".join(f"`{name}`" for name in sorted(_NAMED[path]))
    forms = dict.fromkeys(_form(form) for form in part.get("anyOf", [part]) if form.get("type") != "null")
    return "; ".join(forms)


_KINDS = {"integer": "whole", "number": "number", "boolean": "true, false", "string": "text"}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "gt": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_MANY = 1e6  # a bound from here on only refuses mistakes


def _form(form: Json) -> str:
    choices = form.get("enum", [form["const"]] if "const" in form else [])
    if choices:
        return " ".join(f"`{choice}`" for choice in choices)
    if form.get("type") == "array":
        return f"list of {'tables' if form['items'].get('type') == 'object' else 'texts'}"
    if form.get("type") == "object":
        return "table"
    bounds = [f"{sign} {_number(form[name])}" for name, sign in _BOUNDS.items() if abs(form.get(name, _MANY)) < _MANY]
    return f"{_KINDS[form['type']]} {', '.join(bounds)}".strip()


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else str(value)


def _default(value: Any) -> str:
    return "" if value is None else f"`{json.dumps(value)}`"


def configuration_keys() -> list[tuple[str, ...]]:
    """Key, values, default and meaning of every field of a configuration."""
    schema = TrialConfig.model_json_schema(by_alias=True)
    defaults = dict(_leaves(TrialConfig().model_dump(mode="json", by_alias=True)))
    return [
        (
            "`script.NAME`" if path == "script" else f"`{path}`",
            describe_values(path, part),
            _default(defaults.get(path)),
            part["description"],
        )
        for path, part in keys_of(schema, schema["$defs"])
    ]


def _leaves(values: Json, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def configuration() -> str:
    return table(("key", "values", "default", "meaning"), configuration_keys())


def study() -> str:
    schema = StudySpec.model_json_schema(by_alias=True)
    rows: list[tuple[str, ...]] = []
    for path, part in keys_of(schema, schema["$defs"]):
        is_required = path in ("name", "script.command")
        default = _default(part["default"]) if "default" in part else "required" if is_required else ""
        rows.append((f"`{path}`", describe_values(path, part), default, part["description"]))
    return table(("key", "values", "default", "meaning"), rows)
