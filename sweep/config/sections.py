"""The sections of a configuration, and the durations in their keys."""

import re
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from sweep.config.errors import shorten_text
from sweep.config.tables import OPTIMIZERS, DatasetName, ModelName, OptimizerName, ScheduleName

_CLOCK = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_seconds(value: object) -> object:
    """``90``, ``"90s"``, ``"10m"``, ``"2h"``, ``"1d"`` in seconds; other values are left for validation."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([smhd]?)\s*", value)):
        return float(match[1]) * _CLOCK[match[2] or "s"]
    if isinstance(value, str):
        raise ValueError("give a number of seconds or a duration like '90s', '10m', '2h'")
    return value


def round_up_duration(seconds: float) -> str:
    """The shortest duration of at least ``seconds`` that is a round number of its unit, as options take it."""
    if seconds < 2 * _CLOCK["m"]:
        return f"{10 * ceil(seconds / 10)}s"
    return f"{ceil(seconds / _CLOCK['m'])}m" if seconds < 3 * _CLOCK["h"] else f"{ceil(seconds / _CLOCK['h'])}h"


Seconds = Annotated[float, BeforeValidator(parse_seconds), Field(gt=0)]

Unit = Literal["fraction", "steps", "epochs", "samples"]
_UNITS: dict[str, Unit] = {
    "": "fraction", "fraction": "fraction", "step": "steps", "steps": "steps",
    "epoch": "epochs", "epochs": "epochs", "sample": "samples", "samples": "samples"
}  # fmt: skip
_NUMBER = r"\d+(?:\.\d*)?(?:e[+-]?\d+)?"
_TEXT = re.compile(rf"\s*({_NUMBER}(?:[\s,]+{_NUMBER})*)\s*([a-z]*)\s*", re.IGNORECASE)


class Durations(NamedTuple):
    """Moments of a training, all in one unit; a fraction is one of the budget."""

    values: tuple[float, ...]
    unit: Unit


def parse_durations(text: str) -> Durations:
    """``"0.5, 0.75"``, ``"30, 60 epochs"``, ``"500 steps"``, ``"10000 samples"``; a bare number is a fraction. Raises
    ``ValueError``: saying what is wrong with the text."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{shorten_text(repr(text))} is no duration; write '0.5', '500 steps', '30, 60 epochs' or '10000 samples'"
        )
    values = tuple(float(number) for number in match[1].replace(",", " ").split())
    word = match[2]
    if word.lower() not in _UNITS:
        raise ValueError(f"{shorten_text(repr(text))}: unknown unit {word!r}; known: {', '.join(get_args(Unit))}")
    unit = _UNITS[word.lower()]
    if unit == "fraction" and max(values) > 1:
        raise ValueError(
            f"{max(values):g} is no fraction of the budget; give a unit: '{max(values):g} steps' or epochs"
        )
    if list(values) != sorted(set(values)):
        raise ValueError(f"{shorten_text(', '.join(map('{:g}'.format, values)))}: give them in rising order, each once")
    return Durations(values, unit)


T = TypeVar("T")
Cost = Literal["step", "switch", "derived", "trial", "none"]

_PositiveInt = Annotated[int, Field(ge=1, le=2**40)]  # a bound that no training reaches and every database holds
_Positive = Annotated[float, Field(gt=0.0)]
_Passes = Annotated[float, Field(gt=0.0, le=1e6)]
_Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
_Some = Annotated[float, Field(gt=0.0, le=1.0)]  # a fraction above 0
_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Part = Annotated[float, Field(ge=0.0, lt=1.0)]  # below 1
_Inner = Annotated[float, Field(gt=0.0, lt=1.0)]  # between both


