"""The source files of a plug-in: its own, and the modules that it imports from its folder. Nothing is executed."""

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path


def digest_plugin(path: str | None) -> dict[str, str]:
    """The digest of each source file by its path relative to the plug-in's folder, the plug-in itself first; empty
    without a plug-in.

    Comments, docstrings and layout are not part of it, because they change no result.
    """
    if path is None:
        return {}
    main = Path(path).resolve()
    files = sorted(_find_sources(main), key=lambda file: (file != main, file))
    return {file.relative_to(main.parent).as_posix(): _digest(file) for file in files}


def _find_sources(main: Path) -> set[Path]:
    found: set[Path] = set()
    pending = [main]
    while pending:
        file = pending.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        pending += [path for name in _imported_names(file) for path in _module_files(main.parent, name)]
    return found


def _imported_names(file: Path) -> Iterator[str]:
    tree = _parse(file)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" if node.module else alias.name for alias in node.names)


def _module_files(folder: Path, name: str) -> Iterator[Path]:
    # the module and the packages above it; a name that is none, or of another folder, is no file
    parts = [part for part in name.split(".") if part]
    for depth in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:depth])
        yield from (path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file())


def _digest(file: Path) -> str:
    tree = _parse(file)
    content = file.read_bytes() if tree is None else ast.unparse(_drop_docstrings(tree)).encode()
    return hashlib.sha256(content).hexdigest()[:32]


def _parse(file: Path) -> ast.Module | None:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):
        return None  # what is wrong with it is reported where it is imported


def _drop_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or [ast.Pass()]
    return tree
