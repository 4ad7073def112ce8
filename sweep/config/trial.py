"""The configuration of one trial: every knob that a study can turn, by its dotted path.

A field's default is the behavior of before the field existed, so that older records still describe what ran.
"""

import re
from collections.abc import Callable, Mapping
from functools import cache
from math import ceil
from types import MappingProxyType
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from sweep.config.errors import InputError, describe_unknown, explain_refusal, shorten_text
from sweep.config.scaling import find_lost_beta, grade_warmup, scale_epochs, scale_regularizer
from sweep.config.sections import (
    BUDGETS,
    MOST_DROPOUT,
    MOST_LABEL_SMOOTHING,
    BatchSection,
    BudgetSection,
    Cost,
    DataSection,
    DiagnosticsSection,
    DistributedSection,
    EvaluationSection,
    ModelSection,
    OptimizerSection,
    PrecisionSection,
    RegularizationSection,
    RulesSection,
    ScheduleSection,
    Section,
    key,
    list_fields,
)
from sweep.config.tables import OPTIMIZERS, SCHEDULES, has_batch_statistics

_LABELS = {  # where the last part of the key is not its name
    "batch.global": "effective batch size",
    "batch.micro": "micro batch",
    "batch.schedule": "batch schedule",
    "data.name": "data",
    "global_batch_size": "effective batch size",
    "model.name": "model",
    "model.norm": "normalization",
    "optimizer.lr": "learning rate",
    "optimizer.name": "optimizer",
    "precision.dtype": "precision",
    "precision.checkpointing": "activation checkpointing",
    "rules.betas": "betas rule",
    "rules.dropout": "dropout rule",
    "rules.ema": "EMA rule",
    "rules.epochs": "epochs rule",
    "rules.label_smoothing": "label smoothing rule",
    "rules.lr": "learning rate rule",
    "rules.warmup": "warm-up rule",
    "rules.weight_decay": "weight decay rule",
    "schedule.name": "schedule",
    "schedule.warmup": "warm-up",
    "schedule.warmup_unit": "warm-up unit",
}


def key_label(key: str) -> str:
    """A configuration key in words: ``optimizer.weight_decay`` -> "weight decay"."""
    return _LABELS.get(key, key.rpartition(".")[2].replace("_", " "))


def name_key(key: str) -> str:
    """A configuration key in words with the key itself: "weight decay (optimizer.weight_decay)"."""
    return f"{key_label(key)} ({key})"


Scalar = str | int | float | bool | None
_SCRIPT_NAME = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)


