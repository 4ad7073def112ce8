"""Where records are: a file, a study's folder, or a database URL."""

import re
from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from sweep.spec.errors import InputError

STORE_FILE = "study.sqlite"
STORE_VARIABLE = "SWEEP_STORE"
_SECRETS = frozenset(("password", "sslpassword", "passwd"))  # as drivers take them after the question mark


def store_path(target: str | Path) -> Path | None:
    """The SQLite file that ``target`` names (a file, a study's folder or an SQLite URL); None for a server's URL."""
    if isinstance(target, str) and "://" in target:
        url = parse_url(target)
        return Path(url.database or "") if url.get_backend_name() == "sqlite" else None
    path = Path(target)
    return path / STORE_FILE if path.is_dir() else path


def parse_url(target: str) -> URL:
    """The parts of a URL. Raises ``InputError``, which does not repeat it: a password may stand in it."""
    try:
        url = make_url(target)
    except (ArgumentError, ValueError):
        raise InputError("the store's URL cannot be read; write sqlite:///FILE or postgresql+psycopg://...") from None
    if "@" in (url.host or ""):
        raise InputError("the store's URL has more than one @; in a password it is written %40.")
    return url


def shown(place: str | Path) -> str:
    """``place`` as messages and pages may show it: a URL, or what is meant as one, without password and options."""
    text = str(place)
    scheme, mark, rest = text.partition("://")
    if not mark and not re.search(":.*@", text):
        return text  # a path
    start = scheme + mark if mark else ""
    credentials, at, address = (rest if mark else text).rpartition("@")
    if "?" in credentials:  # which of both the options belong to cannot be known
        return f"{start}***"
    user, colon, _ = credentials.partition(":")
    return f"{start}{user}{':***' if colon else ''}{at}{address.partition('?')[0]}"


def has_password(target: str) -> bool:
    """Whether a password stands in ``target``."""
    if "://" not in target:
        return False
    url = parse_url(target)
    return bool(url.password) or any(name.lower() in _SECRETS for name in url.query)
