"""New interpreters that find the same modules as this one, whatever this one's main module is."""

import sys
from pathlib import Path


def python_command(statements: str) -> list[str]:
    """The command line of an interpreter that runs ``statements``."""
    path = [str(Path(entry).absolute()) for entry in sys.path]
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {statements}"]
