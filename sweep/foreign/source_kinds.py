"""Which program wrote a file or folder, and the reader for it."""

from pathlib import Path

from sweep.config.errors import InputError
from sweep.foreign.foreign_table import ForeignTable
from sweep.records.address import STORE_FILE
from sweep.records.frames.exchange import is_export
from sweep.records.schema import VERSIONS

_SQLITE = b"SQLite format 3\0"
_KNOWN = (
    "a CSV, JSON or Parquet file of runs, MLflow's mlruns or database, Optuna's database or journal, or a folder of "
    "TensorBoard's event files"
)


def is_foreign(place: str) -> bool:
    """Whether ``place`` is a file or folder, and not one of this program's records."""
    path = Path(place)
    if "://" in place or not path.exists():
        return False
    if path.is_dir():
        return not ((path / STORE_FILE).exists() or is_export(path)) and _is_foreign_folder(path)
    if _begins_as_sqlite(path):
        from sweep.foreign.sources.mlflow_database import list_tables

        return VERSIONS.name not in list_tables(path)
    return path.suffix != ".sqlite"


def _is_foreign_folder(path: Path) -> bool:
    return any(True for _ in path.iterdir())


def _begins_as_sqlite(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(len(_SQLITE)) == _SQLITE
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}.") from None


def read_foreign_table(place: Path, study: str = "") -> ForeignTable:
    """The runs at ``place``; ``study`` names one where the source holds several.

    Raises:
        InputError: no program is known that writes such a file, or the file is damaged, too large or empty.
    """
    return _read_folder(place, study) if place.is_dir() else _read_file(place, study)


def _read_folder(folder: Path, study: str) -> ForeignTable:
    from sweep.foreign.sources.mlflow_folder import is_mlflow_folder, read_mlflow_folder
    from sweep.foreign.sources.neptune_export import is_neptune_file, read_neptune_export
    from sweep.foreign.sources.tensorboard_events import is_tensorboard_folder, read_tensorboard_events

    if is_mlflow_folder(folder):
        return read_mlflow_folder(folder, study)
    if (folder / _MLFLOW_FILE).is_file():
        return _read_database(folder / _MLFLOW_FILE, study)
    if is_tensorboard_folder(folder):
        return read_tensorboard_events(folder)
    first = next(folder.rglob("*.parquet"), None)
    if first is not None and is_neptune_file(first):
        return read_neptune_export(folder)
    raise InputError(f"{folder}: nothing in it is known as records of runs; give {_KNOWN}.")


_MLFLOW_FILE = "mlflow.db"  # what MLflow names it, and `sweep export --to mlflow`


def _read_file(path: Path, study: str) -> ForeignTable:
    from sweep.foreign.sources.delimited_text import read_delimited
    from sweep.foreign.sources.neptune_export import is_neptune_file, read_neptune_export
    from sweep.foreign.sources.plain_parquet import read_plain_parquet
    from sweep.foreign.sources.wandb_json import read_wandb_json

    if _begins_as_sqlite(path):
        return _read_database(path, study)
    if path.suffix in {".csv", ".tsv"}:
        return read_delimited(path)
    if path.suffix == ".parquet":
        return read_neptune_export(path) if is_neptune_file(path) else read_plain_parquet(path)
    if _is_journal(path):
        from sweep.foreign.sources.optuna_studies import read_optuna_journal

        return read_optuna_journal(path, study)
    if path.suffix == ".json":
        return read_wandb_json(path)
    raise InputError(f"{path}: what wrote it is not known; give {_KNOWN}.")


def _is_journal(path: Path) -> bool:
    from sweep.foreign.sources.optuna_journal import is_journal

    with path.open("rb") as file:
        head = file.readline(100_000)
    return is_journal(head.decode("utf-8", "replace"))


def _read_database(path: Path, study: str) -> ForeignTable:
    from sweep.foreign.sources.mlflow_database import MLFLOW_TABLES, list_tables, read_mlflow_database
    from sweep.foreign.sources.optuna_studies import OPTUNA_TABLES, read_optuna_database

    tables = list_tables(path)
    if tables >= MLFLOW_TABLES:
        return read_mlflow_database(path, study)
    if tables >= OPTUNA_TABLES:
        return read_optuna_database(path, study)
    raise InputError(f"{path}: neither a store of this program nor a database of Optuna or MLflow; give {_KNOWN}.")