class Section(BaseModel):
    """A group of fields; frozen, so that what was recorded is what ran."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, populate_by_name=True)


def key(default: T, meaning: str, *, cost: Cost) -> T:
    """A field of a section with its meaning for the documentation, the forecast and the analysis.

    ``cost`` says how the key changes the time and memory of an optimizer step or an evaluation: ``step``: by its value;
    ``switch``: by being on (neither absent nor 0 nor false); ``derived``: together with other keys, see
    ``sweep/probing/shape.py``; ``trial``: only the number of steps, or other work of a trial; ``none``: not at all.
    """
    return Field(default, description=meaning, json_schema_extra={"cost": cost})


def list_fields(section: type[Section], prefix: str = "") -> dict[str, FieldInfo]:
    """The declaration of every key of ``section`` and of the sections in it, by dotted path."""
    declared: dict[str, FieldInfo] = {}
    for name, field in section.model_fields.items():
        path, kind = f"{prefix}{field.alias or name}", field.annotation
        kind = next((part for part in get_args(kind) if isinstance(part, type) and issubclass(part, Section)), kind)
        if isinstance(kind, type) and issubclass(kind, Section):
            declared |= list_fields(kind, f"{path}.")
        else:
            declared[path] = field
    return declared


def escape_bytes(path: str) -> str:
    """``path`` with its bytes that are no UTF-8 as escapes, so that every file and database can keep it."""
    return path.encode("utf-8", "backslashreplace").decode()


class DataSection(Section):
    name: DatasetName = key("digits", "data set; plug-ins add more", cost="step")
    root: str = key("data", "folder of the data; of imagefolder: the folder of class folders", cost="derived")
    # A micro batch is no larger than the data, and small sets are fed in another way.
    subset: _PositiveInt | None = key(None, "training images; absent: all", cost="step")
    # What is held out is not trained on, so that it changes the number of training images.
    validation_share: _Inner | None = key(
        None, "share held out for validation; absent: 0.15, or 0.1 where the set has a test split", cost="step"
    )
    image_size: Annotated[int, Field(ge=1, le=2**14)] | None = key(
        None, "side in pixels that imagefolder images are brought to", cost="step"
    )
    resize: Literal["crop", "stretch", "pad"] = key(
        "crop", "way to that size: crop the center square, stretch both sides, or pad with black", cost="trial"
    )
    on_bad_image: Literal["refuse", "skip"] = key(
        "refuse", "images that cannot be decoded: refuse the study, or leave them out", cost="trial"
    )
    augment: Literal[
        "none", "flip", "crop_flip", "alternating_flip", "crop_alternating_flip", "random_resized_crop", "randaugment"
    ] = key("none", "augmentation, drawn anew in each epoch", cost="step")
    augment_ops: Annotated[int, Field(ge=0, le=16)] = key(2, "operations of randaugment per image", cost="derived")
    augment_magnitude: Annotated[int, Field(ge=0, le=30)] = key(9, "strength of randaugment's operations", cost="trial")
    placement: Literal["device", "host"] = key(
        "device", "images on the device where there is room, or streamed from the host", cost="step"
    )
    workers: Annotated[int, Field(ge=0, le=256)] = key(0, "processes that read streamed images", cost="step")
    prefetch: Annotated[int, Field(ge=1, le=1024)] = key(
        2, "micro batches that each worker reads ahead", cost="derived"
    )

    _escape_root = field_validator("root")(escape_bytes)

    @property
    def folder(self) -> Path:
        """``root`` with the bytes that were escaped."""
        return Path(re.sub(r"\\udc([89a-f][0-9a-f])", lambda match: chr(0xDC00 + int(match[1], 16)), self.root))


class BatchSection(Section):
    micro: _PositiveInt | Literal["auto"] = key(
        64, "samples of a forward and backward pass; auto: as many as fit, with batch.global", cost="derived"
    )
    accumulation: _PositiveInt | None = key(1, "micro batches per optimizer step", cost="derived")
    global_: Annotated[_PositiveInt | None, Field(alias="global")] = key(
        None, "samples per optimizer step; replaces `batch.accumulation`", cost="derived"
    )
    schedule: Literal["constant", "linear", "exponential", "stepwise", "noise_scale", "plateau"] = key(
        "constant",
        "growth of the effective batch size over the budget; plateau: doubled when the loss stops falling",
        cost="derived",
    )
    schedule_factor: Annotated[float, Field(ge=1.0, le=1e6)] = key(
        8.0, "last effective batch size over the first, at most", cost="derived"
    )
    schedule_milestones: str = key("0.3, 0.6, 0.8", "shares of the budget at which stepwise grows", cost="trial")
    schedule_lr: Literal["keep", "rule", "seesaw"] = key(
        "keep", "learning rate as the batch grows: unchanged, by rules.lr, or over its square root", cost="trial"
    )
    plateau_patience: _PositiveInt = key(
        2, "evaluations without a 1 % lower loss before plateau doubles the batch", cost="trial"
    )

    @model_validator(mode="before")
    @classmethod
    def _global_replaces_accumulation(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("global") is not None and "accumulation" not in data:
            return data | {"accumulation": None}
        return data

    @model_validator(mode="after")
    def _keys_go_together(self) -> Self:
        if (self.accumulation is None) == (self.global_ is None):
            raise ValueError("give either batch.accumulation or batch.global")
        if self.micro == "auto" and self.global_ is None:
            raise ValueError("micro = 'auto' requires batch.global: the samples per optimizer step")
        shares, unit = parse_durations(self.schedule_milestones)
        if unit != "fraction" or shares[0] <= 0 or shares[-1] >= 1:
            raise ValueError("schedule_milestones requires growing shares between 0 and 1, such as '0.3, 0.6, 0.8'")
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
    def is_auto(self) -> bool:
        """Whether the micro batch is found by trying."""
        return self.micro == "auto"

    @property
    def milestones(self) -> tuple[float, ...]:
        """``schedule_milestones`` as numbers."""
        return parse_durations(self.schedule_milestones).values


BUDGETS = ("epochs", "steps", "samples", "seconds", "target")


class BudgetSection(Section):
    epochs: _Passes | None = key(None, "passes over the training split", cost="trial")
    steps: _PositiveInt | None = key(None, "optimizer steps; replaces the other budgets", cost="trial")
    samples: _PositiveInt | None = key(None, "samples; replaces the other budgets", cost="trial")
    seconds: _Positive | None = key(None, "seconds; replaces the other budgets", cost="trial")
    target: _Finite | None = key(
        None,
        "val_accuracy, or the metric of a script, that ends the training; replaces the other budgets",
        cost="trial",
    )
    max_epochs: _Passes = key(100.0, "most epochs with target; then `target_missed`", cost="trial")

    @model_validator(mode="before")
    @classmethod
    def _default_budget(cls, data: Any) -> Any:
        empty = isinstance(data, dict) and all(data.get(name) is None for name in BUDGETS)
        return data | {"epochs": 10.0} if empty else data

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one budget, not {' and '.join(given)}")
        return self


class DistributedSection(Section):
    world_size: Annotated[int, Field(ge=1, le=1024)] = key(
        1, "ranks that train one trial together, each on its GPU", cost="step"
    )


Power = Annotated[float, Field(ge=-2.0, le=2.0)]
# The most that a rule gives: beyond half of the activations a network hardly trains; twice the 0.1 of Szegedy et al.
# 2015 (arXiv:1512.00567).
MOST_DROPOUT, MOST_LABEL_SMOOTHING = 0.5, 0.2


class ModelSection(Section):
    name: ModelName = key("resnet8", "model; plug-ins add more", cost="step")
    norm: Literal["batch", "ghost", "group", "layer", "sync"] = key(
        "batch", "normalization of a ResNet; sync: batch statistics over all ranks", cost="step"
    )
    norm_momentum: _Some = key(0.1, "weight of a micro batch in the running statistics", cost="none")
    ghost_batch: _PositiveInt = key(32, "samples that share statistics with norm = ghost", cost="derived")
    patch_size: _PositiveInt | None = key(
        None, "side of a ViT's patch, a divisor of the image side; absent: chosen by that", cost="step"
    )
    dropout: _Part = key(0.0, "share of dropped activations", cost="switch")
    stochastic_depth: _Part = key(0.0, "probability of skipping the last residual branch", cost="switch")
    weights: str | None = key(None, "weights to start from: safetensors, or a torch file of tensors", cost="trial")
    freeze_stages: Annotated[int, Field(ge=0)] = key(
        0, "stages (blocks of a ViT) that are not trained, with the stem; 0: none", cost="step"
    )


class OptimizerSection(Section):
    name: OptimizerName = key("momentum", "optimizer", cost="step")
    lr: Annotated[float, Field(gt=0.0, le=1e4)] = key(
        0.1, "learning rate at the top of the schedule, before `rules.lr`", cost="none"
    )
    weight_decay: Annotated[float, Field(ge=0.0, le=1e3)] = key(
        0.0, "weight decay, not of norms and biases", cost="none"
    )
    momentum: _Part = key(0.9, "momentum (absent for Muon: 0.95); beta1 of the Adam family", cost="switch")
    beta2: _Part | None = key(None, "decay of the second moment; absent: 0.999, RMSprop 0.99", cost="none")
    eps: _Some | None = key(None, "added to the denominator; absent: 1e-8, LAMB 1e-6", cost="none")
    trust_coefficient: _Some = key(1e-3, "eta of LARS", cost="none")

    @model_validator(mode="before")
    @classmethod
    def _fill_momentum(cls, data: Any) -> Any:
        # here and not where it is used, so that the record has the value that was trained with
        if not isinstance(data, dict) or "momentum" in data:
            return data
        entry = OPTIMIZERS.get(str(data.get("name")))
        return data if entry is None or entry.momentum is None else data | {"momentum": entry.momentum}


class RulesSection(Section):
    """How the values of a recipe follow the effective (global) batch size: each value holds as it is written at the
    reference batch, and grows with a power of the ratio to it, which a rule names or which is given as a number."""

    reference_batch: _PositiveInt = key(256, "batch size your values were tuned for; rules scale from it", cost="none")
    lr: Literal["none", "linear", "sqrt", "auto"] | Power = key(
        "none", "growth of optimizer.lr; a number is the power; auto: linear for SGD and LARS, else sqrt", cost="none"
    )
    weight_decay: Literal["none", "linear", "sqrt", "timescale"] | Power = key(
        "none", "growth of optimizer.weight_decay; timescale: as many epochs of averaging", cost="none"
    )
    betas: Literal["none", "sqrt", "linear", "half_life"] | Power = key(
        "none", "growth of 1 - beta; sqrt: with eps; half_life: beta2 keeps its half-life in samples", cost="none"
    )
    warmup: Literal["none", "graded"] = key(
        "none", "graded: no warm-up at 2 times the reference batch, all of it from 16 times on", cost="none"
    )
    epochs: Literal["none", "linear", "sqrt"] | _Fraction = key(
        "none", "growth of budget.epochs; a number is the power: 0 is equal epochs, 1 equal steps", cost="trial"
    )
    label_smoothing: Literal["none", "linear", "sqrt"] = key(
        "none", f"growth of regularization.label_smoothing, up to {MOST_LABEL_SMOOTHING:g}", cost="none"
    )
    dropout: Literal["none", "linear", "sqrt"] = key(
        "none", f"growth of model.dropout, up to {MOST_DROPOUT:g}", cost="none"
    )
    ema: Literal["none", "power"] = key("none", "power: ema_decay keeps its half-life in samples", cost="none")


class ScheduleSection(Section):
    name: ScheduleName = key("cosine", "learning-rate schedule; wsd: warm-up, stable, decay", cost="none")
    warmup: Annotated[float, Field(ge=0.0)] = key(
        0.05, "warm-up length; a text like '5 epochs' sets the unit too", cost="none"
    )
    warmup_unit: Unit = key("fraction", "unit of `schedule.warmup`; fraction: of the budget", cost="none")
    milestones: str = key("0.5, 0.75", "where step falls: fractions of the budget, or '30, 60 epochs'", cost="none")
    gamma: _Some = key(0.1, "factor of step at each milestone", cost="none")
    peak: _Fraction = key(0.2, "fraction of the budget at which triangular is highest", cost="none")
    final: _Fraction = key(0.0, "end of cosine, linear, triangular and wsd, over the highest rate", cost="none")
    decay_share: _Some = key(0.2, "last part of the budget, over which wsd falls", cost="none")

    @model_validator(mode="before")
    @classmethod
    def _warmup_as_text(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("warmup"), str):
            return data
        values, unit = parse_durations(data["warmup"])
        if len(values) > 1:
            raise ValueError(f"warmup = {data['warmup']!r}: give one duration")
        if data.get("warmup_unit", unit) != unit:
            raise ValueError(f"warmup = {data['warmup']!r} and warmup_unit = {data['warmup_unit']!r}; give one unit")
        return data | {"warmup": values[0], "warmup_unit": unit}

    @field_validator("milestones")
    @classmethod
    def _milestones_are_durations(cls, text: str) -> str:
        parse_durations(text)
        return text

    @model_validator(mode="after")
    def _warmup_is_a_duration(self) -> Self:
        try:
            parse_durations(f"{self.warmup!r} {self.warmup_unit}")
        except ValueError as error:
            raise ValueError(f"warmup: {error}") from None
        return self


class PrecisionSection(Section):
    dtype: Literal["fp32", "tf32", "bf16", "fp16", "fp64"] = key(
        "fp32", "number format; `bf16`, `fp16` keep the weights in 32 bits", cost="step"
    )
    channels_last: bool = key(False, "memory layout of images and convolutions", cost="step")
    compile: bool = key(False, "`torch.compile`", cost="step")
    checkpointing: bool = key(False, "recompute activations instead of keeping them", cost="step")
    cuda_graphs: bool = key(False, "one CUDA graph for forward and backward; requires a GPU", cost="step")


class RegularizationSection(Section):
    label_smoothing: _Part = key(0.0, "share of the target that is spread over all classes", cost="switch")
    grad_clip: _Positive | None = key(None, "largest norm of a gradient; absent: no limit", cost="switch")
    ema_decay: _Inner | None = key(
        None, "decay of a moving average of the weights, which is evaluated and saved", cost="switch"
    )
    mixup: Annotated[float, Field(ge=0.0, le=100.0)] = key(0.0, "alpha of mixup; 0 is off", cost="switch")
    cutmix: Annotated[float, Field(ge=0.0, le=100.0)] = key(0.0, "alpha of cutmix; 0 is off", cost="switch")


class EvaluationSection(Section):
    tta: Literal["none", "flip"] = key("none", "flip: evaluations average an image and its mirror image", cost="step")


class DiagnosticsSection(Section):
    noise_scale: bool = key(False, "measure the gradient noise scale", cost="switch")
    sharpness: bool = key(
        False, "measure the sharpness of the minimum, of confirming trials where there are some", cost="trial"
    )
