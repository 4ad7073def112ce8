"""Records of other programs as one table with a row per run, each read by the library of the program that wrote it.

The libraries see a copy: they write tables, locks and folders beside what they read."""

import ast
import csv
import hashlib
import json
import logging
import os
import re
import shutil
import sqlite3
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, final

import numpy as np
import pandas as pd

from sweep.config.errors import InputError, shorten_text
from sweep.config.metrics import format_count
from sweep.records.address import STORE_FILE
from sweep.records.files import is_export
from sweep.records.frames import MAX_FILE_BYTES, refuse_oversized, refuse_too_many
from sweep.records.schema import VERSIONS

Cell = str | int | float | bool | None
_CURVE_COLUMNS = ["row", "column", "step", "value"]
# The words for how a run ended, of W&B, MLflow and Optuna, in lower case; "" for a run that has not ended.
STATES = {
    "finished": "complete", "complete": "complete", "pruned": "pruned", "failed": "crashed", "fail": "crashed",
    "crashed": "crashed", "killed": "cancelled", "preempted": "cancelled", "running": "", "pending": "",
    "preempting": "", "scheduled": "", "waiting": "",
}  # fmt: skip
_STATE_COLUMNS = ("state", "State", "status")
_MISSING = {"", "nan", "none", "null", "n/a", "na", "-"}
_SETTING_PREFIXES = ("params.", "params_", "config.", "hparams.")
_SQLITE = b"SQLite format 3\0"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff")  # a spreadsheet program writes it where it is asked for Unicode
_PACKED = {
    b"\x1f\x8b": "compressed by gzip", b"BZh": "compressed by bzip2", b"\xfd7zXZ": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd", b"PK\x03\x04": "a spreadsheet or an archive",
    b"\xd0\xcf\x11\xe0": "a spreadsheet",
}  # fmt: skip
_MAX_FILES = 100_000  # of one folder
_META, _EVENTS = "meta.yaml", "events.out.tfevents*"
_PARTS = ("params", "metrics", "tags")  # of a run of MLflow; its artifacts may be large
_KNOWN = (
    "a CSV, TSV, JSON or Parquet file with a row per run, MLflow's mlruns or database, Optuna's database or journal, "
    "or a folder of TensorBoard's event files"
)


@dataclass(frozen=True, kw_only=True)
class ForeignTable:
    """The runs of a source in its order."""

    program: str
    place: str
    digest: str
    cells: pd.DataFrame  # a row per run; Python objects, None where nothing is recorded; the last value of a series
    curves: pd.DataFrame  # the series that were read: row of ``cells``, column, step and value
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(map(str, self.cells))

    @property
    def state(self) -> str:
        """The column that states how a run ended in words of ``STATES``, or ""."""
        columns = [name for name in _STATE_COLUMNS if name in self.cells]
        return next((name for name in columns if STATES.keys() & set(map(str.lower, map(str, self.cells[name])))), "")

    def has_series(self, column: str) -> bool:
        """Whether more than one value per run was read in ``column``."""
        return bool((self.curves["column"] == column).any())


def is_setting(column: str) -> bool:
    """Whether the name says that a program recorded the column as a hyperparameter."""
    return column.startswith(_SETTING_PREFIXES)


class _Read(NamedTuple):
    cells: pd.DataFrame
    curves: Sequence[tuple[int, str, float, float | None]] = ()
    notes: Sequence[str] = ()


class _Source(NamedTuple):
    program: str
    files: Sequence[Path]  # what the digest is of
    read: Callable[[], _Read]


def is_foreign(place: str) -> bool:
    """Whether ``place`` is a file or folder, and not one of this program's records."""
    path = Path(place)
    if "://" in place or not path.exists():
        return False
    if path.is_dir():
        return not ((path / STORE_FILE).exists() or is_export(path)) and any(path.iterdir())
    if _read_head(path) == _SQLITE:
        return VERSIONS.name not in _list_tables(path)
    return path.suffix != ".sqlite"


