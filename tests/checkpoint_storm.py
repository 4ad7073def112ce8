"""``python checkpoint_storm.py FOLDER KILLS``: kills a process that saves checkpoints, again and again, until so many
kills have fallen amid the writing of a file. After each the last checkpoint must be whole and none may be gone.

Prints the number of the last checkpoint, of the kills, and of those amid a write.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path
from typing import Any, final

import torch

from sweep.training.checkpoints import CheckpointFolder

_MOST_KILLS = 20  # for each that is asked for


@final
class Part:
    """Tensors that all hold one number, so that a mixture of two checkpoints would show."""

    def __init__(self, number: int) -> None:
        self.number = number

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "tensors": [torch.full((8192,), float(self.number)) for _ in range(20)]}

    def load_state_dict(self, state: Any) -> None:
        self.number = state["number"]


def main(folder: Path, num_wanted: int) -> None:
    began = time.monotonic()
    CheckpointFolder(folder, "mine").save({"part": Part(0)})
    usual_seconds = time.monotonic() - began
    generator, last, num_kills, num_inside = random.Random(0), 0, 0, 0
    while num_inside < num_wanted:
        assert num_kills < _MOST_KILLS * num_wanted, f"{num_inside} of {num_kills} kills fell into a write"
        _save_until_killed(folder, last, usual_seconds * generator.uniform(0.2, 3.0))
        num_kills += 1
        num_inside += any(folder.glob("*.part"))
        last = _check(folder, last)
    print(last, num_kills, num_inside)


def _save_until_killed(folder: Path, last: int, seconds: float) -> None:
    child = os.fork()
    if child == 0:
        while True:
            last += 1
            CheckpointFolder(folder, "mine").save({"part": Part(last)})
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL, status


def _check(folder: Path, last: int) -> int:
    state = CheckpointFolder(folder, "mine").load()
    assert state is not None
    found = state["part"]
    assert found["number"] >= last, (found["number"], last)
    assert all(bool((tensor == found["number"]).all()) for tensor in found["tensors"])
    return int(found["number"])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
