"""A plug-in with a model in whose midst a trial meets what was ordered: each file ``*.order`` in the folder
``$SWEEP_STORM_ORDERS`` is carried out once, by one of every two attempts, at a step that nobody knows before."""

import ctypes
import os
import random
import signal
import time
from pathlib import Path
from typing import Any, NoReturn

import torch
from storm_processes import trial_of
from torch import nn

from sweep.config.tables import MODELS, ImageShape, ModelEntry

_MAX_STEPS = 12  # of the few that an attempt has


def _hang() -> NoReturn:
    while True:
        time.sleep(3600)


_DEEDS = {
    "segfault": lambda: ctypes.string_at(0),
    "abort": os.abort,
    "hang": _hang,
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


def _carry_out(number: int) -> None:
    for order in sorted(Path(os.environ["SWEEP_STORM_ORDERS"]).glob("*.order")):
        try:
            order.rename(order.with_suffix(f".{number}"))
        except FileNotFoundError:  # another trial was faster
            continue
        _DEEDS[order.stem.partition("-")[2]]()
        return


class Sabotaged(nn.Module):
    """A perceptron with a bad day now and then."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, num_classes))
        self._steps_left = random.SystemRandom().randint(1, 2 * _MAX_STEPS)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self._steps_left -= self.training
        if self._steps_left == 0 and (number := trial_of(os.getpid())) is not None:
            self._steps_left -= 1
            _carry_out(number)
        logits: torch.Tensor = self.layers(images)
        return logits


def sabotaged(_section: Any, shape: ImageShape) -> nn.Module:
    return Sabotaged(shape.channels * shape.side**2, shape.num_classes)


MODELS["sabotaged"] = ModelEntry(build=sabotaged)
