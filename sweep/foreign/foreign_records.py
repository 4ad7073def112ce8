"""Frames from the file of another program: reads it, applies the map, or says what the map must state."""

from pathlib import Path

from sweep.config.errors import InputError
from sweep.config.study import WINDOWS_RESERVED_NAMES
from sweep.foreign.column_map import ColumnMap, load_column_map
from sweep.foreign.foreign_frames import make_foreign_frames
from sweep.foreign.map_drafts import ask_for_map
from sweep.foreign.own_runs import find_own_names, restore_frames
from sweep.foreign.source_kinds import read_foreign_table
from sweep.records.frames.study_frames import Frames
from sweep.records.frames.validation import check_frames


def load_foreign_frames(place: str | Path, columns: str | Path | None = None) -> Frames:
    """The runs at ``place`` as frames, with ``source`` set; ``columns`` is the TOML file of the map. Runs that this
    program exported need none.

    Raises:
        InputError: the file cannot be read, there is no map, or the map does not fit; the message names the candidates
            and the remedy.
    """
    path = Path(place)
    mapping = load_column_map(Path(columns)) if columns is not None else ColumnMap()
    try:
        table = read_foreign_table(path, mapping.study)
    except RecursionError:
        raise InputError(f"{path}: its contents are nested too deep for records of runs.") from None
    own = find_own_names(table)
    if own and columns is None:
        frames = restore_frames(table, own)
    elif columns is None:
        raise InputError(ask_for_map(table))
    else:
        frames = make_foreign_frames(table, mapping, mapping.name or _choose_name(path), str(columns))
    check_frames(frames, str(place))
    return frames


def _choose_name(path: Path) -> str:
    name = "".join(each if each.isascii() and (each.isalnum() or each in "_-") else "_" for each in path.resolve().stem)
    is_good = name[:1].isalnum() and name.lower() not in WINDOWS_RESERVED_NAMES
    return (name if is_good else f"runs{name}")[:64]