class _ScriptValues(dict[str, Any]):
    """A table that is never changed, so that a configuration can be a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))


class TrialConfig(Section):
    """One training, completely described. Frozen; raises ``pydantic.ValidationError`` on values outside the rules."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    batch: BatchSection = BatchSection()
    optimizer: OptimizerSection = OptimizerSection()
    rules: RulesSection = RulesSection()
    schedule: ScheduleSection = ScheduleSection()
    budget: BudgetSection = BudgetSection()
    precision: PrecisionSection = PrecisionSection()
    regularization: RegularizationSection = RegularizationSection()
    evaluation: EvaluationSection = EvaluationSection()
    diagnostics: DiagnosticsSection = DiagnosticsSection()
    distributed: DistributedSection = DistributedSection()
    seed: Annotated[int, Field(ge=0, lt=2**31)] = key(
        0, "seed of weights, order and draws; a study sets it", cost="none"
    )

    script: dict[str, str | bool | int | float] = Field(
        default_factory=_ScriptValues,
        description="values of a script's own, by name",
        json_schema_extra={"cost": "step"},
    )

    @field_validator("script")
    @classmethod
    def _script_names_are_plain(cls, values: dict[str, Any]) -> dict[str, Any]:
        for name in values:
            if not _SCRIPT_NAME.fullmatch(name):
                raise ValueError(
                    f"{shorten_text(repr(name))} is no name of letters, digits and _, which a script takes"
                )
        return _ScriptValues(sorted(values.items()))

    @model_validator(mode="after")
    def _features_go_together(self) -> Self:
        alone = {
            "batch.micro = 'auto'": self.batch.is_auto,
            "batch.schedule = 'noise_scale'": self.batch.schedule == "noise_scale",
            "precision.cuda_graphs": self.precision.cuda_graphs,
            "diagnostics.noise_scale": self.diagnostics.noise_scale,
            f"optimizer.name = {self.optimizer.name!r} with model.norm = 'sync'": self.model.norm == "sync"
            and OPTIMIZERS[self.optimizer.name].averages_weights,
        }
        refused = [name for name, is_asked in alone.items() if is_asked and self.distributed.world_size > 1]
        if refused:
            raise ValueError(
                f"{' and '.join(refused)} cannot be had with distributed.world_size above 1; leave that out, or set "
                "distributed.world_size = 1"
            )
        if self.precision.cuda_graphs and self.batch.is_auto:
            raise ValueError("precision.cuda_graphs cannot be combined with batch.micro = 'auto'; leave one out")
        follows_noise = self.diagnostics.noise_scale or self.batch.schedule == "noise_scale"
        if self.precision.cuda_graphs and follows_noise and self.num_accumulation > 1:
            raise ValueError(
                "the noise scale reads gradients between the micro batches of a step, which is not supported "
                "with precision.cuda_graphs: give one micro batch per optimizer step, or leave one of the two out"
            )
        return self

    @model_validator(mode="after")
    def _rules_have_values(self) -> Self:
        rules, size = self.rules, self.global_batch_size
        if rules.epochs != "none" and self.budget.epochs is None:
            given = next(name for name in BUDGETS if getattr(self.budget, name) is not None)
            raise ValueError(
                f"rules.epochs = {rules.epochs!r} has no epochs to scale, the budget is {given}; give "
                "budget.epochs, or set rules.epochs = 'none'"
            )
        if lost := find_lost_beta(self.optimizer, rules, size):
            raise ValueError(
                f"rules.betas = {rules.betas!r} brings {lost[0]} to {lost[1]:g} at an effective batch size of {size}, "
                f"{size / rules.reference_batch:g} times rules.reference_batch; it must lie between 0 and 1: set "
                "rules.betas = 'half_life', lower the batch, or raise rules.reference_batch"
            )
        return self

    @property
    def global_batch_size(self) -> int:
        """Samples per optimizer step, at most (the last window of an epoch may hold fewer); a growing batch's first."""
        batch = self.batch
        micro = None if batch.micro == "auto" else batch.micro
        return compute_global_batch(batch.global_, micro, batch.accumulation, self.distributed.world_size)

    def apply_rules(self) -> Self:
        """The configuration with the results of the rules of dropout, label smoothing, warm-up and epochs, and
        without these rules. The rules of the optimizer and of averaging stay: their results are no configuration keys.
        """
        rules, size = self.rules, self.global_batch_size
        dropout = scale_regularizer(self.model.dropout, rules.dropout, MOST_DROPOUT, rules, size)
        smoothing = self.regularization.label_smoothing
        smoothing = scale_regularizer(smoothing, rules.label_smoothing, MOST_LABEL_SMOOTHING, rules, size)
        applied = dict.fromkeys(("dropout", "label_smoothing", "warmup", "epochs"), "none")
        return self.model_copy(
            update={
                "model": self.model.model_copy(update={"dropout": dropout}),
                "regularization": self.regularization.model_copy(update={"label_smoothing": smoothing}),
                "schedule": self.schedule.model_copy(
                    update={"warmup": grade_warmup(self.schedule.warmup, rules, size)}
                ),
                "budget": self.budget.model_copy(update={"epochs": scale_epochs(self.budget.epochs, rules, size)}),
                "rules": rules.model_copy(update=applied),
            }
        )

    @property
    def micro_batch(self) -> int:
        """Samples of a micro batch on each rank; at most, where it is found by trying."""
        return self.global_batch_size if self.batch.micro == "auto" else self.batch.micro

    @property
    def num_accumulation(self) -> int:
        """Micro batches per optimizer step on each rank; 1 where the micro batch is found by trying."""
        return ceil(self.global_batch_size / (self.micro_batch * self.distributed.world_size))