def read_foreign_table(place: Path | pd.DataFrame, study: str = "", series: Collection[str] = ()) -> ForeignTable:
    """The runs at ``place``. ``study`` names one where the source holds several; ``series`` are the columns of which
    all values are read and not only the last one, where the source has them. Raises ``InputError``: no program is known
    that writes such a file, its package is not installed, or the file is damaged, too large or empty."""
    if isinstance(place, pd.DataFrame):
        digest = hashlib.sha256(place.to_csv().encode()).hexdigest()
        return _tabulate(_Read(place), "pandas", "the DataFrame", digest)
    source = _find_source(place, study, series)
    try:
        read = source.read()
    except InputError:
        raise
    except Exception as error:  # a library may raise anything on a damaged file
        cause = str(getattr(error, "orig", None) or error).strip().partition("\n")[0] or type(error).__name__
        remedy = "Save it as UTF-8." if isinstance(error, UnicodeError) else "Export it again, or repair it."
        raise InputError(
            f"{place}: it cannot be read as {source.program}: {shorten_text(cause.rstrip('.'))}. {remedy}"
        ) from None
    return _tabulate(read, source.program, str(place), _compute_digest(source.files, place))


def _find_source(path: Path, study: str, series: Collection[str]) -> _Source:
    if path.is_dir():
        return _find_folder(path, study, series)
    if not path.exists():
        raise InputError(f"{path}: nothing is there; give {_KNOWN}.")
    refuse_oversized(path)
    suffix, head = path.suffix.lower(), _read_head(path)
    if packed := next((text for begin, text in _PACKED.items() if head.startswith(begin)), ""):
        raise InputError(f"{path}: it is {packed}; unpack it, or save the table of the runs as CSV.")
    if head == _SQLITE:
        tables = _list_tables(path)
        if {"experiments", "runs", "params", "metrics"} <= tables:
            return _Source("MLflow", [path], lambda: _read_mlflow(path, [path], study, series))
        if {"studies", "trials", "trial_params", "trial_values"} <= tables:
            return _Source("Optuna", [path], lambda: _read_optuna(path, study, is_journal=False))
        raise InputError(f"{path}: neither a store of this program nor a database of Optuna or MLflow; give {_KNOWN}.")
    if suffix in {".csv", ".tsv"}:
        return _Source("CSV", [path], lambda: _read_delimited(path))
    if suffix == ".parquet":
        return _Source("Parquet", [path], lambda: _read_parquet(path))
    if _begins_as_journal(path):
        return _Source("Optuna", [path], lambda: _read_optuna(path, study, is_journal=True))
    if suffix in {".json", ".jsonl", ".ndjson"}:
        return _Source("JSON", [path], lambda: _read_json(path))
    raise InputError(f"{path}: what wrote it is not known; give {_KNOWN}.")


def _find_folder(folder: Path, study: str, series: Collection[str]) -> _Source:
    if (folder / "mlflow.db").is_file():
        return _find_source(folder / "mlflow.db", study, series)
    if any(folder.glob(f"*/{_META}")) or any(folder.glob(f"*/*/{_META}")):
        inside = (path for path in folder.rglob("*") if {_META, *_PARTS} & {*path.relative_to(folder).parts})
        files = _list_files(inside)
        return _Source("MLflow", files, lambda: _read_mlflow(folder, files, study, series))
    if files := _list_files(folder.rglob(_EVENTS)):
        return _Source("TensorBoard", files, lambda: _read_tensorboard(folder, files))
    raise InputError(f"{folder}: nothing in it is known as records of runs; give {_KNOWN}.")


# ---------------------------------------------------------------------- one reader per program


def _read_delimited(path: Path) -> _Read:
    # not pandas.read_csv: it fills short rows and renames equal columns without a word
    with path.open(encoding="utf-16" if _read_head(path).startswith(_UTF_16) else "utf-8-sig", newline="") as file:
        first = file.readline()
        delimiter = max(",;\t", key=first.count)
        if delimiter not in first:
            raise InputError(f"{path}: its first line has no comma, semicolon or tab; a table of runs has a header.")
        if not first.startswith("sep="):  # as spreadsheet programs write it
            file.seek(0)
        reader = csv.reader(file, delimiter=delimiter, strict=True)
        names = [name.strip() or f"column {number}" for number, name in enumerate(next(reader), start=1)]
        rows: list[list[str]] = []
        for row in filter(None, reader):
            if len(row) != len(names):
                raise InputError(f"{path}:{reader.line_num}: {len(row)} cells, the header has {len(names)}.")
            rows.append(row)
            refuse_too_many(path, len(rows), len(names))
    return _Read(pd.DataFrame(rows, columns=names, dtype=object))


