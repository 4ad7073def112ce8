"""Content keys of the configurations of a run."""

from importlib.metadata import version
from pathlib import Path
from typing import final

from sweep.config.trial_config import TrialConfig
from sweep.records.content_key import code_digest, trial_key
from sweep.training.data.data_checks import data_digest


@final
class KeyMaker:
    """Makes content keys of configurations. Each data set and each file of initial weights is read once."""

    def __init__(self, plugin: str | None = None) -> None:
        self._code = code_digest([Path(plugin)] if plugin else [])
        self._torch = version("torch")
        self._digests: dict[object, str] = {}

    def __call__(self, config: TrialConfig) -> str:
        inputs = (config.data, config.model.weights)
        if inputs not in self._digests:
            self._digests[inputs] = data_digest(config)
        return trial_key(config, self._digests[inputs], self._code, self._torch)
