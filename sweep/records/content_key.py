"""The content key of a trial: trials of equal key have equal results."""

import hashlib
import json
from pathlib import Path
from typing import Any

from sweep.config.trial_config import TrialConfig, default_settings, flatten_config
from sweep.records.plugin_sources import digest_plugin

# Where the data lies changes nothing; what it holds is in the data digest. How it is fed (data.placement,
# data.workers) stays in the key: it changes the times that a reused trial brings along.
_LEFT_OUT = frozenset({"data.root"})


def trial_key(config: TrialConfig, data_digest: str, code_digest: str, torch_version: str) -> str:
    """64 hexadecimal digits over the configuration with its seed, the data, the training code and torch's version.

    Keys at their default are left out, so that a key recorded today stays valid when a field is added whose default
    is the behavior of today.
    """
    content = {
        "config": _changed(config),
        "data": data_digest,
        "code": code_digest,
        "torch": torch_version,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _changed(config: TrialConfig) -> dict[str, object]:
    defaults = default_settings()
    return {
        path: value
        for path, value in flatten_config(config).items()
        if path not in _LEFT_OUT and value != defaults[path]
    }


def code_digest(plugin: str | None = None) -> str:
    """64 hexadecimal digits over the source files of ``sweep.training`` and of the ``plugin``, read and not
    imported."""
    folder = Path(__file__).resolve().parent.parent / "training"
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        total.update(f"{path.relative_to(folder).as_posix()} {content}\n".encode())
    for name, digest in sorted(digest_plugin(plugin).items()):
        total.update(f"plugin {name} {digest}\n".encode())
    return total.hexdigest()


def environment_digest(environment: dict[str, Any]) -> str:
    """16 hexadecimal digits that are equal for equal environments."""
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:16]