def _read_json(path: Path) -> _Read:
    # a list of objects, or an object in each line
    text, rows = path.read_text(encoding="utf-8-sig"), list[Any]()
    lines = {1: text} if text.lstrip().startswith("[") else dict(enumerate(text.split("\n"), start=1))
    for number, line in lines.items():
        try:
            found = json.loads(line) if line.strip() else []
        except ValueError as error:
            raise InputError(f"{path}:{number}: it cannot be read as JSON: {error}.") from None
        rows += found if isinstance(found, list) else [found]
    # a single object is a table in another order, or a document with a table in it
    is_single = path.suffix.lower() == ".json" and len(rows) == 1 and not text.lstrip().startswith("[")
    if is_single or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path}: it is no list of runs; write a list of objects, or an object in each line.")
    return _Read(pd.DataFrame({"": rows}, dtype=object))


def _read_parquet(path: Path) -> _Read:
    from pyarrow import parquet, types  # 0.2 s, and only these files need it

    metadata = parquet.read_metadata(path)
    num_bytes = sum(metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups))
    refuse_too_many(path, metadata.num_rows, metadata.num_columns, num_bytes)
    # as dictionaries, because a file of kilobytes may repeat one megabyte of text ten million times
    texts = [field.name for field in parquet.read_schema(path) if types.is_string(field.type)]
    return _Read(pd.read_parquet(path, read_dictionary=texts))


def _read_optuna(path: Path, study: str, *, is_journal: bool) -> _Read:
    import optuna
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend
    from sqlalchemy.pool import NullPool

    with _copy_aside([path], path.parent) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        copy = folder / path.name
        if is_journal:
            storage: Any = JournalStorage(JournalFileBackend(str(copy)))
        else:
            try:
                storage = RDBStorage(f"sqlite:///{copy}", engine_kwargs={"poolclass": NullPool})
            except Exception as error:
                remedy = "copy it, and upgrade the copy: optuna storage upgrade --storage sqlite:///COPY"
                remedy = "install a newer Optuna" if "install -U" in str(error) else remedy
                raise InputError(f"{path}: another version of Optuna wrote it, or it is damaged; {remedy}.") from None
        try:
            filled = [each.study_name for each in optuna.get_all_study_summaries(storage) if each.n_trials]
            name = _choose(filled, study, f"{path}: studies with trials:")
            loaded = optuna.load_study(study_name=name, storage=storage)
            cells = loaded.trials_dataframe(("number", "state", "value", "duration", "params", "user_attrs"))
            points = [sorted(trial.intermediate_values.items()) for trial in loaded.trials]
        finally:
            if not is_journal:
                storage.remove_session()
                storage.engine.dispose()
    cells["duration_seconds"] = pd.to_timedelta(cells.pop("duration")).dt.total_seconds()
    if any(points):
        cells["intermediate_value"] = [values[-1][1] if values else None for values in points]
    curves = [(row, "intermediate_value", step, value) for row, values in enumerate(points) for step, value in values]
    return _Read(cells, curves)


def _read_mlflow(place: Path, files: Sequence[Path], study: str, series: Collection[str]) -> _Read:
    # folders are read only where that is allowed; usage is not reported; no connection is left open
    os.environ |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_DISABLE_TELEMETRY": "true",
                   "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool"}  # fmt: skip
    mlflow = _import_package("mlflow", "mlflow-skinny")
    views = _import_package("mlflow.entities", "mlflow-skinny").ViewType
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    is_folder = place.is_dir()
    base = place if is_folder and not (place / _META).is_file() else place.parent  # all experiments, or one
    left_out = _find_remains(files, base) if is_folder else {}
    whole = [path for path in files if not {path, *path.parents} & left_out.keys()]
    with _copy_aside(whole, base) as folder:
        for meta in folder.glob(f"*/*/{_META}"):  # no run has an empty folder here, and MLflow requires all of them
            for part in (*_PARTS, "artifacts"):
                (meta.parent / part).mkdir(exist_ok=True)
        for meta in folder.rglob(_META):  # what MLflow requires and nobody reads; of two equal keys the last counts
            key = json.dumps(meta.relative_to(folder).parts[0])
            needed = f"artifact_location: ''\nartifact_uri: ''\nuser_id: ''\nend_time: null\nexperiment_id: {key}\n"
            meta.write_bytes(needed.encode() + meta.read_bytes())
        uri = folder.as_uri() if is_folder else f"sqlite:///{folder / place.name}"
        client = mlflow.MlflowClient(tracking_uri=uri)
        every = {each.name: each.experiment_id for each in client.search_experiments(view_type=views.ALL)}
        filled = [name for name, key in every.items() if client.search_runs([key], max_results=1)]
        lost = "".join(
            f" (left out: {path.relative_to(base)}, it has no {_META})" for path in left_out if path.is_dir()
        )
        experiment = every[_choose(filled, study, f"{place}: experiments with runs{shorten_text(lost)}:")]
        runs: list[Any] = []
        token = None
        while not runs or token:  # pages
            page = client.search_runs([experiment], run_view_type=views.ALL, order_by=["start_time"], page_token=token)
            runs, token = [*runs, *page], page.token
        kept = [run for run in runs if run.info.lifecycle_stage != "deleted"]
        rows = [
            {"run_id": run.info.run_id, "status": run.info.status}
            | {f"{part}.{key}": value for part in _PARTS
               for key, value in getattr(run.data, part).items()}
            for run in kept
        ]  # fmt: skip
        curves = [
            (row, f"metrics.{key}", point.step, point.value)
            for row, run in enumerate(kept)
            for key in run.data.metrics
            if f"metrics.{key}" in series
            for point in client.get_metric_history(run.info.run_id, key)
        ]
    notes = [f"{format_count(len(runs) - len(kept), 'deleted run')} left out."] if len(kept) < len(runs) else []
    notes += [f"Left out, because it has no {what}: {path.relative_to(base)}." for path, what in left_out.items()]
    return _Read(pd.DataFrame(rows), curves, notes)


