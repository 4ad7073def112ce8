"""``sweep dashboard``: optuna-dashboard on a study's mirror, read-only and on the loopback interface only.

The server runs in this process: no orphan outlives the command, and a database's password is in no argument list.
"""

import contextlib
import sys
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from sweep.config.errors import InputError, hide_credentials
from sweep.records.address import split_study
from sweep.records.store.store import open_store

if TYPE_CHECKING:
    from optuna.storages import RDBStorage

_HOST = "127.0.0.1"  # the dashboard has no login


@final
class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


@final
class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: the page polls every few seconds."""


def serve_dashboard(place: str | Path, port: int = 8080) -> int:
    """Serves the study at ``place`` (folder, SQLite file or URL) until it is interrupted; returns the exit code.

    Raises:
        InputError: no study there, nothing mirrored yet, optuna-dashboard is missing, or the port is taken.
    """
    storage = _open(place)
    try:
        server = _bind(storage, port)
    except BaseException:
        storage.engine.dispose()
        raise
    print(
        f"http://{_HOST}:{server.server_port}/ shows {hide_credentials(place)}, read-only. Ctrl-C ends it.",
        file=sys.stderr,
        flush=True,
    )
    with contextlib.suppress(KeyboardInterrupt), server:
        server.serve_forever()
    storage.remove_session()
    storage.engine.dispose()
    return 0


def _open(place: str | Path) -> "RDBStorage":
    # refuses what is not a study before Optuna sees it
    store = open_store(split_study(place)[0], read_only=True)
    store.close()
    from sweep.search.mirror.optuna_mirror import open_read_only

    return open_read_only(store.url)


def _bind(storage: "RDBStorage", port: int) -> WSGIServer:
    try:
        from optuna_dashboard import wsgi
    except ModuleNotFoundError:
        raise InputError("optuna-dashboard is not installed; pip install 'batch-sweep[dashboard]'.") from None
    try:
        return make_server(_HOST, port, wsgi(storage), server_class=_Server, handler_class=_QuietHandler)
    except OSError as error:
        raise InputError(f"--port {port}: {error.strerror}; give another port.") from None
