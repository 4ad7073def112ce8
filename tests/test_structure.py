"""The rules of the house that no linter holds: sizes, unique names, and no import cycle, also none inside functions."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from statistics import quantiles

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(path for package in ("sweep", "reports", "studies") for path in (ROOT / package).rglob("*.py"))
MODULES = [path for path in FILES if path.name not in {"__init__.py", "__main__.py"}]
COMMANDS = ROOT / "sweep/cli/commands"
# Names that mean the same in every package: the protocol of a package, and its literal table.
SHARED_NAMES = {"base", "table"}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    """Every node of these kinds with its file."""
    for path in FILES:
        yield from ((path, node) for node in ast.walk(tree_of(path)) if isinstance(node, kinds))


def functions() -> Iterator[tuple[Path, Function]]:
    for path, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        assert isinstance(node, Function)
        yield path, node


def place(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)} {getattr(node, 'name', '')}"


def num_lines(node: Function) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def is_command(path: Path) -> bool:
    return path.parent == COMMANDS


def test_a_folder_holds_at_most_fifteen_modules() -> None:
    sizes: dict[Path, int] = defaultdict(int)
    for path in MODULES:
        sizes[path.parent] += 1
    crowded = {folder.relative_to(ROOT).as_posix(): size for folder, size in sizes.items() if size > 15}
    assert crowded == {}, "give part of the modules an inner folder, or add to one that is there"


def test_every_package_states_what_belongs_in_it() -> None:
    packages = [path for path in FILES if path.name == "__init__.py" and len(path.relative_to(ROOT).parts) > 2]
    silent = [
        path.as_posix()
        for path in packages
        if "Here belongs" not in (ast.get_docstring(tree_of(path)) or "") and "migrations" not in path.parts
    ]
    assert silent == []


def test_a_module_name_occurs_once() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        if not is_command(path) and path.stem not in SHARED_NAMES:
            homes[path.stem].append(path.relative_to(ROOT).as_posix())
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_a_class_name_occurs_once() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for path, node in nodes(ast.ClassDef):
        homes[getattr(node, "name", "")].append(place(path, node))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_no_file_is_over_three_hundred_lines() -> None:
    assert [path.as_posix() for path in FILES if len(path.read_text(encoding="utf-8").splitlines()) > 300] == []


def test_functions_fit_on_a_screen() -> None:
    sizes = [num_lines(node) for _, node in functions()]
    assert [place(path, node) for path, node in functions() if num_lines(node) > 60] == []
    shares = quantiles(sizes, n=10, method="inclusive")
    assert (shares[4] <= 7, shares[8] <= 17) == (True, True), (shares[4], shares[8])


def test_functions_take_at_most_six_parameters() -> None:
    wide = [
        place(path, node)
        for path, node in functions()
        if not is_command(path)
        and len([*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]) - _has_self(node) > 6
    ]
    assert wide == []


def _has_self(node: Function) -> bool:
    return bool(node.args.args) and node.args.args[0].arg in {"self", "cls"}


def test_dataclasses_of_more_than_three_fields_take_keywords_only() -> None:
    positional = []
    for path, node in nodes(ast.ClassDef):
        assert isinstance(node, ast.ClassDef)
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


def test_no_import_cycle_not_even_inside_functions() -> None:
    # A package's __init__ loads its public names at first use and is left out.
    known = {dotted(path) for path in MODULES}
    graph = {dotted(path): set(imported(path, known)) - {dotted(path)} for path in MODULES}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"import cycle: {' -> '.join(error.args[1])}")