def _find_remains(files: Sequence[Path], base: Path) -> dict[Path, str]:
    # what a program that was killed leaves: a metric without a value, a run or an experiment that is not described
    metrics = [path for path in files if path.relative_to(base).parts[2:3] == ("metrics",)]
    counts = {path: {len(line.split()) for line in path.read_text(errors="replace").splitlines()} for path in metrics}
    torn = {path: "value" for path, found in counts.items() if not found or found - {2, 3, 5}}
    described = {path.parent for path in files if path.name == _META and path.stat().st_size}
    inner = [path.relative_to(base).parts for path in files]
    of_runs = [parts for parts in inner if {*parts[2:3]} & {*_PARTS} and parts[0] not in (".trash", "models")]
    folders = {base.joinpath(*parts[:depth]) for parts in of_runs for depth in (1, 2)}
    return torn | dict.fromkeys(sorted(folders - described), _META)


def _read_tensorboard(folder: Path, files: Sequence[Path]) -> _Read:
    accumulators = _import_package("tensorboard.backend.event_processing.event_accumulator", "tensorboard")
    plugin_data = _import_package("tensorboard.plugins.hparams.plugin_data_pb2", "tensorboard")
    tensors = _import_package("tensorboard.util.tensor_util", "tensorboard")
    settings: dict[Path, dict[str, Any]] = {}
    points: dict[Path, list[tuple[str, float, float]]] = {}
    for path in sorted({file.parent for file in files}):
        log = accumulators.EventAccumulator(str(path), {"scalars": 0, "tensors": 0}, purge_orphaned_data=False).Reload()
        points[path] = [(tag, each.step, each.value) for tag in log.Tags()["scalars"] for each in log.Scalars(tag)]
        for tag in log.Tags()["tensors"]:  # scalars, too, of newer programs
            arrays = [(each.step, tensors.make_ndarray(each.tensor_proto)) for each in log.Tensors(tag)]
            scalars = [(step, array) for step, array in arrays if array.size == 1 and array.dtype.kind in "fiu"]
            points[path] += [(tag, step, float(array.item())) for step, array in scalars]
        start = log.summary_metadata.get("_hparams_/session_start_info")
        if start is not None:
            data = plugin_data.HParamsPluginData.FromString(start.plugin_data.content)
            given = data.session_start_info.hparams.items()
            settings[path] = {
                f"hparams.{name}": getattr(value, str(value.WhichOneof("kind")), None) for name, value in given
            }
    num_left_out = 0
    for path in points.keys() - settings.keys():
        inner = [each for each in settings if each.parent == path]
        if len(inner) == 1:  # as add_hparams of torch writes them
            points[inner[0]] = points[path] + points[inner[0]]
        else:
            num_left_out += 1
    if not settings:
        raise InputError(
            f"{folder}: no run below it has hyperparameters, which the HParams plug-in records; add them, or write a "
            "table of the runs as CSV."
        )
    rows = [
        {"run": path.relative_to(folder).as_posix()} | given | {tag: value for tag, _, value in points[path]}
        for path, given in settings.items()
    ]
    curves = [(row, *point) for row, path in enumerate(settings) for point in points[path]]
    notes = [f"{format_count(num_left_out, 'folder')} of scalars without hyperparameters left out."] * bool(
        num_left_out
    )
    if num_torn := sum(map(_is_torn, files)):
        notes.append(f"{format_count(num_torn, 'event file')} torn: what follows the last whole record is left out.")
    return _Read(pd.DataFrame(rows), curves, notes)


