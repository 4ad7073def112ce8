"""Checkpoints of a running trial, as files that are written atomically."""

import hashlib
import json
import logging
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, final

from safetensors import SafetensorError
from safetensors.torch import load, save

from sweep.training.checkpoints.serialization import pack_state, unpack_state

_log = logging.getLogger(__name__)
_NUM_KEPT = 2  # the second to last is used where the last one is torn
_SUFFIX = ".safetensors"
_PART = ".part"
_DIGEST_LENGTH = 32


class Stateful(Protocol):
    """A part of a checkpoint: a model, an optimizer, a clock."""

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
        """Writes the state of ``parts`` atomically, then deletes all but the last two checkpoints.

        Raises:
            OSError: the disk is full or not available; the earlier checkpoints are unchanged.
        """
        tensors, text = pack_state({name: part.state_dict() for name, part in parts.items()})
        content = save(tensors, {"state": text, "fingerprint": self.fingerprint})
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
            except (OSError, ValueError, KeyError, SafetensorError) as error:
                _log.warning("checkpoint %s cannot be used: %s", path.name, error)
        return None

    def _read(self, path: Path) -> dict[str, Any]:
        content = path.read_bytes()
        if path.stem.partition("-")[2] != _digest(content):
            raise ValueError("it is torn")
        about = _metadata(content)
        if about["fingerprint"] != self.fingerprint:
            raise ValueError("it was written by another configuration, version or device")
        state: dict[str, Any] = unpack_state(load(content), about["state"])
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
    return hashlib.sha256(content).hexdigest()[:_DIGEST_LENGTH]


def _metadata(content: bytes) -> dict[str, str]:
    # the header of a safetensors file: its length in 8 bytes, then JSON
    length = int.from_bytes(content[:8], "little")
    about: dict[str, str] = json.loads(content[8 : 8 + length])["__metadata__"]
    return about
