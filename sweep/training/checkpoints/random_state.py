"""The random generators that a training draws from, all of which a continuation must find as they were."""

import random
from typing import Any, final

import numpy as np
import torch

from sweep.training.world import SOLO, World


@final
class Randomness:
    """Python's, NumPy's and torch's generators, and the device's; torch's own and the device's of each rank."""

    def __init__(self, device: torch.device, world: World = SOLO) -> None:
        self._device = device
        self._world = world

    def state_dict(self) -> dict[str, Any]:
        """Numbers, texts and tensors only."""
        numpy_state: Any = np.random.get_state(legacy=False)
        state: dict[str, Any] = {
            "python": random.getstate(),
            "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()}},
            "torch": self._world.gather(torch.get_rng_state()),
        }
        if self._device.type == "cuda":
            state["cuda"] = self._world.gather(torch.cuda.get_rng_state(self._device))
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Everything drawn from now on is what was drawn after ``state`` was taken."""
        random.setstate(state["python"])
        inner = state["numpy"]["state"]
        key = np.array(inner["key"], dtype=np.uint32)
        np.random.set_state({**state["numpy"], "state": {**inner, "key": key}})
        # a copy, because torch crashes on a part of a larger tensor
        torch.set_rng_state(state["torch"][self._world.rank].clone())
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"][self._world.rank].clone(), self._device)
