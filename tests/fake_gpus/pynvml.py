"""A driver's library for machines without one: four GPUs, of which nothing can be read. Found where this folder is in
``PYTHONPATH``."""

from typing import Any


class NVMLError(Exception):
    """What every question but for the number is answered by."""


def nvmlInit() -> None:  # noqa: N802
    """There is a driver."""


def nvmlShutdown() -> None:  # noqa: N802
    """It may go."""


def nvmlDeviceGetCount() -> int:  # noqa: N802
    """Four."""
    return 4


def __getattr__(name: str) -> Any:
    def refuse(*_: Any) -> None:
        raise NVMLError(name)

    return refuse
