"""The configuration of one trial: every knob that a study can turn, by its dotted path.

A field's default is the behaviour that older records ran with, so a record that was written before the field
existed still says what ran.
"""

from itertools import pairwise
from math import ceil
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from sweep.config.errors import InputError, explain, shorten
from sweep.config.names import DatasetName
from sweep.config.section import Fraction, PositiveInt, Section
from sweep.config.sections import (
    DiagnosticsSection,
    EvaluationSection,
    ModelSection,
    OptimizerSection,
    PrecisionSection,
    RegularizationSection,
    ScheduleSection,
)

Scalar = str | int | float | bool | None


class DataSection(Section):
    name: DatasetName = "digits"
    root: str = Field("data", description="folder that holds the data; for imagefolder the folder of class folders")
    subset: PositiveInt | None = Field(None, description="train on this many images; all when absent")
    image_size: Annotated[int, Field(ge=1, le=2**14)] | None = Field(
        None, description="side in pixels that imagefolder images are brought to"
    )
    augment: Literal["none", "flip", "crop_flip", "alternating_flip", "crop_alternating_flip", "randaugment"] = "none"
    augment_ops: Annotated[int, Field(ge=0, le=16)] = Field(2, description="operations per image of randaugment")
    augment_magnitude: Annotated[int, Field(ge=0, le=30)] = Field(9, description="strength of randaugment's operations")
    placement: Literal["device", "host"] = "device"
    workers: Annotated[int, Field(ge=0, le=256)] = 0


class BatchSection(Section):
    micro: PositiveInt | Literal["auto"] = Field(64, description="auto: the largest that fits; wants batch.global")
    accumulation: PositiveInt | None = Field(1, description="micro batches per optimizer step")
    global_: PositiveInt | None = Field(None, alias="global", description="samples per optimizer step")
    memory_low: Fraction = Field(0.6, description="share of the device's memory below which an auto micro batch grows")
    memory_high: Fraction = Field(0.8, description="share of the device's memory above which it shrinks")
    schedule: Literal["constant", "linear", "exponential", "stepwise", "noise_scale"] = Field(
        "constant", description="how the global batch grows over the budget"
    )
    schedule_factor: Annotated[float, Field(ge=1.0, le=1e6)] = Field(
        8.0, description="last global batch over the first; for noise_scale the most"
    )
    schedule_milestones: str = Field("0.3, 0.6, 0.8", description="shares of the budget at which stepwise grows")
    schedule_lr: Literal["keep", "rule"] = Field("keep", description="rule: optimizer.lr_rule follows the growth")

    @model_validator(mode="before")
    @classmethod
    def _global_replaces_accumulation(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("global") is not None and "accumulation" not in data:
            return data | {"accumulation": None}
        return data

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.accumulation is None) == (self.global_ is None):
            raise ValueError("give either batch.accumulation or batch.global")
        if self.micro == "auto" and self.global_ is None:
            raise ValueError("micro = 'auto' wants batch.global: the samples per optimizer step")
        if self.memory_low >= self.memory_high:
            raise ValueError("memory_low must lie below memory_high")
        return self

    @model_validator(mode="after")
    def _schedule_is_possible(self) -> Self:
        shares = self.milestones
        if not shares or any(not low < high for low, high in pairwise((0.0, *shares, 1.0))):
            raise ValueError("schedule_milestones wants growing shares between 0 and 1, such as '0.3, 0.6, 0.8'")
        is_split = (
            self.accumulation != 1 if self.global_ is None else self.micro != "auto" and self.micro < self.global_
        )
        if self.schedule == "noise_scale" and not is_split:
            raise ValueError(
                "schedule = 'noise_scale' compares micro batches with their sum: give batch.micro as a number and "
                "two micro batches or more per optimizer step"
            )
        return self

    @property
    def milestones(self) -> tuple[float, ...]:
        """``schedule_milestones`` as numbers; empty where they are none."""
        try:
            return tuple(float(share) for share in self.schedule_milestones.replace(",", " ").split())
        except ValueError:
            return ()


_BUDGETS = ("epochs", "steps", "samples", "seconds", "target_accuracy")


class BudgetSection(Section):
    epochs: Annotated[float, Field(gt=0.0, le=1e6)] | None = None
    steps: PositiveInt | None = None
    samples: PositiveInt | None = None
    seconds: Annotated[float, Field(gt=0.0)] | None = Field(None, description="of train_seconds")
    target_accuracy: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="train until an evaluation reaches this val_accuracy, for max_epochs at most"
    )
    max_epochs: Annotated[float, Field(gt=0.0, le=1e6)] = Field(
        100.0, description="cap of a target_accuracy; else unused"
    )

    @model_validator(mode="before")
    @classmethod
    def _default_budget(cls, data: Any) -> Any:
        empty = isinstance(data, dict) and all(data.get(name) is None for name in _BUDGETS)
        return data | {"epochs": 10.0} if empty else data

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in _BUDGETS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one budget, not {' and '.join(given)}")
        return self