def compute_global_batch(global_: int | None, micro: int | None, accumulation: int | None, world_size: int) -> int:
    """The effective (global) batch size by the values of these keys; ``micro`` is None where it is "auto". Raises
    ``ValueError``: neither of the first two is a number."""
    if global_ is not None:
        return global_
    if micro is None:
        raise ValueError("batch.micro = 'auto' requires batch.global")
    return micro * (accumulation or 1) * world_size


# A key that is set replaces the others of its group.
_REPLACING = {"batch": ("accumulation", "global"), "budget": BUDGETS}


def flatten_config(config: TrialConfig) -> dict[str, Scalar]:
    """The configuration by dotted path, in the order of declaration."""
    flat: dict[str, Scalar] = {}
    for name, value in config.model_dump(by_alias=True).items():
        if isinstance(value, dict):
            flat.update({f"{name}.{key}": leaf for key, leaf in value.items()})
        else:
            flat[name] = value
    return flat


@cache
def default_settings() -> Mapping[str, Scalar]:
    """The default of every configuration key, by dotted path; a script's own values have none."""
    return MappingProxyType(flatten_config(TrialConfig()) | {"script": None})


def config_keys() -> tuple[str, ...]:
    return tuple(key for key in default_settings() if key != "script")


def _is_on(value: Scalar) -> bool:
    return isinstance(value, int | float) and value > 0  # of a missing value in a frame too


def _declares(table: Mapping[str, Any], flag: str, *, is_on: bool = True) -> Callable[[str], bool]:
    # of an entry of a plug-in that is not loaded nothing is known
    return lambda name: name not in table or getattr(table[name], flag) == is_on


_rises = _declares(SCHEDULES, "has_peak", is_on=False)
_RULES = " ".join(f"rules.{name}" for name in RulesSection.model_fields if name != "reference_batch")
# Keys that have an effect on a training only with others, which hold the values that follow.
_EFFECTS: tuple[tuple[str, str, Callable[..., bool]], ...] = (
    ("data.augment_ops data.augment_magnitude", "data.augment", lambda name: name == "randaugment"),
    ("data.prefetch", "data.workers", _is_on),
    ("batch.schedule_factor batch.schedule_lr", "batch.schedule", lambda name: name != "constant"),
    ("batch.schedule_milestones", "batch.schedule", lambda name: name == "stepwise"),
    ("batch.plateau_patience", "batch.schedule", lambda name: name == "plateau"),
    ("budget.max_epochs", "budget.target", _is_on),
    ("model.norm_momentum", "model.name model.norm", lambda *model: has_batch_statistics(*model) is not False),
    ("model.ghost_batch", "model.norm", lambda norm: norm == "ghost"),
    ("optimizer.momentum", "optimizer.name", lambda name: name != "sgd"),
    ("optimizer.beta2 optimizer.eps rules.betas", "optimizer.name", _declares(OPTIMIZERS, "has_betas")),
    ("optimizer.trust_coefficient", "optimizer.name", lambda name: name == "lars" or name not in OPTIMIZERS),
    ("rules.reference_batch", _RULES, lambda *rules: any(rule != "none" for rule in rules)),
    ("rules.weight_decay", "optimizer.weight_decay", _is_on),
    ("rules.dropout", "model.dropout", _is_on),
    ("rules.label_smoothing", "regularization.label_smoothing", _is_on),
    ("rules.ema", "regularization.ema_decay", _is_on),
    ("rules.warmup schedule.warmup_unit", "schedule.warmup schedule.name", lambda on, name: on > 0 and _rises(name)),
    ("schedule.warmup", "schedule.name", _rises),
    ("schedule.milestones schedule.gamma", "schedule.name", _declares(SCHEDULES, "has_milestones")),
    ("schedule.peak", "schedule.name", _declares(SCHEDULES, "has_peak")),
    ("schedule.final", "schedule.name", lambda name: name not in ("constant", "step")),
    ("schedule.decay_share", "schedule.name", _declares(SCHEDULES, "is_stable_first")),
)
# By key: the others, and whether it has an effect at their values.
EFFECTS = {key: (others.split(), holds) for keys, others, holds in _EFFECTS for key in keys.split()}


