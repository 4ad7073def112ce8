"""How a run is asked to leave: by Ctrl-C, SIGTERM, or SIGUSR1, which clusters send before they take a machine away.

The first signal asks: what is being trained finishes its step and writes a checkpoint. The second stops everything now.
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
# A wrapper may hand on what the terminal has sent to it and to us.
_SAME_SECONDS = 0.2


@final
class Shutdown:
    """Whether a run shall leave: ``cause`` is empty as long as nobody asked for it."""

    def __init__(self) -> None:
        self.cause = ""
        self.exit_code = 0

    def ask(self, number: int) -> None:
        """Signal ``number`` (a key of ``REASONS``) has come."""
        self.cause, self.exit_code = REASONS[number]

    def insist(self) -> None:
        """Ends the program where it was asked to leave, as the signal would have done.

        Raises:
            KeyboardInterrupt: after Ctrl-C.
            SystemExit: after the other signals, with the exit code.
        """
        if self.cause == "interrupted":
            raise KeyboardInterrupt
        if self.cause:
            raise SystemExit(self.exit_code)


@contextmanager
def departure_on_signals(hear: Callable[[], None] | None = None) -> Iterator[Shutdown]:
    """A departure that the first signal asks for, in the block; the second does what one would have done before it.

    ``hear`` is called inside the handler of the first. Outside of the main thread, which alone may set handlers,
    signals stay what they were.
    """
    departure, asked_at = Shutdown(), 0.0
    before: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked_at
        if departure.cause:
            if time.monotonic() - asked_at > _SAME_SECONDS:
                _stop_now(number, before[number], frame)
            return
        asked_at = time.monotonic()
        departure.ask(number)
        if hear is not None:
            hear()

    if threading.current_thread() is threading.main_thread():
        for number in REASONS:
            if signal.getsignal(number) != signal.SIG_IGN:  # whoever started us wants it so
                before[number] = signal.signal(number, handle)
    try:
        yield departure
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_now(number: int, before: Any, frame: FrameType | None) -> None:
    if callable(before):
        before(number, frame)
    raise SystemExit(REASONS[number][1])
