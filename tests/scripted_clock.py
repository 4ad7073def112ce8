"""A clock for the ledger whose time passes only when a test sets it."""

from types import SimpleNamespace
from typing import final

import pytest


@final
class ScriptedClock:
    """Stands in for the clock that the ledger reads; ``pass_seconds`` lets time go by, and then may raise."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 1000.0
        monkeypatch.setattr("sweep.measurement.clock.time", SimpleNamespace(perf_counter=lambda: self._now))

    def pass_seconds(self, seconds: float, error: Exception | None = None) -> None:
        self._now += seconds
        if error:
            raise error
