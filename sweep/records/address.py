"""Where records are: a file, a study's folder, or a database URL."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from sweep.config.errors import InputError

if TYPE_CHECKING:
    from sqlalchemy import URL

STORE_FILE = "study.sqlite"
IMPORTED_FILE = "imported.json"  # beside another program's records, written last: without it a folder is not complete
STORE_VARIABLE = "SWEEP_STORE"
_SECRETS = frozenset(("password", "sslpassword", "passwd"))  # names of drivers' query parameters


def store_path(target: str | Path) -> Path | None:
    """The SQLite file at ``target`` (a file, a study's folder or an SQLite URL); None for the URL of a server."""
    if isinstance(target, str) and "://" in target:
        url = parse_url(target)
        return Path(url.database or "") if url.get_backend_name() == "sqlite" else None
    path = Path(target)
    return path / STORE_FILE if path.is_dir() else path


def parse_url(target: str) -> "URL":
    """The parts of a URL. Raises ``InputError``, which does not quote it, because it may contain a password."""
    from sqlalchemy import make_url  # 0.3 s of processor time, and most commands are given no URL
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(target)
    except (ArgumentError, ValueError):
        raise InputError("the store's URL cannot be read; write sqlite:///FILE or postgresql+psycopg://...") from None
    if "@" in (url.host or ""):
        raise InputError("the store's URL has more than one @; in a password it is written %40.")
    return url


def split_study(place: str | Path) -> tuple[str | Path, str | None]:
    """A database URL and the study after its ``#``, if any; other places unchanged."""
    if match := re.fullmatch(r"(\S+://.*)#([\w-]+)", str(place)):
        return match[1], match[2]
    return place, None


def has_password(text: str) -> bool:
    """Whether ``text`` contains a URL with a password."""
    match = re.search(r"[\w+]+://\S+", text)
    if match is None:
        return False
    try:
        url = parse_url(match[0])
    except InputError:  # an invalid URL may contain one too
        return "@" in match[0]
    return bool(url.password) or any(name.lower() in _SECRETS for name in url.query)
