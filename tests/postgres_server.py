"""A real PostgreSQL server on loopback for the length of a test module, from the machine's own binaries."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import text

from sweep.records.store import open_store


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("pg_ctl")
    return found[-1].parent if found else Path(on_path).parent if on_path else None


def _user() -> list[str]:
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return []
    known = {entry.pw_name for entry in pwd.getpwall()}
    return ["setpriv", "--reuid", "postgres" if "postgres" in known else "nobody", "--clear-groups"]


@dataclass(frozen=True)
class Server:
    """A running server. ``url`` is that of its empty database."""

    binaries: Path
    folder: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://sweep:canary@127.0.0.1:{self.port}/sweep"

    def start(self) -> None:
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={self.folder} -c fsync=off"
        self._control("-l", self.folder / "log", "-o", options, "start")

    def stop(self) -> None:
        """As a crash: whatever was not on record is lost."""
        self._control("-m", "immediate", "stop")

    def run(self, program: str, *arguments: str | Path) -> None:
        command = [*_user(), self.binaries / program, *arguments]
        subprocess.run(list(map(str, command)), cwd=self.folder, check=True, capture_output=True, timeout=60)

    def _control(self, *arguments: str | Path) -> None:
        self.run("pg_ctl", "-D", self.folder / "data", "-w", *arguments)


@pytest.fixture(scope="module")
def postgres() -> Iterator[Server]:
    """A server with an empty database ``sweep``; skips where there is no server program or driver."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("no PostgreSQL server program on this machine")
    pytest.importorskip("psycopg", reason="the extra [postgres] is not installed")
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        server = Server(binaries, Path(name), _free_port())
        if os.geteuid() == 0:
            entry = pwd.getpwnam(_user()[2])
            os.chown(name, entry.pw_uid, entry.pw_gid)
        server.run("initdb", "-D", server.folder / "data", "-U", "sweep", "--auth=trust", "--no-sync", "-E", "UTF8")
        server.start()
        try:
            server.run("createdb", "-h", "127.0.0.1", "-p", str(server.port), "-U", "sweep", "sweep")
            yield server
        finally:
            server.stop()


@pytest.fixture
def url(postgres: Server) -> Iterator[str]:
    """The URL of :func:`postgres`, whose database is empty again afterwards."""
    yield postgres.url
    with closing(open_store(postgres.url, create=True)) as store, store.database.transaction() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
