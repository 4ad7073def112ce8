"""The rules of the house that no linter holds: its size, and no import cycle, also none inside functions."""

import ast
import json
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from sweep.cli.app import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path for package in ("sweep", "reports", "studies") for path in (ROOT / package).rglob("*.py"))
MODULES = [path for path in FILES if path.name not in {"__init__.py", "__main__.py"}]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[Path, Any]]:
    """Every node of these kinds with its file."""
    for path in FILES:
        yield from ((path, node) for node in ast.walk(tree_of(path)) if isinstance(node, kinds))


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', '')}"


def count_lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def test_every_package_states_what_belongs_in_it() -> None:
    packages = [path for path in FILES if path.name == "__init__.py" and len(path.relative_to(ROOT).parts) > 2]
    silent = [path.as_posix() for path in packages if "Here belongs" not in (ast.get_docstring(tree_of(path)) or "")]
    assert silent == []


def test_no_file_is_over_six_hundred_lines() -> None:
    assert [path.as_posix() for path in FILES if count_lines([path]) > 600] == []


def test_functions_take_at_most_six_parameters() -> None:
    commands = {(entry.module, entry.function) for entry in COMMANDS.values()}  # a parameter is an option there
    wide = []
    for path, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        parameters = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        has_self = bool(parameters) and parameters[0].arg in {"self", "cls"}
        is_command = (dotted(path).removeprefix("sweep.cli."), node.name) in commands
        if len(parameters) - has_self > 6 and not is_command:
            wide.append(place(path, node))
    assert wide == []


def test_dataclasses_of_more_than_three_fields_take_keywords_only() -> None:
    positional = []
    for path, node in nodes(ast.ClassDef):
        texts = [ast.unparse(decorator) for decorator in node.decorator_list]
        is_dataclass = any(text.split("(")[0] in {"dataclass", "dataclasses.dataclass"} for text in texts)
        num_fields = sum(isinstance(part, ast.AnnAssign) for part in node.body)
        if is_dataclass and num_fields > 3 and not any("kw_only=True" in text for text in texts):
            positional.append(place(path, node))
    assert positional == []


def dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, known: set[str]) -> Iterator[str]:
    """The modules that ``path`` imports anywhere in it, those for type checking left out."""
    for node in _run_time_nodes(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield from [found for found in (name if name in known else node.module,) if found in known]


def _run_time_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from _run_time_nodes(child)


def test_no_package_imports_a_private_name_of_another() -> None:
    private = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.module}.{alias.name}"
        for path, node in nodes(ast.ImportFrom)
        if node.module and node.module.split(".")[0] in {"sweep", "reports"}
        for alias in node.names
        if alias.name.startswith("_") and node.module.split(".")[:2] != dotted(path).split(".")[:2]
    ]
    assert private == []


def test_no_import_cycle_not_even_inside_functions() -> None:
    # A package's __init__ loads its public names at first use and is left out.
    known = {dotted(path) for path in MODULES}
    graph = {dotted(path): set(imported(path, known)) - {dotted(path)} for path in MODULES}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")


COUNT_SURFACES = """
import json
from sweep.cli.app import COMMANDS, load_command
from sweep.config.trial import config_keys
from sweep.records.frames import TRIAL_COLUMNS
options = [item for name in COMMANDS for item in load_command(name).params if item.param_type_name == "option"]
print(json.dumps({
    "configuration_keys": len(config_keys()),
    "commands": len(COMMANDS),
    "options": len(options),
    "columns_of_trials": len(TRIAL_COLUMNS),
}))
"""


def measure_house() -> dict[str, int]:
    """The figures of the table in ``pyproject.toml``."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    paths = [ROOT / name for name in tracked if (ROOT / name).is_file()]
    python = [path for path in paths if path.suffix == ".py"]
    product = [path for path in python if path.relative_to(ROOT).parts[0] in {"sweep", "reports"}]
    page = [path for path in paths if path.suffix in {".js", ".css", ".jinja"} and "reports" in path.parts]
    known = {dotted(path) for path in MODULES}
    importers = Counter(name for path in FILES for name in {*imported(path, known)} - {dotted(path)})
    surfaces = subprocess.run(
        [sys.executable, "-c", COUNT_SURFACES], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return {
        "product_lines": count_lines(product),
        "product_files": len(product),
        "modules_with_one_importer": sum(count == 1 for count in importers.values()),
        "page_lines": count_lines(page),
        "test_lines": count_lines(path for path in python if path.relative_to(ROOT).parts[0] == "tests"),
        "benchmark_lines": count_lines(path for path in python if path.relative_to(ROOT).parts[0] == "benchmarks"),
        "words_of_docs": sum(len(path.read_text("utf-8").split()) for path in paths if path.suffix == ".md"),
        **json.loads(surfaces.stdout),
    }


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="the budget counts tracked files")
def test_the_house_keeps_its_budget() -> None:
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["house"]
    size = measure_house()
    assert {name: count for name, count in size.items() if count > budget[name]} == {}, (
        "make something else smaller, or raise the figure in [tool.house] of pyproject.toml and say there why"
    )
