"""A program of the user's as the training of every trial: its command, and the values that it is given."""

import re
import shlex
import shutil
from collections.abc import Collection, Mapping
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from sweep.config.errors import InputError, describe_unknown
from sweep.config.metrics import METRICS, Quality
from sweep.config.sections import Section
from sweep.config.trial import Scalar, TrialConfig, config_keys, flatten_config

PREFIX = "script."  # of a value of the script's own
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")  # a brace, or the place of a value
# What every script trial has, whether the study names it or not.
_ALWAYS = ("batch.accumulation", "batch.global", "distributed.world_size", "seed")
_Unit = Literal["fraction", "nats", "number"]
_Direction = Literal["maximize", "minimize"]


def _split(command: object) -> object:
    # as a shell would, without a shell
    return tuple(shlex.split(command)) if isinstance(command, str) else command


class ScriptSection(Section):
    """The table ``[script]`` of a study."""

    command: Annotated[tuple[str, ...], BeforeValidator(_split), Field(min_length=1, strict=False)] = Field(
        description="program of a trial, as a list or as one text; `{optimizer.lr}` and the like stand for values"
    )
    folder: str = Field(".", description="its working folder, seen from the study file")
    environment: dict[str, str] = Field(default_factory=dict, description="environment variables to add")
    metric: str = Field("val_accuracy", description="the quality that the script reports")
    unit: _Unit = Field("number", description="its unit; absent: by the name, such as `nats` for a loss")
    direction: _Direction = Field("maximize", description="absent: `minimize` for a loss or an error, else `maximize`")
    sample: str = Field("samples", description="what one of the validation data is called, in the plural")
    data: str = Field("", description="digest of the script's data; absent: accuracy is taken over from no other study")

    @model_validator(mode="before")
    @classmethod
    def _fill_quality(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        name = str(data.get("metric", "val_accuracy"))
        is_loss = bool(re.search(r"loss|ppl|perplexity|mse|mae|error|wer", name.lower()))
        is_share = bool(re.search(r"acc|f1|map|top.?\d", name.lower()))
        if name in METRICS and METRICS[name].direction:
            facts = {"unit": METRICS[name].unit, "direction": METRICS[name].direction}
        else:
            unit = "nats" if "loss" in name.lower() else "fraction" if is_share else "number"
            facts = {"unit": unit, "direction": "minimize" if is_loss else "maximize"}
        return facts | data

    @model_validator(mode="after")
    def _placeholders_are_known(self) -> Self:
        for name in self.placeholders:
            if not name.startswith(PREFIX) and name not in (*config_keys(), "folder"):
                known = (*config_keys(), f"{PREFIX}NAME", "folder")
                raise ValueError(f"{{{name}}}: {describe_unknown('key', name, known)} Write {{{{ for a brace.")
        return self

    @property
    def placeholders(self) -> frozenset[str]:
        """The keys that the command has a place for."""
        texts = (*self.command, *self.environment.values())
        return frozenset(name for text in texts for name in PLACEHOLDER.findall(text) if name)

    @property
    def quality(self) -> Quality:
        return Quality(name=self.metric, unit=self.unit, direction=self.direction, sample=self.sample)

    @property
    def file(self) -> Path | None:
        """The Python file that the command runs; None where it names none."""
        files = (Path(self.folder) / text for text in self.command if text.endswith(".py"))
        return next(filter(Path.is_file, files), None)

    @property
    def name(self) -> str:
        """What the results are called by: the name of its Python file, otherwise of its program."""
        return Path(next((text for text in self.command if text.endswith(".py")), self.command[0])).name

    def check(self) -> None:
        """Raises ``InputError``: the folder, the program or its Python file is not there."""
        folder, program = Path(self.folder), self.command[0]
        if not folder.is_dir():
            raise InputError(f"script.folder = {self.folder}: there is no such folder.")
        if program not in ("python", "python3") and shutil.which(program) is None and not (folder / program).is_file():
            raise InputError(f"script.command: there is no program {program!r}; give its path.")
        named = [text for text in self.command if text.endswith(".py")]
        if named and self.file is None:
            raise InputError(
                f"script.command: {folder / named[0]} is not there; correct the command, or run it from another folder "
                "(script.folder in a study file)."
            )

    def fill(self, values: Mapping[str, Scalar], folder: str) -> tuple[tuple[str, ...], dict[str, str]]:
        """The arguments and the environment with ``values``, by dotted key, in their places; ``folder`` is the trial's.
        Raises ``ValueError``: a key has no value."""

        def put(found: re.Match[str]) -> str:
            name = found[1]
            if name is None:
                return found[0][0]
            value = folder if name == "folder" else values.get(name)
            if value is None:
                raise ValueError(f"{{{name}}} has no value; give {name} in [base] or [space]")
            return f"{value:.10g}" if isinstance(value, float) else str(value)

        arguments = tuple(PLACEHOLDER.sub(put, text) for text in self.command)
        return arguments, {name: PLACEHOLDER.sub(put, text) for name, text in self.environment.items()}


def read_asked(config: TrialConfig, given: Collection[str]) -> dict[str, Scalar]:
    """The values of ``config`` by dotted key. One that a script is not ``given`` has no value; what the batch size
    consists of and the seed are always asked for."""
    return {
        key: value if key in given or key in _ALWAYS or key.startswith(PREFIX) else None
        for key, value in flatten_config(config).items()
    }


def read_placed(config: TrialConfig, given: Collection[str]) -> dict[str, Scalar]:
    """The same for a script: with its micro batch, the number of these in a step and the effective batch size, however
    the study gives them, and the steps that a budget of samples takes."""
    size, ranks = config.global_batch_size, config.distributed.world_size
    micro = min(config.micro_batch, ceil(size / ranks)) if "batch.micro" in given else ceil(size / ranks)
    batch = {"batch.micro": micro, "batch.accumulation": ceil(size / (micro * ranks)), "batch.global": size}
    samples = config.budget.samples if "budget.samples" in given else None
    steps = {"budget.steps": ceil(samples / size)} if samples else {}
    return read_asked(config, given) | batch | steps
