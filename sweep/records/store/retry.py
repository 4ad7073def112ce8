"""How long a supervisor waits for its database, and what it says meanwhile."""

import logging
import time
from collections.abc import Callable
from typing import final

from sweep.records.store.database_errors import StoreError

OUTAGE_SECONDS = 300.0
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.1, 5.0
_log = logging.getLogger(__name__)


@final
class Patience:
    """Waits longer from try to try until an answer comes (:meth:`calm`) or the limit is over."""

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
        """Pauses before the next try.

        Raises:
            StoreError: the limit is over, or an earlier wait was broken off.
        """
        now = self._clock()
        if self._since is None:
            self._since = now
            if not self._is_spent:
                _log.warning("%s: %s. Waiting for it, at most %.0f s.", self._where, cause, self._limit_seconds)
        if self._is_spent or now - self._since >= self._limit_seconds:
            self._is_spent = True  # whoever cleans up after this error shall not wait again
            raise StoreError(
                f"{self._where}: {cause}. It was waited for {now - self._since:.0f} s; what was recorded is kept. "
                "Run the same command again when the database runs."
            )
        try:
            self._sleep(self._pause_seconds)
        except BaseException:  # an interruption ends the waiting for good
            self._is_spent = True
            raise
        self._pause_seconds = min(2 * self._pause_seconds, _LONGEST_PAUSE_SECONDS)

    def calm(self) -> None:
        """An answer came."""
        if self._since is not None:
            _log.warning("%s: it answers again after %.0f s; going on.", self._where, self._clock() - self._since)
        self._since, self._pause_seconds, self._is_spent = None, _FIRST_PAUSE_SECONDS, False
