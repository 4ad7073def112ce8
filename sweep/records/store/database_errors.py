"""Errors of a database: what to report, which are transient, and how long a supervisor retries."""

import logging
import time
from collections.abc import Callable
from typing import final

RUN_AGAIN = "run the same command again"  # the command line, which knows the command, names it in these words' place
BUSY_SECONDS = 60.0
OUTAGE_SECONDS = 300.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_CONNECTION_STATES = ("08", "57P")  # SQLSTATE: connection exceptions; the server is stopped, starting or recovering
_TOO_MANY_CONNECTIONS = "53300"
_log = logging.getLogger(__name__)


class StoreError(RuntimeError):
    """The store refused a read or a write: disk full, locked, unreachable, or a rule of the records broken."""


def cause_of(error: BaseException) -> str:
    """The driver's message on one line."""
    return " ".join(_driver_message(error).split())


def first_cause(error: BaseException) -> str:
    """The first line of the driver's message, without a full stop."""
    return _driver_message(error).strip().partition("\n")[0].rstrip(". ")


def _driver_message(error: BaseException) -> str:
    return str(getattr(error, "orig", None) or error)


def describe_failure(error: BaseException, where: str, shortage: str = "") -> str:
    """The failure with its remedy. ``shortage`` is the result of
    :func:`sweep.records.disk_space.describe_shortage` for a file."""
    cause = cause_of(error)
    remedy = ""
    if is_full(error):
        remedy = f" {shortage}Free some space and {RUN_AGAIN}; what was recorded is kept."
    elif "locked" in cause:
        remedy = f" Another program has held the store for {BUSY_SECONDS:.0f} s; end it and run the command again."
    elif "malformed" in cause or "not a database" in cause:
        remedy = " The file is torn; restore it from a copy."
    return f"{where}: {cause.rstrip('.')}.{remedy}"


def is_full(error: BaseException) -> bool:
    cause = cause_of(error)
    return "is full" in cause or "disk I/O" in cause or "No space left" in cause


def is_outage(error: BaseException) -> bool:
    """Whether a server is unreachable, shut down or starting, so that a retry may succeed."""
    # 0.3 s of processor time, and every command imports this module for its error class
    from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is None:  # nothing came from the server
        return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)
    return str(state).startswith(_CONNECTION_STATES) or state == _TOO_MANY_CONNECTIONS


@final
class RetryPolicy:
    """Waits longer from try to try until the database answers (:meth:`reset`) or the limit is over."""

    def __init__(
        self,
        where: str,
        limit_seconds: float = OUTAGE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._where, self._limit_seconds, self._clock, self._sleep = where, limit_seconds, clock, sleep
        self._since: float | None = None
        self._pause_seconds = _FIRST_PAUSE_SECONDS
        self._is_spent = False

    def wait(self, cause: str) -> None:
        """Pauses before the next try; each pause is twice as long as the one before.

        Raises:
            StoreError: the limit is over, or an earlier wait was broken off.
        """
        now = self._clock()
        if self._since is None:
            self._since = now
            if not self._is_spent:
                _log.warning("%s: %s. Retrying for at most %.0f s.", self._where, cause, self._limit_seconds)
        if self._is_spent or now - self._since >= self._limit_seconds:
            self._is_spent = True  # the clean-up after this error must not wait again
            raise StoreError(
                f"{self._where}: {cause}. It was retried for {now - self._since:.0f} s; what was recorded is kept. "
                f"When the database runs, {RUN_AGAIN}."
            )
        try:
            self._sleep(self._pause_seconds)
        except BaseException:  # an interruption ends the waiting for good
            self._is_spent = True
            raise
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def reset(self) -> None:
        """The database has answered: the next outage has the whole limit again."""
        if self._since is not None:
            _log.warning("%s: it answers again after %.0f s; resuming.", self._where, self._clock() - self._since)
        self._since, self._pause_seconds, self._is_spent = None, _FIRST_PAUSE_SECONDS, False
