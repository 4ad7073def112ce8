"""A user's own models and data sets."""

import importlib.util
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from traceback import extract_tb
from typing import Any

from sweep.config.errors import InputError
from sweep.config.tables.datasets import DATASETS, DatasetEntry
from sweep.config.tables.models import MODELS, ModelEntry
from sweep.records.messages import Task, decode_task


def load_plugin(path: str) -> None:
    """Executes the user's Python file, which adds entries to ``MODELS`` or ``DATASETS``; loading twice does nothing.

    It must run before a configuration that uses the new names is validated.

    Raises:
        InputError: for a missing file, or one that raises.
    """
    file = Path(path).resolve()
    module_name = f"sweep_plugin_{file.stem}"
    loaded = sys.modules.get(module_name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(file):
        return
    spec = importlib.util.spec_from_file_location(module_name, file) if file.suffix == ".py" else None
    if spec is None or spec.loader is None or not file.is_file():
        raise InputError(f"plug-in {path!r} is not a Python file; give the path of a .py file.")
    if str(file.parent) not in sys.path:
        sys.path.append(str(file.parent))  # as for a script, so that it can import the modules beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        with redirect_stdout(sys.stderr):  # standard output is the command's own, which may be JSON
            spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[module_name]
        raise InputError(f"plug-in {path}: {_place(error, file)}{type(error).__name__}: {error}") from error
    _wrap_functions()


def receive_task(data: bytes) -> Task:
    """Decodes a task in the process that carries it out; its configuration may use names that its plug-in defines."""
    if plugin := json.loads(data)["plugin"]:
        load_plugin(plugin)
    return decode_task(data)


def _wrap_functions() -> None:
    # a plug-in may assign a function alone
    models: dict[str, Any] = MODELS
    datasets: dict[str, Any] = DATASETS
    MODELS.update({name: ModelEntry(build=item) for name, item in models.items() if not isinstance(item, ModelEntry)})
    DATASETS.update(
        {name: DatasetEntry(load=item) for name, item in datasets.items() if not isinstance(item, DatasetEntry)}
    )


def _place(error: BaseException, file: Path) -> str:
    lines = [frame.lineno for frame in extract_tb(error.__traceback__) if frame.filename == str(file)]
    if isinstance(error, SyntaxError):
        lines = [error.lineno]
    return f"line {lines[-1]}: " if lines else ""