def _is_torn(path: Path) -> bool:
    # a record is its length in 8 bytes, 4 bytes, itself, 4 bytes
    content, at = path.read_bytes(), 0
    while at < len(content):
        at += 16 + int.from_bytes(content[at : at + 8], "little")
    return at > len(content)


def _import_package(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise InputError(
            f"this format requires the package {package}; install the extra: pip install 'batch-sweep[import]'."
        ) from None


def _choose(names: Sequence[str], requested: str, whose: str) -> str:
    if requested in names:
        return requested
    if not names:
        raise InputError(f"{whose} none; it holds no run.")
    if requested or len(names) > 1:
        listed = ", ".join(map(repr, sorted(names)))
        raise InputError(f'{whose} {listed}; name one in the map: study = "...", and with --draft by --study.')
    return names[0]


# ---------------------------------------------------------------------- files and cells


@contextmanager
def _copy_aside(files: Sequence[Path], base: Path) -> Iterator[Path]:
    # a folder with copies of ``files`` and of the write-ahead logs of databases
    with tempfile.TemporaryDirectory(prefix="sweep-", ignore_cleanup_errors=True) as folder:
        for path in files:
            target = Path(folder) / path.relative_to(base)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
            if (log := path.with_name(f"{path.name}-wal")).is_file():
                shutil.copyfile(log, f"{target}-wal")
        yield Path(folder)


def _list_tables(path: Path) -> frozenset[str]:
    refuse_oversized(path)
    try:
        with _copy_aside([path], path.parent) as folder, closing(sqlite3.connect(folder / path.name)) as connection:
            return frozenset(name for (name,) in connection.execute("SELECT name FROM sqlite_master"))
    except (sqlite3.DatabaseError, OSError, ValueError) as error:  # names of tables may be no text
        raise InputError(f"{path}: it cannot be read as an SQLite database: {error}.") from None


def _list_files(paths: Iterator[Path]) -> list[Path]:
    files: list[Path] = []
    num_bytes = 0
    for path in paths:
        if path.is_file():
            files.append(path)
            num_bytes += path.stat().st_size
        if len(files) > _MAX_FILES or num_bytes > MAX_FILE_BYTES:
            raise InputError(f"{path.parent}: with what is before it there are more than {_MAX_FILES} files or "
                             f"{MAX_FILE_BYTES} bytes; give a part of it.")  # fmt: skip
    return sorted(files)


def _read_head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from None


def _begins_as_journal(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.readline(100_000)
    try:
        first = json.loads(head)
    except (ValueError, RecursionError):
        return False
    return isinstance(first, dict) and {"op_code", "worker_id"} <= first.keys()


def _compute_digest(files: Sequence[Path], base: Path) -> str:
    # SHA-256 of a file, or of the names and contents of several
    digests = {}
    for path in files:
        with path.open("rb") as file:
            digests[path] = hashlib.file_digest(file, "sha256").hexdigest()
    if base in digests or len(digests) == 1:
        return next(iter(digests.values()))
    lines = (f"{path.relative_to(base).as_posix()} {digest}\n" for path, digest in digests.items())
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


_DICTIONARY = re.compile(r"""\s*\{\s*(['"].*)?\}\s*""", re.DOTALL)


def _open_dictionaries(cells: pd.DataFrame, place: str) -> Iterator[tuple[str, "pd.Series[Any]"]]:
    """The columns. One whose cells are dictionaries, or the text of such, is a column NAME.KEY for each key."""
    for index, name in enumerate(map(str, cells.columns)):
        column = cells.iloc[:, index].astype(object)
        first = next((cell for cell in column if not _is_missing(cell)), None)
        rows, where = list[Any](), f"{place}: column {name!r}, run"
        if isinstance(first, Mapping) or (isinstance(first, str) and _DICTIONARY.fullmatch(first)):
            rows = [_read_dictionary(cell, f"{where} {number}") for number, cell in enumerate(column, start=1)]
        if not rows or not all(isinstance(row, Mapping) for row in rows):
            yield name, column
            continue
        flat = [dict(_flatten(row, name)) for row in rows]
        keys = dict.fromkeys(key for row in flat for key in row)
        refuse_too_many(Path(place), len(flat), len(keys))
        for key in keys:  # a text in a dictionary may be one itself
            yield from _open_dictionaries(pd.DataFrame({key: [row.get(key) for row in flat]}, dtype=object), place)


def _flatten(row: Mapping[Any, Any], name: str) -> Iterator[tuple[str, Any]]:
    for key, value in row.items():
        inner = f"{name}.{key}" if name else str(key)
        yield from _flatten(value, inner) if isinstance(value, Mapping) and value else [(inner, value)]


def _read_dictionary(cell: Any, where: str) -> Any:
    # an empty one for a missing cell; a cell that is no dictionary as it is
    if isinstance(cell, Mapping) or _is_missing(cell):
        return cell if isinstance(cell, Mapping) else {}
    if not isinstance(cell, str) or not _DICTIONARY.fullmatch(cell):
        return cell
    with suppress(ValueError):
        return json.loads(cell)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a backslash in a text
            return ast.literal_eval(_Literals().visit(ast.parse(cell.strip(), mode="eval")))
    except (ValueError, SyntaxError, TypeError):
        raise InputError(
            f"{where}: the text of a dictionary that cannot be read: {shorten_text(cell)}; write it as JSON, or leave "
            "the column out."
        ) from None


@final
class _Literals(ast.NodeTransformer):
    """The values that Python and NumPy 2 print as no literals: ``nan``, ``inf``, ``np.float64(0.5)``, ``np.True_``."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in {"nan", "inf"} else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Constant(node.attr == "True_") if node.attr in {"True_", "False_"} else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        is_scalar = re.fullmatch(r"(np|numpy)\.(float\d+|u?int\d+|str_|bool_?)", ast.unparse(node.func))
        inner: ast.expr = self.visit(node.args[0]) if is_scalar and len(node.args) == 1 else node
        return inner


def _is_missing(cell: Any) -> bool:
    return not pd.api.types.is_list_like(cell) and _simplify_cell(cell) is None


def _tabulate(source: _Read, program: str, place: str, digest: str) -> ForeignTable:
    cells = source.cells if isinstance(source.cells.index, pd.RangeIndex) else source.cells.reset_index()
    if not len(cells):
        raise InputError(f"{place}: it holds no run.")
    refuse_too_many(Path(place), *cells.shape)
    try:
        opened = list(_open_dictionaries(cells, place))
    except (RecursionError, MemoryError):
        raise InputError(f"{place}: its values are nested too deep.") from None
    names = [name for name, _ in opened]
    if twice := {name for name, count in Counter(names).items() if count > 1}:
        raise InputError(f"{place}: column {min(twice)!r} occurs twice; rename one of them.")
    refuse_too_many(Path(place), len(cells), len(names))
    refuse_too_many(Path(place), len(source.curves), len(_CURVE_COLUMNS))
    columns = dict(opened)
    nested = [name for name, column in columns.items() if column.map(pd.api.types.is_list_like).any()]
    read = {name: [_simplify_cell(cell) for cell in columns[name]] for name in columns if name not in nested}
    if sum(len(cell) for column in read.values() for cell in column if isinstance(cell, str)) > MAX_FILE_BYTES:
        raise InputError(f"{place}: more than {MAX_FILE_BYTES} characters in its cells.")
    curves = pd.DataFrame(list(source.curves), columns=_CURVE_COLUMNS).astype({"step": "float64", "value": "float64"})
    is_known = curves["value"].notna()
    notes = list(source.notes)
    if nested:
        notes.append(f"Columns whose cells are no single values were not read: {', '.join(nested)}.")
    if not is_known.all():
        notes.append(f"{format_count(int((~is_known).sum()), 'point')} of the series without a value left out.")
    return ForeignTable(
        program=program,
        place=place,
        digest=digest,
        cells=pd.DataFrame(read, dtype=object),
        curves=curves[is_known],
        notes=tuple(notes),
    )


def _simplify_cell(cell: Any) -> Cell:
    # programs write a missing value in several ways
    if isinstance(cell, str):
        return None if len(cell) < 20 and cell.strip().lower() in _MISSING else cell
    if pd.isna(cell):
        return None
    value: Any = cell.item() if isinstance(cell, np.generic) else cell
    return value if isinstance(value, int | float | bool) else str(value)
