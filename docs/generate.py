"""Writes the tables of these pages from the code, so that they cannot be wrong about it.

    python docs/generate.py            # rewrites what has changed
    python docs/generate.py --check    # exit code 1, and which page, where a table is older than the code

A table stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``; everything else is written by hand.
"""

import ast
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from meanings import MEASURED

from reports.labels import describe_range, format_margin
from sweep.analysis.claims.plans import CLAIMS, count_planned
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.config.tables.datasets import DATASETS
from sweep.config.tables.models import MODELS
from sweep.config.tables.recipes import OPTIMIZERS, SCHEDULES
from sweep.config.trial_config import TrialConfig
from sweep.records.frames import frame_columns
from sweep.records.quality_flags import MEANINGS, is_time_evidence

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parent
Json = dict[str, Any]
_PAGES = ("docs/architecture.md", "docs/reference.md", "docs/studies.md", "README.md")
_RESULTS = ROOT / "benchmarks/results"
_BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
# Names that are checked against a table; a schema does not show them.
_NAMED: dict[str, dict[str, Any]] = {
    "model.name": MODELS,
    "data.name": DATASETS,
    "optimizer.name": OPTIMIZERS,
    "schedule.name": SCHEDULES,
}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


# ---------------------------------------------------------------------- keys


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


# ---------------------------------------------------------------------- records


def metrics() -> str:
    rows = [
        (
            f"`{item.name}`",
            item.unit,
            item.direction or "no objective",
            item.description + (f"; requires {item.requires.text}" if item.requires else ""),
        )
        for item in METRICS.values()
    ]
    return table(("metric", "unit", "better", "meaning"), rows)


def flags() -> str:
    """Every quality flag, and whether the times of a trial that has it alone count."""
    rows = [(f"`{name}`", "yes" if is_time_evidence((name,)) else "no", text) for name, text in MEANINGS.items()]
    return table(("flag", "times count", "meaning"), rows)


_OTHER_UNITS = {
    "learning_rate": "",
    "global_batch_size": "samples",
    "micro_batch": "samples",
    "samples": "samples",
    "epoch": "passes",
    "step": "optimizer steps",
    "num_train": "images",
    "num_validation": "images",
    "num_windows": "count",
    "data_images_per_second": "images/second",
    "eval_images_per_second": "images/second",
}


def frames() -> str:
    """Every frame with its columns, dtypes and units."""
    parts = []
    for name in ("TRIAL", "EVALUATION", "ATTEMPT", "PROBE", "STUDY", "ENVIRONMENT"):
        columns = getattr(frame_columns, f"{name}_COLUMNS")
        rows = [(f"`{item.name}`", item.dtype, _unit(item.name), _missing(item)) for item in columns if _is_own(item)]
        if name == "TRIAL":
            rows.insert(5, ("`config.*`", "by key", "", "a column for each key of [studies.md](studies.md)"))
        title = {"TRIAL": "trials", "STUDY": "studies", "ENVIRONMENT": "environment_rows"}.get(name, name.lower() + "s")
        parts.append(f"`{title}`\n\n" + table(("column", "dtype", "unit", "missing values"), rows))
    return "\n\n".join(parts)


def _is_own(column: frame_columns.FrameColumn) -> bool:
    return not column.name.startswith("config.")


def _missing(column: frame_columns.FrameColumn) -> str:
    return "possible" if column.nullable else ""


def _unit(name: str) -> str:
    if name in METRICS:
        return METRICS[name].unit
    if name in _OTHER_UNITS:
        return _OTHER_UNITS[name]
    return next((unit for unit in ("seconds", "bytes") if f"_{unit}" in name), "nats" if name.endswith("loss") else "")


# ---------------------------------------------------------------------- rooms and commands


