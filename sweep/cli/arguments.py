"""The commands' arguments: the options that several commands share, and what values mean."""

import os
import re
import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sweep.config.errors import InputError, hide_credentials
from sweep.config.sections import escape_bytes, parse_seconds
from sweep.config.study_file import check_keys, check_root, load_study, read_toml
from sweep.config.trial import TrialConfig, build_config, replace_keys
from sweep.records.address import STORE_VARIABLE

if TYPE_CHECKING:
    from sweep.records.frames import Frames


RUNS = Path("runs")

StudyFile = Annotated[str, typer.Argument(help="Shipped study (see `sweep list`) or .toml file.")]
BaseStudy = Annotated[str | None, typer.Argument(help="Study whose base configuration to start from.")]
RecordedStudy = Annotated[
    str,
    typer.Argument(help="Study: its name under the root, its file, its folder, a database URL or SWEEP_STORE#NAME."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Value of a key of the configuration or study; repeatable."),
]
Root = Annotated[Path, typer.Option(help="Folder of all studies.")]
On = Annotated[
    str, typer.Option(metavar="DEVICE|FILE", help="Device (auto, cpu, cuda, cuda:N), or TOML file of an executor.")
]
Plugin = Annotated[Path | None, typer.Option(help="Python file that adds models or data sets.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]


def parse_sets(pairs: list[str] | None, option: str = "--set") -> dict[str, Any]:
    """``["batch.micro=64", "data.name=digits"]`` as a dictionary; values are TOML, and bare words are strings. Raises
    ``InputError``: a pair has no ``=`` or names a key twice."""
    changes: dict[str, Any] = {}
    for pair in pairs or ():
        key, separator, text = escape_bytes(pair).partition("=")
        key = key.strip().removeprefix("base.")
        if not separator or not key:
            raise InputError(f"{option} {pair!r}: write it as dotted.key=value, for example {option} batch.micro=64.")
        if key in changes:
            raise InputError(f"{option} {key}: given twice; keep one.")
        changes[key] = _parse_value(text.strip())
    return changes


def _parse_value(text: str) -> Any:
    """A TOML value, or the text itself where it is none."""
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return table["value"] if table.keys() == {"value"} else text


def parse_duration(text: str | None, option: str) -> float | None:
    """Seconds from ``90``, ``"90s"``, ``"10m"``, ``"2h"``. Raises ``InputError``: naming the option."""
    if text is None:
        return None
    try:
        seconds = parse_seconds(text)
    except ValueError as error:
        raise InputError(f"{option} {text}: {error}.") from None
    if not isinstance(seconds, float) or seconds <= 0:
        raise InputError(f"{option} {text}: must be above 0.")
    return seconds


def parse_bytes(text: str | None, option: str) -> float | None:
    """Bytes from ``24GiB``, ``800 MiB``, ``24GB`` or a plain number. Raises ``InputError``: naming the option."""
    if text is None:
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?\s*", text, re.IGNORECASE)
    if match is None:
        raise InputError(f"{option} {text}: give a number of bytes or a size like '24GiB', '800MiB'.")
    base = 1024 if match[3] or not match[2] else 1000
    amount = float(match[1]) * float(base) ** " KMGT".index(match[2].upper() or " ")
    if amount <= 0:
        raise InputError(f"{option} {text}: must be above 0.")
    return amount


def list_on_option(on: str) -> tuple[str, ...]:
    """The words of the option ``--on`` in a command that repeats a run; none where it is the default."""
    return () if on == "auto" else ("--on", on)


def write_new_file(path: Path, text: str) -> None:
    """Writes a file that does not exist yet. Raises ``InputError``: it exists, or cannot be written."""
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(f"{path} exists already; choose another name.") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}.") from None


def build_base_config(study: str | None, changes: dict[str, Any]) -> TrialConfig:
    """The base configuration of ``study`` (the defaults without one) with ``changes`` over it. Raises ``InputError``:
    no such study, or an unknown key or bad value."""
    if study is None:
        config = build_config(replace_keys({}, changes), "--set")
    else:
        spec = load_study(study, {})
        if spec.script:
            raise InputError(
                f"study {study}: its trials are a script of yours, which `sweep run` runs, and `sweep check --script` "
                "for seconds; this command is about the project's own models."
            )
        check_keys(changes)
        config = build_config(replace_keys(spec.base, {"seed": spec.seed} | changes), f"study {study}")
    check_root(changes, config.data.name)
    return config


def use_plugin(path: Path | None) -> str | None:
    """Imports the user's module, so that its names are known here; returns its path for the trials' processes."""
    if path is None:
        return None
    from sweep.training.processes import load_plugin

    load_plugin(str(path))
    return str(path.resolve())


def find_records(study: str, root: Path) -> str:
    """Where the records of ``study`` are. ``study`` is a database URL (or ``SWEEP_STORE``, for the URL in the variable
    of this name; a ``#`` and a study's name may follow), the name of a study under ``root``, a path, or a study file.
    Raises ``InputError``: nothing is there."""
    variable, mark, name = study.partition("#")
    if variable == STORE_VARIABLE and os.environ.get(STORE_VARIABLE):
        return os.environ[STORE_VARIABLE] + mark + name
    if "://" in study:
        return study
    if study.endswith(".toml") and _exists(Path(study)) and not Path(study).is_dir():
        return _find_records_of_file(Path(study), root)
    # another folder of this name here, such as one of images, is given as ./NAME
    if Path(study).name == study and any(_exists(root / study / file) for file in ("study.sqlite", "imported.json")):
        return str(root / study)
    if _exists(Path(study)):
        return study
    if _exists(root / study):
        return str(root / study)
    recorded = sorted(path.parent.name for path in root.glob("*/study.sqlite")) if _exists(root) else []
    near = get_close_matches(study, recorded, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise InputError(
        f"{hide_credentials(study)}: no such study folder, here or under {root}; `sweep run` makes one.{hint}"
    )


def _find_records_of_file(path: Path, root: Path) -> str:
    # only the name is read: the rest may need the plug-in that the study was run with
    name = read_toml(path).get("name")
    if not isinstance(name, str) or not name or Path(name).name != name:
        raise InputError(f'{path}: a study file names its study: name = "...".')
    if not _exists(root / name):
        raise InputError(f"{path}: no records of study {name} under {root}; `sweep run {path}` makes them.")
    return str(root / name)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, a zero byte
        return False


def load_records(study: str, root: Path, *, evaluations: bool = True) -> "Frames":
    """The frames of ``study``, with or without its learning curves; ``sweep import`` may have made the study of another
    program's records. Raises ``InputError``: nothing is there, or it cannot be read."""
    from sweep.foreign.sources import is_foreign
    from sweep.records.loading import load_frames

    place = find_records(study, root)
    if is_foreign(place):
        from sweep.foreign.foreign_records import load_foreign_frames

        return load_foreign_frames(place)
    return load_frames(place, evaluations=evaluations)
