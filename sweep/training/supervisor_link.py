"""The connection of a trial's process to its supervisor apart from the trial's messages: heartbeats and preemption.

Both belong to the process and not to the trial, because a signal does; one process trains one trial at a time.
"""

import time
from collections.abc import Callable
from typing import final

HEARTBEAT_SECONDS = 2.0
PROGRESS_SECONDS = 0.5  # between two messages of progress, at least


@final
class SupervisorLink:
    """While it is not connected, heartbeats go nowhere and cost nothing."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Restores the state of a new process."""
        self._send: Callable[[], None] | None = None
        self._look: Callable[[], bool] | None = None
        self._forward: Callable[[], None] | None = None
        self._is_preempted, self._next_heartbeat = False, 0.0

    def connect(self, send: Callable[[], None], look: Callable[[], bool] | None = None) -> None:
        """Starts anew. ``send`` sends a heartbeat; ``look`` returns whether the supervisor requests preemption."""
        self.reset()
        self._send, self._look = send, look

    def send_heartbeat(self) -> None:
        """Called wherever the trial has made progress; sends one every few seconds, else only reads the clock."""
        if self._send is None:
            return
        now = time.monotonic()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT_SECONDS
            self._send()

    def preempt(self) -> None:
        """Requests that the trial finishes its step, writes a checkpoint and ends. A signal handler may call this."""
        self._is_preempted = True
        if self._forward is not None:
            self._forward()

    def forward_preemption(self, forward: Callable[[], None] | None) -> None:
        """From now on a request for preemption is passed on by ``forward``; at once if there has been one already."""
        self._forward = forward
        if forward is not None and self._is_preempted:
            forward()

    @property
    def is_preempted(self) -> bool:
        if not self._is_preempted and self._look is not None:
            self._is_preempted = self._look()
        return self._is_preempted


SUPERVISOR_LINK = SupervisorLink()
