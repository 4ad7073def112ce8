"""The packages of other programs, which are no dependencies of this one."""

from importlib import import_module
from typing import Any

from sweep.config.errors import InputError


def import_package(module: str, package: str) -> Any:
    """The ``module`` of the ``package``. Raises ``InputError`` with how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise InputError(
            f"this format requires the package {package}; install the extra: pip install 'batch-sweep[export]'."
        ) from None
