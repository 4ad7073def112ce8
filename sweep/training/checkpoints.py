"""Checkpoints of a running trial, and trained models in one file.

Both are written atomically. Models are safetensors files; checkpoints are read by torch's reader that runs no code.
"""

import hashlib
import io
import json
import logging
import os
import random
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, Protocol, final

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from sweep.config.errors import InputError
from sweep.config.sections import ModelSection, Section
from sweep.config.tables import MODELS, ImageShape, find_entry
from sweep.measurement.device import name_device_class
from sweep.records.inputs import digest_code
from sweep.records.messages import TrialTask
from sweep.training.data.folders import read_image
from sweep.training.models.build import build_model, read_weights
from sweep.training.processes import SUPERVISOR_LINK
from sweep.training.world import SOLO, World

_log = logging.getLogger(__name__)
_LARGEST_SHARE = 0.05  # of the time that checkpoints may take, about
_PREEMPTED = 2.0  # as a number beside 0 and 1, which state whether a checkpoint is due, because ranks exchange it
_NUM_KEPT = 2  # the second to last is used where the last one is torn
_SUFFIX, _PART = ".pt", ".part"
_MODEL_KEY = "batch_sweep"  # of a saved model's facts in the metadata of its file


class Stateful(Protocol):
    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Any) -> Any: ...


@final
@dataclass(frozen=True)
class CheckpointFolder:
    """The last checkpoints of one trial. A file's name ends with the digest of its content, so that a torn one is seen.

    ``fingerprint`` identifies configuration, code and device; checkpoints of another one are not loaded.
    """

    folder: Path
    fingerprint: str

    def save(self, parts: Mapping[str, Stateful]) -> None:
        """Writes the state of ``parts`` atomically, then deletes all but the last two checkpoints. Raises ``OSError``:
        the disk is full or not available; the earlier checkpoints are unchanged."""
        buffer = io.BytesIO()
        state = {name: part.state_dict() for name, part in parts.items()}
        torch.save({"state": state, "fingerprint": self.fingerprint}, buffer)
        content = buffer.getvalue()
        self.folder.mkdir(parents=True, exist_ok=True)
        files = self._files()
        number = int(files[-1].name[:8]) + 1 if files else 1
        for rest in self.folder.glob(f"*{_PART}"):
            rest.unlink(missing_ok=True)
        write_atomically(self.folder / f"{number:08d}-{_digest(content)}{_SUFFIX}", content)
        for old in files[: 1 - _NUM_KEPT]:
            old.unlink(missing_ok=True)

    def load(self) -> dict[str, Any] | None:
        """The state of each part in the last valid checkpoint of this fingerprint, or None."""
        for path in reversed(self._files()):
            try:
                return self._read(path)
            except Exception as error:  # whatever is wrong with it: an earlier one, or the beginning, is there
                _log.warning("checkpoint %s cannot be used: %s", path.name, error)
        return None

    def _read(self, path: Path) -> dict[str, Any]:
        content = path.read_bytes()
        if path.stem.partition("-")[2] != _digest(content):
            raise ValueError("it is torn")
        saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        if saved["fingerprint"] != self.fingerprint:
            raise ValueError("it was written by another configuration, version or device")
        state: dict[str, Any] = saved["state"]
        return state

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob(f"*{_SUFFIX}") if path.name[:8].isdigit())


