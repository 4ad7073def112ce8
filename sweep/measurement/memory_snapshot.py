"""A record of a GPU's allocations, and the file with it, which pytorch.org/memory_viz shows."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

_MAX_ENTRIES = 100_000  # allocations and releases, the last ones
_log = logging.getLogger(__name__)


@contextmanager
def keep_memory_snapshot(path: str, device: torch.device) -> Iterator[None]:
    """Records the allocations on ``device`` with the lines of code that made them. Where memory runs out, the record is
    written to the file ``path``, and a note on the error names it. A CPU's allocator keeps no record: a warning."""
    if device.type != "cuda":
        _log.warning("diagnostics.memory_snapshot requires a GPU; on a CPU nothing is recorded")
        yield
        return
    memory: Any = torch.cuda.memory  # torch leaves it untyped
    memory._record_memory_history(max_entries=_MAX_ENTRIES)
    try:
        yield
    except torch.OutOfMemoryError as error:  # its frames still hold what was allocated
        error.add_note(_write(memory, path))
        raise
    finally:
        memory._record_memory_history(enabled=None)


def _write(memory: Any, path: str) -> str:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        memory._dump_snapshot(path)
    except (OSError, RuntimeError) as error:
        return f"what the memory held could not be written: {error}"
    return f"what the memory held is in {path}, which pytorch.org/memory_viz shows"
