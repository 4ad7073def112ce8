"""When a trial writes a checkpoint, and what one belongs to."""

import json
import logging
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import final

import torch
from safetensors import SafetensorError

from sweep.measurement.device import device_class
from sweep.records.content_key import code_digest
from sweep.records.messages import TrialTask
from sweep.training.checkpoints.checkpoint import CheckpointFolder, Stateful
from sweep.training.supervisor_link import LIFELINE
from sweep.training.world import SOLO, World

_log = logging.getLogger(__name__)
_LARGEST_SHARE = 0.05  # of the time that checkpoints may take, about
_LEAVE = 2.0  # above 0 and 1, which say whether a checkpoint is due


@final
class Saver:
    """Keeps the checkpoints of one attempt at ``task``; does nothing where the task names no folder for them."""

    def __init__(
        self, task: TrialTask, device: torch.device, parts: Mapping[str, Stateful], world: World = SOLO
    ) -> None:
        self._parts = parts
        self._world = world
        self._every_seconds = task.checkpoint_seconds
        self._saved_at = time.perf_counter()
        self._cost_seconds = 0.0  # of the last one
        self._folder: CheckpointFolder | None = None
        if task.checkpoint_dir is not None:
            self._folder = CheckpointFolder(Path(task.checkpoint_dir), _fingerprint(task, device))

    def load(self) -> bool:
        """Puts the parts where the last checkpoint left them; False where there is none to go on from.

        Raises:
            RuntimeError: the ranks did not find the same.
        """
        state = self._folder.load() if self._folder else None
        number = -1 if state is None else state["story"]["num_steps"]
        if self._folder and number != self._world.of_first(number):
            raise RuntimeError("the ranks did not find the same checkpoint")
        if state is None:
            return False
        for name, part in self._parts.items():
            part.load_state_dict(state[name])
        return True

    def save_if_due(self) -> bool:
        """Writes a checkpoint where the last is old enough, or the trial is asked to leave; says whether it is.

        One that cannot be written costs no more than itself. The first rank decides for all, and writes.
        """
        wanted = self._world.of_first(_LEAVE if LIFELINE.is_asked_to_leave else self._is_due())
        if wanted and self._folder is not None:
            self._save(self._folder)
        return wanted == _LEAVE

    def _save(self, folder: CheckpointFolder) -> None:
        began = time.perf_counter()
        try:
            if self._world.rank == 0:
                folder.save(self._parts)
            else:
                for part in self._parts.values():
                    part.state_dict()  # to which all ranks add
        except (OSError, TypeError, SafetensorError) as error:  # full disk; a plug-in's state that is none of JSON
            _log.warning("no checkpoint was written: %s", error)
        self._saved_at = time.perf_counter()
        self._cost_seconds = self._saved_at - began

    def _is_due(self) -> bool:
        if self._folder is None:
            return False
        # a large model on a slow disk is saved less often; a task that wants every chance taken says 0
        wanted = max(self._every_seconds, self._cost_seconds / _LARGEST_SHARE) if self._every_seconds else 0.0
        return time.perf_counter() - self._saved_at >= wanted


def _fingerprint(task: TrialTask, device: torch.device) -> str:
    # whatever makes other numbers than the attempt before would have made, or times that cannot be added up
    facts = {
        "config": task.config.model_dump(mode="json", by_alias=True),
        "code": code_digest([Path(task.plugin)] if task.plugin else []),
        "torch": version("torch"),
        "device": device_class(device),
    }
    return json.dumps(facts, sort_keys=True)
