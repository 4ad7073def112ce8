"""When a trial writes a checkpoint, what identifies one, and the random generators that it holds."""

import json
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from safetensors import SafetensorError

from sweep.measurement.device import name_device_class
from sweep.records.messages import TrialTask
from sweep.records.source_digest import digest_code
from sweep.training.checkpoints.checkpoint import CheckpointFolder, Stateful
from sweep.training.supervisor_link import SUPERVISOR_LINK
from sweep.training.world import SOLO, World

_log = logging.getLogger(__name__)
_LARGEST_SHARE = 0.05  # of the time that checkpoints may take, about
_PREEMPTED = 2.0  # as a number beside 0 and 1, which state whether a checkpoint is due, because ranks exchange it


@final
class CheckpointSaver:
    """Writes and loads the checkpoints of one attempt at ``task``, of ``parts`` and all random generators.

    Without ``task.checkpoint_dir`` it does nothing.
    """

    def __init__(
        self, task: TrialTask, device: torch.device, parts: Mapping[str, Stateful], world: World = SOLO
    ) -> None:
        self._parts = {**parts, "random_state": RandomState(device, world)}
        self._world = world
        self._every_seconds = task.checkpoint_seconds
        self._saved_at = time.perf_counter()
        self._cost_seconds = 0.0  # of the last one
        self._folder: CheckpointFolder | None = None
        if task.checkpoint_dir is not None:
            self._folder = CheckpointFolder(Path(task.checkpoint_dir), _fingerprint(task, device))

    def load(self) -> bool:
        """Restores the parts from the last checkpoint; returns False where there is none.

        Raises:
            RuntimeError: the ranks did not find the same checkpoint.
        """
        state = self._folder.load() if self._folder else None
        number = -1 if state is None else state["state"]["num_steps"]
        if self._folder and number != self._world.broadcast_first(number):
            raise RuntimeError("the ranks did not find the same checkpoint")
        if state is None:
            return False
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        return True

    def save_if_due(self) -> bool:
        """Writes a checkpoint where the last one is old enough, or preemption is requested; returns whether it is.

        The first rank decides for all ranks, and writes. An error of writing is logged and does not end the trial.
        """
        decision = self._world.broadcast_first(_PREEMPTED if SUPERVISOR_LINK.is_preempted else self._is_due())
        if decision and self._folder is not None:
            self._save(self._folder)
        return decision == _PREEMPTED

    def _save(self, folder: CheckpointFolder) -> None:
        began = time.perf_counter()
        try:
            if self._world.rank == 0:
                folder.save(self._parts)
            else:
                for part in self._parts.values():
                    part.state_dict()  # all ranks contribute
        except (OSError, TypeError, SafetensorError) as error:  # full disk; a plug-in's state that JSON does not have
            _log.warning("no checkpoint was written: %s", error)
        self._saved_at = time.perf_counter()
        self._cost_seconds = self._saved_at - began

    def _is_due(self) -> bool:
        if self._folder is None:
            return False
        # a large model on a slow disk is saved less often; 0 is an interval without this limit, for tests
        interval = max(self._every_seconds, self._cost_seconds / _LARGEST_SHARE) if self._every_seconds else 0.0
        return time.perf_counter() - self._saved_at >= interval


def _fingerprint(task: TrialTask, device: torch.device) -> str:
    # everything that would change the numbers of the training, or make its times incomparable
    facts = {
        "config": task.config.model_dump(mode="json", by_alias=True),
        "code": digest_code(task.plugin),
        "torch": version("torch"),
        "device": name_device_class(device),
    }
    return json.dumps(facts, sort_keys=True)


@final
@dataclass(frozen=True)
class RandomState:
    """The random generators of Python and NumPy, and those of torch and the device for each rank."""

    device: torch.device
    world: World = SOLO

    def state_dict(self) -> dict[str, Any]:
        """The states, as numbers, texts and tensors only."""
        numpy_state: Any = np.random.get_state(legacy=False)
        state: dict[str, Any] = {
            "python": random.getstate(),
            "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()}},
            "torch": self.world.gather(torch.get_rng_state()),
        }
        if self.device.type == "cuda":
            state["cuda"] = self.world.gather(torch.cuda.get_rng_state(self.device))
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the generators: the next draws are those that followed ``state``."""
        random.setstate(state["python"])
        inner = state["numpy"]["state"]
        key = np.array(inner["key"], dtype=np.uint32)
        np.random.set_state({**state["numpy"], "state": {**inner, "key": key}})
        # a copy, because torch crashes on a view of a larger tensor
        torch.set_rng_state(state["torch"][self.world.rank].clone())
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"][self.world.rank].clone(), self.device)
