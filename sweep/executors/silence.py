"""For how long nothing is heard of a trial: counted so that a supervisor which did not listen declares nobody dead."""

import time

from sweep.executors.base import Executor
from sweep.records.messages import Message


def listen(executor: Executor, timeout_seconds: float) -> tuple[list[tuple[int, Message]], float]:
    """What ``executor.poll`` returns, and the seconds of silence that count for those who said nothing.

    These are never more than ``timeout_seconds``: a supervisor that was suspended, or thought for long, finds what
    was said meanwhile in the pipes at its next turn.
    """
    began = time.monotonic()
    news = executor.poll(timeout_seconds)
    return news, min(time.monotonic() - began, timeout_seconds)
