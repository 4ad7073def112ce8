"""What the trials of a study read: images, plug-in, code, libraries; and the digests by which a change is noticed.

Source files are parsed and never executed. Comments, docstrings and layout are no part of a digest: they change no
result.
"""

import ast
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from sweep.config.commands import StudyOrigin, shorten_path
from sweep.config.errors import InputError, shorten_text
from sweep.config.trial import TrialConfig, flatten_config, normalize_values

# Where the data lies changes nothing; what it holds is in the data digest. How it is fed (data.placement,
# data.workers) stays in the key: it changes the times that a reused trial brings along.
_LEFT_OUT = frozenset({"data.root"})
# torchvision has the models, NumPy the random numbers that order the images.
_LIBRARIES = ("torch", "torchvision", "numpy")


def trial_key(config: TrialConfig, inputs_digest: str, code_digest: str, versions: Mapping[str, str]) -> str:
    """The content key of a trial, 64 hexadecimal digits: trials of equal key have equal results. It covers the whole
    configuration as it acts, with its seed, the images and weights, the code, and the ``versions`` of libraries.
    """
    content = {
        "config": {
            key: value for key, value in normalize_values(flatten_config(config)).items() if key not in _LEFT_OUT
        },
        "inputs": inputs_digest,
        "code": code_digest,
        "versions": dict(versions),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def list_library_versions() -> dict[str, str]:
    """The public versions of the libraries that decide a result: ``2.13.0+cpu`` and ``2.13.0+cu130`` train alike."""
    return {name: version(name).partition("+")[0] for name in _LIBRARIES}


def environment_digest(environment: dict[str, Any]) -> str:
    """16 hexadecimal digits that are equal for equal environments."""
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:16]


SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """Files or images that no trial uses, for one ``reason``."""

    reason: str
    num_files: int
    examples: tuple[str, ...]  # paths relative to the root


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """The images of a data set, as its trials use them, counted before anything trains. Numbers are None where the set
    cannot be counted."""

    name: str
    root: str = ""  # "" where the set does not depend on it
    num_train: int | None = None  # with data.subset as it is configured
    num_val: int | None = None
    num_test: int | None = None
    num_ignored: int = 0
    # images by class and split, in the order of the labels
    classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    held_out: str = ""  # where validation and test images come from
    # number of images by "width x height", most frequent first, and of "others" where there are very many sizes
    sizes: Mapping[str, int] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)  # number of images by mode: RGB, L, 3 channels, ...
    ignored: tuple[Ignored, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader must know to trust results on it
    digest: str = ""  # equal digests, equal images, labels and splits; "" where that is not known
    # where images of files are kept decoded: their side in pixels, the bytes of all, and the seconds that decoding took
    stored_side: int | None = None
    stored_bytes: int | None = None
    decode_seconds: float | None = field(default=None, compare=False)

    def counts(self) -> str:
        """The images of each split in words, such as ``"1,300 training, 228 validation and 269 test images"``."""
        if self.num_train is None or self.num_val is None or self.num_test is None:
            return "not counted"
        return f"{self.num_train:,} training, {self.num_val:,} validation and {self.num_test:,} test images"

    @property
    def chance(self) -> float | None:
        """The validation accuracy of always naming the most frequent class; None where the classes are not counted."""
        counts = [splits.get("val", 0) for splits in self.classes.values()]
        return max(counts) / sum(counts) if sum(counts) else None

    def is_other_than(self, other: Self) -> bool:
        """Whether the two are known to differ in images, labels or splits."""
        return bool(self.digest and other.digest) and self.digest != other.digest

    def describe(self) -> str:
        """The counts, and the beginning of the digest."""
        return f"{self.counts()} (digest {self.digest[:12] or 'unknown'})"


def read_document(form: Any, value: Any) -> Any:
    """The dataclass or other value of the annotation ``form`` in the JSON ``value``, of this, an earlier or a later
    version. Not by Pydantic, which refuses names of files that are no text. Raises ``AttributeError`` or ``TypeError``:
    ``value`` is none of these."""
    parts = get_args(form)
    if isinstance(form, type) and is_dataclass(form):
        forms = get_type_hints(form)
        return form(**{name: read_document(forms[name], each) for name, each in value.items() if name in forms})
    if get_origin(form) is UnionType:
        return None if value is None else read_document(parts[0], value)
    if get_origin(form) is Mapping:
        return {read_document(parts[0], name): read_document(parts[1], each) for name, each in value.items()}
    if get_origin(form) is tuple and isinstance(value, list | tuple):
        return tuple(read_document(parts[0], each) for each in value)
    if get_origin(form) is tuple or not isinstance(value, form):
        raise TypeError(f"{type(value).__name__} where {form} belongs")
    return value


_PACKAGE = Path(__file__).resolve().parent.parent
# The import closure of a trial, and of what a probe and an estimate of memory measure.
TRIAL = ("training/trial.py", "training/ranks.py")
PROBE = (*TRIAL, "probing/probe.py", "probing/memory.py")
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
    files = [package / name for name in start]
    assert all(map(Path.is_file, files)), "a module that was moved would silently leave every content key"
    digests = _digest_files(package.parent, files, f"{package.name}.")
    return hashlib.sha256(str(sorted(digests.items())).encode()).hexdigest()


def _digest_files(root: Path, start: Sequence[Path], prefix: str = "") -> dict[str, str]:
    # of the files in ``start`` and of all below ``root`` that they import by a name that begins with ``prefix``
    digests: dict[str, str] = {}
    pending = list(start)
    while pending:
        file = pending.pop()
        name = file.relative_to(root).as_posix()
        if name in digests or not file.is_file():
            continue
        digests[name], modules = _parse_source(file.read_bytes())
        pending += [
            path for module in modules if f"{module}.".startswith(prefix) for path in _module_files(root, module)
        ]
    return digests


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
        path = root.joinpath(*parts[:depth])
        if path.name == "*":
            yield from sorted(path.parent.glob("*.py"))
        else:
            yield from (file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file())


def _drop_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or ([] if isinstance(node, ast.Module) else [ast.Pass()])
    return tree


@dataclass(frozen=True, kw_only=True)
class StudyInputs:
    """What the trials read besides the study's file, recorded with the study; and the command line that ran it, so that
    printed commands can repeat it."""

    data: DataSummary | None = None  # None in records that were not made by a run
    plugin: Mapping[str, str] = field(default_factory=dict)  # by path relative to the plug-in's folder, itself first
    script: Mapping[str, str] = field(default_factory=dict)  # the same of a script
    origin: StudyOrigin = field(default_factory=StudyOrigin)

    @property
    def plugin_file(self) -> str:
        """The plug-in's file as the user typed it, otherwise its name; "" without a plug-in."""
        typed = shorten_path(self.origin.plugin) if self.plugin else ""
        return typed or next(iter(self.plugin), "")

    def to_json(self) -> str:
        """The inputs as text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str, where: str) -> Self:
        """The inputs that :meth:`to_json` wrote; none for an empty text. Raises ``InputError``: the text is not one of
        these; ``where`` names its source."""
        try:
            inputs: Self = read_document(cls, json.loads(text or "{}"))
            return inputs
        except (AttributeError, TypeError, ValueError, RecursionError) as error:
            reason = shorten_text(f"{type(error).__name__}: {error}")
            raise InputError(f"{where}: what its trials read is damaged in the records: {reason}.") from None


def find_changed_inputs(old: StudyInputs, new: StudyInputs) -> list[str]:
    """The images and the source files that changed, a line each; what either side does not know is not compared."""
    changed = []
    if old.data and new.data and old.data.is_other_than(new.data):
        changed.append(f"data: {old.data.describe()} -> {new.data.describe()}")
    for kind, before, after in (("plug-in", old.plugin, new.plugin), ("script", old.script, new.script)):
        changed += [
            f"{kind} {name}: {before.get(name, 'absent')[:12]} -> {after.get(name, 'absent')[:12]}"
            for name in sorted({*before, *after} if before and after else ())
            if before.get(name) != after.get(name)
        ]
    return changed
