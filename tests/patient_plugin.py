"""A plug-in with a model that waits, amid a training, until its trial is told to stop: once for each ``*.wait`` in
the folder ``$PATIENT``, which becomes a ``*.job`` with the name of the job."""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sweep.config.tables import MODELS, ImageShape, ModelEntry
from sweep.training.processes import SUPERVISOR_LINK

_STEP = 30  # beyond the rehearsal
_PATIENCE_SECONDS = 60.0


class Patient(nn.Module):
    """A linear classifier that takes its time where it is told to."""

    def __init__(self, shape: ImageShape) -> None:
        super().__init__()
        self.linear = nn.Linear(shape.channels * shape.side**2, shape.num_classes)
        self.num_calls = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.num_calls += self.training
        if self.num_calls == _STEP:
            self.num_calls += 1
            _wait()
        logits: torch.Tensor = self.linear(images.flatten(1))
        return logits


def _wait() -> None:
    for path in sorted(Path(os.environ["PATIENT"]).glob("*.wait")):
        beside = path.with_suffix(f".{os.getpid()}")
        try:
            path.rename(beside)
        except FileNotFoundError:  # another trial was faster
            continue
        beside.with_suffix(".part").write_text(os.environ.get("FAKE_SLURM_JOB", ""))
        beside.with_suffix(".part").rename(path.with_suffix(".job"))
        until = time.monotonic() + _PATIENCE_SECONDS
        while not SUPERVISOR_LINK.is_preempted and time.monotonic() < until:
            time.sleep(0.01)
        return


def patient(_section: Any, shape: ImageShape) -> nn.Module:
    return Patient(shape)


MODELS["patient"] = ModelEntry(build=patient)
