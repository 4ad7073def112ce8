"""What ties a trial's process to its supervisor beside the trial's messages: signs of life, and the request to leave.

Both belong to the process and not to the trial, because a signal does; one process trains one trial at a time.
"""

import time
from collections.abc import Callable
from typing import final

_BEAT_SECONDS = 2.0


@final
class Lifeline:
    """Unconnected, a beat is heard by nobody and costs nothing."""

    def __init__(self) -> None:
        self._say: Callable[[], None] | None = None
        self._look: Callable[[], bool] | None = None
        self._hand_on: Callable[[], None] | None = None
        self._is_asked = False
        self._next_beat = 0.0

    def connect(self, say: Callable[[], None], look: Callable[[], bool] | None = None) -> None:
        """Begins anew. ``say`` tells the supervisor that the trial lives; ``look`` looks for the request to leave."""
        self.forget()
        self._say, self._look = say, look

    def forget(self) -> None:
        """As in a new process."""
        self._say = self._look = self._hand_on = None
        self._is_asked, self._next_beat = False, 0.0

    def beat(self) -> None:
        """Called where the trial has got on; says so every few seconds. Costs a look at the clock."""
        if self._say is None:
            return
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + _BEAT_SECONDS
            self._say()

    def ask_to_leave(self) -> None:
        """The trial shall finish its step, write a checkpoint and end. May be called by a signal's handler."""
        self._is_asked = True
        if self._hand_on is not None:
            self._hand_on()

    def hand_on(self, tell: Callable[[], None] | None) -> None:
        """From now on the request goes to other processes through ``tell``, at once where it has come already."""
        self._hand_on = tell
        if tell is not None and self._is_asked:
            tell()

    @property
    def is_asked_to_leave(self) -> bool:
        """Whether the request has come."""
        if not self._is_asked and self._look is not None:
            self._is_asked = self._look()
        return self._is_asked


LIFELINE = Lifeline()
