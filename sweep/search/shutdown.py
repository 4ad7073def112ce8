"""A run is asked to shut down by Ctrl-C, SIGTERM, or SIGUSR1, which clusters send before they take a machine away.

After the first signal, every training finishes its timed window and writes a checkpoint. The second stops everything.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, final

# By signal: the cause of the attempts that it ends, and the exit code of the command.
REASONS: dict[int, tuple[str, int]] = {
    signal.SIGINT: ("interrupted", 130),
    signal.SIGTERM: ("terminated", 143),
    signal.SIGUSR1: ("preempted", os.EX_TEMPFAIL),
}
# A wrapper may forward a signal that the terminal has sent to both.
_SAME_SIGNAL_SECONDS = 0.2


@final
class Shutdown:
    """Whether a run shall shut down: ``cause`` is empty until this is requested."""

    def __init__(self) -> None:
        self.cause = ""
        self.exit_code = 0

    def request(self, number: int) -> None:
        """Notes that signal ``number`` (a key of ``REASONS``) was received."""
        self.cause, self.exit_code = REASONS[number]

    def raise_if_requested(self) -> None:
        """Ends the program as the signal would have done. Raises ``KeyboardInterrupt``: after Ctrl-C; ``SystemExit``:
        after the other signals, with the exit code."""
        if self.cause == "interrupted":
            raise KeyboardInterrupt
        if self.cause:
            raise SystemExit(self.exit_code)


@contextmanager
def shutdown_on_signals(on_request: Callable[[], None] | None = None) -> Iterator[Shutdown]:
    """A shutdown that the first signal requests, inside the block; the second has its usual effect.

    ``on_request`` is called inside the handler of the first. Outside of the main thread, which alone may set handlers,
    signals keep their effect.
    """
    shutdown, requested_at = Shutdown(), 0.0
    previous: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested_at
        if shutdown.cause:
            if time.monotonic() - requested_at > _SAME_SIGNAL_SECONDS:
                if callable(previous[number]):
                    previous[number](number, frame)
                raise SystemExit(REASONS[number][1])
            return
        requested_at = time.monotonic()
        shutdown.request(number)
        if on_request is not None:
            on_request()

    if threading.current_thread() is threading.main_thread():
        for number in REASONS:
            if signal.getsignal(number) != signal.SIG_IGN:  # the parent process chose to ignore it, as nohup does
                previous[number] = signal.signal(number, handle)
    try:
        yield shutdown
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