def write_atomically(path: Path, content: bytes) -> None:
    """Writes a file so that, also after a crash, it has all of ``content`` or does not exist."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{_PART}")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # makes the name of the file durable
    finally:
        os.close(folder)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


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
        """Restores the parts from the last checkpoint; returns False where there is none. Raises ``RuntimeError``: the
        ranks did not find the same checkpoint."""
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
        except Exception as error:  # full disk; a plug-in's state that cannot be written
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
        random.setstate(state["python"])
        inner = state["numpy"]["state"]
        key = np.array(inner["key"], dtype=np.uint32)
        np.random.set_state({**state["numpy"], "state": {**inner, "key": key}})
        # a copy, because torch crashes on a view of a larger tensor
        torch.set_rng_state(state["torch"][self.world.rank].clone())
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"][self.world.rank].clone(), self.device)


class ModelFacts(Section):
    """What the weights alone do not tell."""

    model: ModelSection
    shape: ImageShape
    class_names: tuple[str, ...]  # in the order of the logits
    mean: list[float]  # of each channel over the training images, of pixels from 0 to 255
    inverse_deviation: list[float]  # as mean
    resize: Literal["crop", "stretch", "pad"] | None  # data.resize, where data.image_size was given
    stored_side: int | None = None  # to which images of files are brought before their center is taken


def save_model(model: nn.Module, facts: ModelFacts, path: str) -> None:
    """Writes the model's state as safetensors, atomically, with ``facts`` in the metadata of the file. Raises
    ``InputError``: the path cannot be written."""
    state: dict[str, Tensor] = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), save(state, {_MODEL_KEY: facts.model_dump_json()}))
    except OSError as error:
        raise InputError(f"weights cannot be written to {path}: {error.strerror}.") from None


@final
class _SavedModel(nn.Module):
    """A trained model with the normalization of its training images, in evaluation mode and 32 bits.

    Call it with uint8 images (n, side, side, channels) of 0 to 255; it returns logits (n, classes) in the order of
    ``class_names``. Test-time augmentation is not part of it.
    """

    mean: Tensor
    inverse_deviation: Tensor

    def __init__(self, model: nn.Module, facts: ModelFacts) -> None:
        super().__init__()
        self.model, self.facts, self.class_names = model, facts, facts.class_names
        for name in ("mean", "inverse_deviation"):
            self.register_buffer(name, torch.tensor(getattr(facts, name), dtype=torch.float32)[:, None, None])
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        expected = (self.facts.shape.side, self.facts.shape.side, self.facts.shape.channels)
        if images.dtype != torch.uint8 or images.ndim != 4 or tuple(images.shape[1:]) != expected:
            raise InputError(
                f"the images are {images.dtype} of shape {tuple(images.shape)}; give uint8 of shape "
                f"(n, {', '.join(map(str, expected))})."
            )
        floats = images.permute(0, 3, 1, 2).to(torch.float32).contiguous()
        logits: Tensor = self.model((floats - self.mean) * self.inverse_deviation)
        return logits

    def read_images(self, paths: Sequence[str | Path]) -> Tensor:
        """The image files, read as for the model's training: uint8 (n, side, side, channels). Raises
        ``InputError``: there is no file, one cannot be decoded or has another size, or the model is not for colored
        images."""
        if not paths:
            raise InputError("no image file is given.")
        shape = self.facts.shape
        if shape.channels != 3:
            raise InputError(
                f"the model takes images of {shape.channels} channel(s), files are read as RGB: call it with a tensor."
            )
        by = shape.side, self.facts.resize, self.facts.stored_side or shape.side
        return torch.from_numpy(np.stack([read_image(str(path), *by) for path in paths]))


def load_model(path: str | Path) -> _SavedModel:
    """The model that ``sweep train --save`` wrote to the file ``path``, on the CPU.

    It takes uint8 images (n, side, side, channels) and returns logits (n, classes) in the order of its ``class_names``;
    its method ``read_images`` reads image files. For a model of a plug-in call :func:`sweep.load_plugin` first.

    Raises:
        InputError: no such file, or another program wrote it.
    """
    facts = _read_facts(Path(path))
    model = build_model(facts.model.model_copy(update={"weights": None}), facts.shape)
    try:
        model.load_state_dict(read_weights(str(path)))
    except RuntimeError as error:  # torch lists the names of the tensors that differ
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"{path}: the weights are not those of {facts.model.name}: {reason}.") from None
    return _SavedModel(model, facts)


def _read_facts(path: Path) -> ModelFacts:
    if not path.is_file():
        raise InputError(f"{path}: the model cannot be read: there is no such file.")
    try:
        with safe_open(path, framework="pt") as file:
            content = file.metadata()[_MODEL_KEY]
        find_entry("model", json.loads(content)["model"]["name"], MODELS)  # its message explains what is missing
        return ModelFacts.model_validate_json(content)
    except OSError as error:
        raise InputError(f"{path}: the model cannot be read: {error.strerror}.") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}: no model that `sweep train --save` has written. To train from other weights, set model.weights."
        ) from None