def rooms() -> str:
    """Every package of the project with what belongs in it, as its ``__init__`` states it."""
    rows = []
    for package in ("sweep", "reports"):
        for path in sorted((ROOT / package).rglob("__init__.py")):
            text = " ".join((ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").split())
            if path.parent != ROOT / package and "Here belongs" in text:
                rows.append((f"`{path.parent.relative_to(ROOT).as_posix()}`", text))
    return table(("room", "what belongs in it, and what does not"), rows)


def commands() -> str:
    """Every command with its arguments and options, as the command line declares them."""
    from sweep.cli.app import COMMANDS, load_command

    rows: list[tuple[str, ...]] = []
    for name in COMMANDS:
        command = load_command(name)
        shown = [_parameter(item) for item in command.params]
        rows.append((f"`sweep {name}`", " ".join(shown), (command.help or "").replace("\n", " ").replace("  ", " ")))
    return table(("command", "arguments and options", "what it does"), rows)


def _parameter(item: Any) -> str:
    if item.param_type_name == "argument":
        return f"`{item.name.upper()}`" if item.required else f"`[{item.name.upper()}]`"
    takes = "" if item.is_flag else f" {item.metavar or item.name.upper()}"
    return f"`{item.opts[0]}{takes}`"


def claims() -> str:
    """Every claim with its source, what a study has to do, what matters, and the trainings that settle it."""
    rows = []
    for claim in CLAIMS:
        needs = [f"vary `{key}`" for key in claim.varies] + [f"set `{key}`" for key in claim.sets]
        needs += ["measure " + " or ".join(f"`{name}`" for name in claim.metrics)]
        matters = format_margin(claim.unit, claim.matters)
        trainings = claim.design.count_trainings(count_planned(claim))
        range_ = describe_range(claim.unit, *claim.region)
        rows.append(
            (f"`{claim.name}`", claim.statement, claim.published, ", ".join(needs), range_, matters, str(trainings))
        )
    return table(("claim", "statement", "source", "a study has to", "claimed", "matters", "trainings"), rows)


# ---------------------------------------------------------------------- measured


def performance() -> str:
    """The newest committed result of each benchmark on each device."""
    newest: dict[tuple[str, str], Json] = {}
    for path in sorted(_RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if "interval" not in result:  # no ratio; its own page beside it has the figures
            continue
        key = (result["name"], result["environment"]["device"])
        if key not in newest or result["date"] >= newest[key]["date"]:
            newest[key] = result
    rows = [
        (
            MEASURED[name] + _details(result),
            _ratio(result),
            _target(result),
            str(result["interval"]["n"]),
            device,
            result["date"],
        )
        for (name, device), result in newest.items()
    ]
    return table(("measured", "median [95 % interval]", "goal", "n", "device", "date"), rows)


def _ratio(result: Json) -> str:
    interval = result["interval"]
    return f"{interval['median']:.3g} [{interval['low']:.3g}, {interval['high']:.3g}]"


def _details(result: Json) -> str:
    # the coverage of a forecast's interval, and the recorded tables that searches were replayed on
    coverage = result["facts"].get("coverage", "")
    tables = ", ".join(text.partition(":")[0] for text in result["facts"].get("tables", ()))
    return (f"; {coverage}" if coverage else "") + (f"; tables: {tables}" if tables else "")


def _target(result: Json) -> str:
    sign = "≥" if result["better"] == "higher" else "≤"
    return f"{sign} {result['target']:g}" + ("" if result["is_met"] else ", missed")


# ---------------------------------------------------------------------- pages

BLOCKS: dict[str, Callable[[], str]] = {
    "configuration": configuration,
    "study": study,
    "metrics": metrics,
    "flags": flags,
    "frames": frames,
    "rooms": rooms,
    "commands": commands,
    "claims": claims,
    "performance": performance,
}


def fresh(text: str) -> str:
    """``text`` with every generated block made anew."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n\n{found[3]}", text)


def stale_pages() -> dict[Path, str]:
    """The pages whose tables are older than the code, with the text that they should have."""
    found = {}
    for name in _PAGES:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        if (wanted := fresh(text)) != text:
            found[path] = wanted
    return found


def main() -> int:
    stale = stale_pages()
    for path, text in stale.items():
        if "--check" in sys.argv:
            print(f"{path.name} is older than the code; run: python docs/generate.py", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path.name}")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