def has_effect(path: str, values: Mapping[str, Any]) -> bool:
    """Whether the key ``path`` has an effect on the training of a configuration with ``values`` by dotted path."""
    others, holds = EFFECTS.get(path, ([], lambda: True))
    return holds(*map(values.__getitem__, others))


def normalize_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """The ``values`` of a configuration by dotted path, equal for configurations that train identically: a key without
    an effect has its default, no micro batch is larger than its step, and the effective batch size alone is given."""
    micro, ranks = values["batch.micro"], values["distributed.world_size"]
    number = None if micro == "auto" else micro
    size = compute_global_batch(values["batch.global"], number, values["batch.accumulation"], ranks)
    if number is not None and values["batch.schedule"] == "constant":
        micro = min(micro, ceil(size / ranks))
    idle = {path: default_settings()[path] for path in EFFECTS if not has_effect(path, values)}
    return {**values, **idle, "batch.micro": micro, "batch.accumulation": None, "batch.global": size}


@cache
def config_fields() -> Mapping[str, FieldInfo]:
    """The declaration of every configuration key, by dotted path."""
    return MappingProxyType(list_fields(TrialConfig))


def keys_of_cost(*costs: Cost) -> frozenset[str]:
    """The dotted paths of the keys that are declared with one of ``costs``, see :func:`sweep.config.sections.key`."""
    declared = {path: field.json_schema_extra for path, field in config_fields().items()}
    return frozenset(path for path, extra in declared.items() if isinstance(extra, dict) and extra["cost"] in costs)


def flatten_table(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """A TOML table by dotted path; quoted dotted keys and nested tables mean the same."""
    flat: dict[str, Any] = {}
    for name, value in table.items():
        path = f"{prefix}{name}"
        flat.update(flatten_table(value, f"{path}.") if isinstance(value, dict) else {path: value})
    return flat


def build_config(values: dict[str, Any], where: str) -> TrialConfig:
    """A configuration from dotted ``values``; the rest has defaults. Raises ``InputError``: naming ``where``, the key,
    the value and the rule."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        section, _, key = path.partition(".")
        if section not in TrialConfig.model_fields:
            raise InputError(f"{where}: {describe_unknown('key', shorten_text(path), config_keys())}")
        group = nested.setdefault(section, {} if key else value)
        if key and isinstance(group, dict):
            group[key] = value
        elif key or group is not value:
            raise InputError(f"{where}: {shorten_text(section)}: given as one value and key by key; keep the keys.")
    try:
        return TrialConfig.model_validate(nested)
    except ValidationError as error:
        raise InputError(explain_refusal(error, where, config_keys())) from None


def find_rivals(path: str) -> tuple[str, ...]:
    """The keys that ``path`` replaces when it is set."""
    section, _, key = path.partition(".")
    group = _REPLACING.get(section, ())
    return tuple(f"{section}.{other}" for other in group if other != key) if key in group else ()


def replace_keys(values: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Dotted ``values`` with ``changes`` over them; of keys that exclude each other, the changed one stays."""
    merged = dict(values)
    for path in changes:
        for rival in find_rivals(path):
            merged.pop(rival, None)
    return merged | changes
