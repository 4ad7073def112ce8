"""The content key of a trial: trials of equal key have equal results."""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from sweep.config.trial_config import TrialConfig, flatten_config

# Where the data lies changes nothing; what it holds is in the data digest. How it is fed (data.placement,
# data.workers) stays in the key: it changes the times that a reused trial brings along.
_LEFT_OUT = frozenset({"data.root"})
# torchvision has the models, NumPy the random numbers that order the images.
_LIBRARIES = ("torch", "torchvision", "numpy")


def trial_key(config: TrialConfig, inputs_digest: str, code_digest: str, versions: Mapping[str, str]) -> str:
    """64 hexadecimal digits over the whole configuration with its defaults and its seed, the images and weights that it
    reads, the code of a trial, and the ``versions`` of libraries."""
    content = {
        "config": {path: value for path, value in flatten_config(config).items() if path not in _LEFT_OUT},
        "inputs": inputs_digest,
        "code": code_digest,
        "versions": dict(versions),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def list_library_versions() -> dict[str, str]:
    """The public versions of the libraries that decide a result: ``2.13.0+cpu`` and ``2.13.0+cu130`` train alike."""
    return {name: version(name).partition("+")[0] for name in _LIBRARIES}


def environment_digest(environment: dict[str, Any]) -> str:
    """16 hexadecimal digits that are equal for equal environments."""
    return hashlib.sha256(json.dumps(environment, sort_keys=True).encode()).hexdigest()[:16]
