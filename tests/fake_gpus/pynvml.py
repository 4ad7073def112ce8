"""A driver's library for machines without one: four GPUs, of which nothing can be read. Found where this folder is in
``PYTHONPATH``."""

from typing import Any


class NVMLError(Exception):
    pass


def nvmlInit() -> None:  # noqa: N802
    pass


def nvmlShutdown() -> None:  # noqa: N802
    pass


def nvmlDeviceGetCount() -> int:  # noqa: N802
    return 4


def __getattr__(name: str) -> Any:
    def refuse(*_: Any) -> None:
        raise NVMLError(name)

    return refuse