class DistributedSection(Section):
    world_size: Annotated[int, Field(ge=1, le=1024)] = Field(
        1, description="ranks, each on a GPU of its own, that train one trial together on one machine"
    )


class TrialConfig(Section):
    """One training, completely described. Frozen; raises ``pydantic.ValidationError`` on values outside the rules."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    batch: BatchSection = BatchSection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    budget: BudgetSection = BudgetSection()
    precision: PrecisionSection = PrecisionSection()
    regularization: RegularizationSection = RegularizationSection()
    evaluation: EvaluationSection = EvaluationSection()
    diagnostics: DiagnosticsSection = DiagnosticsSection()
    distributed: DistributedSection = DistributedSection()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0

    @model_validator(mode="after")
    def _ranks_can_share(self) -> Self:
        alone = {
            "batch.micro = 'auto'": self.batch.micro == "auto",
            "batch.schedule = 'noise_scale'": self.batch.schedule == "noise_scale",
            "precision.cuda_graphs": self.precision.cuda_graphs,
            "diagnostics.noise_scale": self.diagnostics.noise_scale,
            f"optimizer.name = {self.optimizer.name!r} with model.norm = 'sync'": self.model.norm == "sync"
            and self.optimizer.name.startswith("schedule_free"),
        }
        refused = [name for name, is_asked in alone.items() if is_asked and self.distributed.world_size > 1]
        if refused:
            raise ValueError(f"{' and '.join(refused)} cannot be had with distributed.world_size above 1")
        return self

    @model_validator(mode="after")
    def _quadratic_is_alone(self) -> Self:
        if (self.model.name == "noisy_quadratic") != (self.data.name == "noisy_quadratic"):
            raise ValueError(
                f"model.name = {self.model.name!r} with data.name = {self.data.name!r}: the noisy quadratic model is "
                "its own data, so name it for both"
            )
        return self

    @model_validator(mode="after")
    def _noise_can_be_seen(self) -> Self:
        if self.precision.cuda_graphs and self.diagnostics.noise_scale and self.num_accumulation > 1:
            raise ValueError(
                "diagnostics.noise_scale looks between the micro batches of a step, which precision.cuda_graphs "
                "replays unseen: give one micro batch per optimizer step, or leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _steps_can_be_split(self) -> Self:
        if self.precision.cuda_graphs and self.diagnostics.ledger == "full":
            raise ValueError(
                "diagnostics.ledger = 'full' times the parts of a step, which precision.cuda_graphs replays as one: "
                "leave one of the two out"
            )
        return self

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step, at most (the last window of an epoch may hold fewer); a growing batch's first."""
        batch = self.batch
        if batch.global_ is not None or batch.micro == "auto":
            assert batch.global_ is not None
            return batch.global_
        return batch.micro * (batch.accumulation or 1) * self.distributed.world_size

    @property
    def num_accumulation(self) -> int:
        """Micro batches per optimizer step on each rank; 1 where the micro batch is found by trying."""
        if self.batch.micro == "auto":
            return 1
        return ceil(self.global_batch_size / (self.batch.micro * self.distributed.world_size))


# Keys of which one replaces the others when it is set.
_REPLACING = {"batch": ("accumulation", "global"), "budget": _BUDGETS}


def flatten(config: TrialConfig) -> dict[str, Scalar]:
    """The configuration by dotted path, in the order of declaration."""
    flat: dict[str, Scalar] = {}
    for name, value in config.model_dump(by_alias=True).items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": leaf for key, leaf in value.items()})
        else:
            flat[name] = value
    return flat


def config_keys() -> tuple[str, ...]:
    """Every dotted path of a configuration."""
    return tuple(flatten(TrialConfig()))


def flatten_table(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A TOML table by dotted path; quoted dotted keys and nested tables mean the same."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        path = f"{prefix}{key}"
        flat.update(flatten_table(value, f"{path}.") if isinstance(value, dict) else {path: value})
    return flat


def build_config(values: dict[str, Any], where: str) -> TrialConfig:
    """A configuration from dotted ``values``; the rest has defaults.

    Raises:
        InputError: naming ``where``, the key, the value and the rule.
    """
    nested: dict[str, Any] = {}
    for path, value in values.items():
        section, _, key = path.partition(".")
        group = nested.setdefault(section, {} if key else value)
        if key and isinstance(group, dict):
            group[key] = value
        elif key or group is not value:
            raise InputError(f"{where}: {shorten(section)}: given as one value and key by key; keep the keys.")
    try:
        return TrialConfig.model_validate(nested)
    except ValidationError as error:
        raise InputError(explain(error, where, config_keys())) from None


def rivals(path: str) -> tuple[str, ...]:
    """The keys that ``path`` replaces when it is set."""
    section, _, key = path.partition(".")
    group = _REPLACING.get(section, ())
    return tuple(f"{section}.{other}" for other in group if other != key) if key in group else ()


def replace(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Dotted ``values`` with ``changes`` over them; of keys that exclude each other, the changed one stays."""
    merged = dict(values)
    for path in changes:
        for rival in rivals(path):
            merged.pop(rival, None)
    return merged | changes
