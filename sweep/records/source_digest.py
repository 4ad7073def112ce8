"""Digests of source files and of all that they import from one folder. Nothing is executed.

Comments, docstrings and layout are not part of a digest, because they change no result.
"""

import ast
import hashlib
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent
# The import closure of a trial, and of what a probe and an estimate of memory measure.
TRIAL = ("training/loop/trial.py", "training/ranks/launcher.py")
PROBE = (*TRIAL, "probing/probe.py", "probing/estimate.py")
_OWN_MODULE = re.compile(rf"{_PACKAGE.name}\.training(\.\w+)+")  # in tables, which name functions by text


def digest_code(plugin: str | None = None, start: Sequence[str] = TRIAL, package: Path = _PACKAGE) -> str:
    """64 hexadecimal digits over the files ``start`` of ``package``, all that they import there, and the ``plugin``."""
    parts = (_digest_package(tuple(start), package), sorted(digest_plugin(plugin).items()))
    return hashlib.sha256(str(parts).encode()).hexdigest()


def digest_plugin(path: str | None) -> dict[str, str]:
    """The digest of each source file of a plug-in by its path relative to the plug-in's folder: its own, and the
    modules that it imports from there, the plug-in itself first. Empty without a plug-in."""
    if path is None:
        return {}
    main = Path(path).resolve()
    return _digest_files(main.parent, [main])


@cache
def _digest_package(start: tuple[str, ...], package: Path) -> str:
    # an installed package has its dependencies beside it, which are no part of it
    digests = _digest_files(package.parent, [package / name for name in start], f"{package.name}.")
    return hashlib.sha256(str(sorted(digests.items())).encode()).hexdigest()


def _digest_files(root: Path, start: Sequence[Path], prefix: str = "") -> dict[str, str]:
    # of the files in ``start`` and of all below ``root`` that they import by a name that begins with ``prefix``
    found: dict[str, str] = {}
    pending = list(start)
    while pending:
        file = pending.pop()
        name = file.relative_to(root).as_posix()
        if name in found or not file.is_file():
            continue
        found[name], modules = _parse_source(file.read_bytes())
        pending += [
            path for module in modules if f"{module}.".startswith(prefix) for path in _module_files(root, module)
        ]
    return found


@cache
def _parse_source(content: bytes) -> tuple[str, tuple[str, ...]]:
    # its digest, and the modules that it imports
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError):  # what is wrong with it is reported where it is imported
        return hashlib.sha256(content).hexdigest(), ()
    return hashlib.sha256(ast.unparse(_drop_docstrings(tree)).encode()).hexdigest(), tuple(_imported_names(tree))


def _imported_names(tree: ast.Module) -> Iterator[str]:
    for node in _walk_executed(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names)
        elif isinstance(node, ast.Constant) and (named := _OWN_MODULE.match(str(node.value))):
            yield f"{named[0]}.*"


def _walk_executed(tree: ast.AST) -> Iterator[ast.AST]:
    # without what only a type checker sees
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
            yield node
            yield from _walk_executed(node)


def _module_files(root: Path, name: str) -> Iterator[Path]:
    # the module and the packages above it, with ".*" also all modules of a package; other names are no files
    parts = [part for part in name.split(".") if part]
    for depth in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:depth])
        if place.name == "*":
            yield from sorted(place.parent.glob("*.py"))
        else:
            yield from (path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file())


def _drop_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
    return tree
