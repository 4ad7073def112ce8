"""A study as the text of its TOML file, to download it from the page."""

import json
from collections.abc import Iterator
from typing import Any

from sweep.config.study import StudySpec

_TABLES = ("base", "space")


def write_study(spec: StudySpec) -> str:
    """The TOML text of ``spec``, which :func:`sweep.config.study_file.load_study` reads as the same study."""
    table = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    lines = [f"{name} = {_value(value)}" for name, value in table.items() if name not in _TABLES]
    for name in _TABLES:
        lines += ["", f"[{name}]", *(f"{_key(key)} = {_value(value)}" for key, value in table.get(name, {}).items())]
    return "\n".join(lines) + "\n"


def format_keys(spec: StudySpec) -> Iterator[tuple[str, str]]:
    """Every key that ``spec`` sets or leaves at its default, except name and question, and its value as TOML; those of
    base and space by dotted path."""
    table = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"name", "question"})
    for name, value in table.items():
        if name in _TABLES:
            yield from ((f"{name}.{key}", _value(each)) for key, each in value.items())
        else:
            yield name, _value(value)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{_key(key)} = {_value(each)}" for key, each in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return repr(value)  # inf and nan are numbers of TOML too
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)
