"""A study: the question, the base configuration, the space, the objectives and the budget. Read from TOML."""

import itertools
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from sweep.config.errors import InputError, explain, unknown_name
from sweep.config.metrics import FORESEEABLE, objective_names
from sweep.config.section import Section
from sweep.config.space import Parameter, Space
from sweep.config.trial_config import TrialConfig, build_config, config_keys, flatten, flatten_table, replace, rivals

# A study's name is a folder, which may be copied to any system.
WINDOWS_RESERVED_NAMES = frozenset(
    ("con", "prn", "aux", "nul", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10)))
)
_MAX_FILE_BYTES = 100_000
_MAX_DOTS = 100  # in one key, or in a line of prose
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_seconds(value: object) -> object:
    """``90``, ``"90s"``, ``"10m"``, ``"2h"``, ``"1d"`` in seconds; other values are left for validation."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", value)):
        return float(match[1]) * _UNITS[match[2] or "s"]
    if isinstance(value, str):
        raise ValueError("give a number of seconds or a duration like '90s', '10m', '2h'")
    return value


Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)]


class Confirm(Section):
    """How many configurations of the front are trained again, and with how many fresh seeds each."""

    max_configurations: Annotated[int, Field(ge=0, le=1000)] = 4
    seeds: Annotated[int, Field(ge=0, le=1000)] = 3


def _no_device(name: str) -> str:
    if name.lower() in WINDOWS_RESERVED_NAMES:
        raise ValueError("it is the name of a device on Windows, where no folder can have it; choose another")
    return name


class StudySpec(Section):
    """A validated study. Read one with :func:`load_study`."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"), AfterValidator(_no_device)]
    question: str = ""
    seed: Annotated[int, Field(ge=0, lt=2**30)] = 0
    trials: Annotated[int, Field(ge=1, le=1_000_000)] = 20
    timeout: Seconds | None = None
    trial_timeout: Seconds | None = None
    stall_timeout: Seconds = 600.0
    objectives: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = (
        "val_accuracy",
        "train_seconds",
        "peak_memory_bytes",
    )
    sampler: Literal["tpe", "nsga2", "qmc", "random", "grid", "gp", "cost_aware"] = "tpe"
    pruner: Literal["none", "front"] = "none"
    retune: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        (), description="searched anew for each combination of the batch.* parameters"
    )
    confirm: Confirm = Confirm()
    base: dict[str, Any] = Field(default_factory=dict)
    space: Space = Field(default_factory=dict)

    @field_validator("objectives")
    @classmethod
    def _known_objectives(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in objective_names():
                raise ValueError(unknown_name("objective", name, objective_names()))
        if len(set(names)) < len(names):
            raise ValueError("an objective is named twice")
        return names

    @field_validator("base", mode="before")
    @classmethod
    def _flat_base(cls, base: Any) -> Any:
        return replace({}, flatten_table(base)) if isinstance(base, dict) else base

    @field_validator("space", mode="before")
    @classmethod
    def _flat_space(cls, space: Any) -> Any:
        return _flatten_space(space) if isinstance(space, dict) else space

    @model_validator(mode="after")
    def _pruner_can_judge(self) -> "StudySpec":
        unforeseeable = [name for name in self.objectives if name not in FORESEEABLE]
        if self.pruner == "front" and unforeseeable:
            raise ValueError(
                f"pruner: 'front' cannot foresee {', '.join(unforeseeable)} while a trial runs, only "
                f"{', '.join(sorted(FORESEEABLE))}; choose other objectives, or pruner = 'none'"
            )
        return self

    @model_validator(mode="after")
    def _retuned_keys_are_searched(self) -> "StudySpec":
        if not self.retune:
            return self
        rest = [path for path in self.space if not is_of_batch(path)]
        if unknown := [path for path in self.retune if path not in rest]:
            raise ValueError(
                f"retune: {', '.join(unknown)} is no parameter of the space beside batch.*; sweep it there"
            )
        if left_out := [path for path in rest if path not in self.retune]:
            raise ValueError(
                f"retune: {', '.join(left_out)} varies too; name it, so that it is searched for each batch size, "
                "or fix it in [base]"
            )
        endless = [path for path, item in self.space.items() if is_of_batch(path) and item.grid_values is None]
        if endless or len(rest) == len(self.space):
            raise ValueError(
                f"retune: it wants batch sizes that can be counted, not {', '.join(endless) or 'none'}; "
                "sweep batch.micro or batch.accumulation over log2, int or choice"
            )
        return self

    @model_validator(mode="after")
    def _values_are_valid(self) -> "StudySpec":
        if "seed" in self.base or "seed" in self.space:
            raise ValueError("seed: the seed is the study's own key; confirmation uses the following seeds")
        if self.sampler == "grid":
            endless = [path for path, parameter in self.space.items() if parameter.grid_values is None]
            if endless:
                raise ValueError(f"sampler: a grid cannot hold {', '.join(endless)}; give choice, int or log2")
        self._possible({}, "base")
        for path, parameter in self.space.items():
            for rival in rivals(path):
                if rival in self.base or rival in self.space:
                    raise ValueError(f"space.{path}: {rival} is set too, and each replaces the other; keep one")
            for value in parameter.extremes():
                recorded = flatten(self._possible({path: value}, f"space.{path}"))[path]
                if isinstance(value, str) and recorded != value:
                    raise ValueError(
                        f"space.{path}: {value!r} is recorded as {recorded!r} and a unit; sweep the number, and set "
                        f"{path}_unit in [base]"
                    )
        for values in itertools.islice(self.corners(), 64):
            self.config(values)
        return self

    def _possible(self, values: dict[str, Any], where: str) -> TrialConfig:
        # alone, so that an error names its key; or, where a key wants another that is swept, beside that one
        try:
            return build_config(replace(self.base, values), where)
        except InputError as error:
            try:
                return build_config(replace(self.base, next(self.corners()) | values), where)
            except InputError:
                raise error from None

    def corners(self, *sections: str) -> Iterator[dict[str, Any]]:
        """Combinations of the parameters' extremes, because some rules hold between two keys; with ``sections``, of
        the parameters in those alone."""
        paths = [path for path in self.space if not sections or path.partition(".")[0] in sections]
        for values in itertools.product(*(self.space[path].extremes() for path in paths)):
            yield dict(zip(paths, values, strict=True))

    @property
    def largest_world_size(self) -> int:
        """The most ranks that one of its trials has."""
        path = "distributed.world_size"
        sizes: Sequence[Any] = self.space[path].extremes() if path in self.space else (self.base.get(path, 1),)
        return int(max(sizes))

    def config(self, values: dict[str, Any], seed: int | None = None) -> TrialConfig:
        """The configuration at a point of the space; ``seed`` defaults to the study's."""
        changes = values | {"seed": self.seed if seed is None else seed}
        return build_config(replace(self.base, changes), f"study {self.name}")


def is_of_batch(path: str) -> bool:
    """Whether the key belongs to the section ``batch``."""
    return path.startswith("batch.")


_PLAIN_KEYS = StudySpec.model_fields.keys() - {"base", "space", "confirm"}

# What may change between two invocations on the same records.
CHANGEABLE = frozenset({"question", "trials", "timeout", "trial_timeout", "stall_timeout", "confirm"})


def load_study(path: str | Path, changes: dict[str, Any] | None = None) -> StudySpec:
    """The study in the TOML file ``path``, with ``changes`` (dotted keys of the study or its base) over it.

    Raises:
        InputError: naming the file, the key, the value, the rule and the remedy.
    """
    path = Path(path)
    try:
        return build_study(read_toml(path), str(path), changes)
    except RecursionError:
        raise InputError(
            f"{path}: its tables or lists lie too deep in one another; a study wants three levels."
        ) from None


def read_toml(path: Path) -> dict[str, Any]:
    """The table in a user's file of at most a page or two.

    Raises:
        InputError: it cannot be read, is too large, or no TOML.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise InputError(f"{path}: cannot be read: {getattr(error, 'strerror', error)}.") from None
    if len(content) > _MAX_FILE_BYTES:
        raise InputError(f"{path}: larger than {_MAX_FILE_BYTES} bytes; it should be a page of text.")
    try:
        text = content.decode("utf-8-sig")
        # Python's parser takes minutes for a key of thousands of parts
        if max(part.count(".") for part in re.split("[=\n]", text)) > _MAX_DOTS:
            raise RecursionError
        return tomllib.loads(text)
    except ValueError as error:  # also bytes that are no text, and numbers of thousands of digits
        raise InputError(f"{path}: not valid TOML: {error}.") from None


def build_study(table: dict[str, Any], where: str, changes: dict[str, Any] | None = None) -> StudySpec:
    """A study from a parsed table; errors as :func:`load_study`."""
    for key in ("base", "space"):
        if not isinstance(table.get(key, {}), dict):
            raise InputError(f"{where}: {key}: give a table: {{ key = value }}")
    table = apply_changes(table, changes or {})
    try:
        return StudySpec.model_validate(table)
    except ValidationError as error:
        raise InputError(explain(error, where, _known_keys())) from None
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _known_keys() -> set[str]:
    confirm = (f"confirm.{key}" for key in Confirm.model_fields)
    return {*StudySpec.model_fields, *confirm, *config_keys()}


def apply_changes(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``--set`` pairs over a study's table: a key of the study changes it, any other the base configuration.

    A key of the base that the space sweeps is fixed: it leaves the space.
    """
    table = dict(table)
    base, space = flatten_table(table.get("base", {})), _flatten_space(table.get("space", {}))
    for path, value in changes.items():
        head, _, rest = path.partition(".")
        if rest and head in _PLAIN_KEYS:
            raise InputError(f"--set {path}: {head} is one value of the study; write --set {head}=VALUE.")
        if head == "space":
            raise InputError(
                f"--set {path}: the space is changed in the study file; --set KEY=VALUE fixes a swept key."
            )
        if head in StudySpec.model_fields and head != "base":
            table[head] = {**table.get(head, {}), rest: value} if rest else value
            continue
        base = replace(base, {path: value})
        for fixed in (path, *rivals(path)):
            space.pop(fixed, None)
    return table | {"base": base, "space": space}


def differences(old: StudySpec, new: StudySpec) -> list[str]:
    """What a changed study file changed of that which its records depend on, a line each."""
    before, after = _identity(old), _identity(new)
    return [
        f"{key}: {before.get(key, 'absent')} -> {after.get(key, 'absent')}"
        for key in dict.fromkeys((*before, *after))
        if before.get(key) != after.get(key)
    ]


def _identity(spec: StudySpec) -> dict[str, Any]:
    table = spec.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=set(CHANGEABLE))
    flat = {key: value for key, value in table.items() if key not in {"base", "space"}}
    flat |= {f"base.{key}": value for key, value in table["base"].items()}
    return flat | {f"space.{key}": value for key, value in table["space"].items()}


def _flatten_space(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    # a table that holds only names of forms is a parameter, any other is one more level of the path
    forms = {"log2", "int", "log", "float", "choice"}
    flat: dict[str, Any] = {}
    for key, value in table.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value and not forms & value.keys():
            flat.update(_flatten_space(value, f"{path}."))
        else:
            flat[path] = value
    return flat


__all__ = [
    "CHANGEABLE",
    "Confirm",
    "Parameter",
    "StudySpec",
    "apply_changes",
    "build_study",
    "differences",
    "load_study",
]
