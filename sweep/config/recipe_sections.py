"""The sections of a configuration on how a model is trained and evaluated: model, optimizer, schedule, precision,
regularization, evaluation, diagnostics."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from sweep.config.durations import Unit, parse_durations
from sweep.config.fields import Fraction, PositiveInt, Section, key
from sweep.config.tables.models import ModelName
from sweep.config.tables.recipes import OPTIMIZERS, OptimizerName, ScheduleName

Power = Annotated[float, Field(ge=-2.0, le=2.0)]
# The most that a rule gives: beyond half of the activations a network hardly trains; twice the 0.1 of Szegedy et al.
# 2015 (arXiv:1512.00567).
MOST_DROPOUT, MOST_LABEL_SMOOTHING = 0.5, 0.2


class ModelSection(Section):
    name: ModelName = key("resnet8", "the model that is trained; a plug-in may add more", cost="step")
    norm: Literal["batch", "ghost", "group", "layer", "sync"] = key(
        "batch", "normalization of a ResNet (a ViT has layer); sync is batch where there is one rank", cost="step"
    )
    norm_momentum: Annotated[float, Field(gt=0.0, le=1.0)] = key(
        0.1,
        "weight of a micro batch in the running statistics by which a batch, ghost or sync norm of a ResNet evaluates",
        unit="fraction",
        cost="none",
    )
    ghost_batch: PositiveInt = key(
        32, "samples that share their statistics with norm = ghost", unit="samples", cost="derived"
    )
    patch_size: PositiveInt | None = key(
        None,
        "side of a patch of a ViT, which divides the side of the images; absent: 2 up to 16 pixels, 4 up to 48, 8 up "
        "to 112, then 16, or the nearest size that divides",
        unit="pixels",
        cost="step",
    )
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = key(
        0.0,
        "share of activations that are dropped: before a ResNet's head, inside a ViT",
        unit="fraction",
        cost="switch",
    )
    stochastic_depth: Annotated[float, Field(ge=0.0, lt=1.0)] = key(
        0.0,
        "probability that a sample skips the last residual branch; less for those before it",
        unit="fraction",
        cost="switch",
    )
    weights: str | None = key(None, "file to start from: safetensors, or a torch file of tensors alone", cost="trial")
    freeze_stages: Annotated[int, Field(ge=0)] = key(
        0,
        "the stem and this many stages (of a ViT: blocks) are not trained; 0: everything is trained",
        unit="stages",
        cost="step",
    )


class OptimizerSection(Section):
    name: OptimizerName = key("momentum", "optimizer", cost="step")
    lr: Annotated[float, Field(gt=0.0, le=1e4)] = key(
        0.1, "learning rate at the top of the schedule, before `rules.lr`", cost="none"
    )
    weight_decay: Annotated[float, Field(ge=0.0, le=1e3)] = key(
        0.0, "applied to weights; norm parameters and biases are excluded", cost="none"
    )
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = key(
        0.9, "momentum of the SGD family and of Muon (absent: 0.95); beta1 of the Adam family", cost="switch"
    )
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] | None = key(
        None, "decay of the second moment; absent: the optimizer's own (0.999, RMSprop 0.99)", cost="none"
    )
    eps: Annotated[float, Field(gt=0.0, le=1.0)] | None = key(
        None, "added to the denominator; absent: the optimizer's own (1e-8, LAMB 1e-6)", cost="none"
    )
    trust_coefficient: Annotated[float, Field(gt=0.0, le=1.0)] = key(1e-3, "eta of LARS", cost="none")

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

    reference_batch: PositiveInt = key(
        256, "effective batch size at which all values hold as they are written", unit="samples", cost="none"
    )
    lr: Literal["none", "linear", "sqrt", "auto"] | Power = key(
        "none",
        "how optimizer.lr grows with the effective (global) batch size over `rules.reference_batch`; a number is the "
        "power: 0 is none, 0.5 sqrt, 1 linear; auto: linear for SGD and LARS, sqrt for the others",
        cost="none",
    )
    weight_decay: Literal["none", "linear", "sqrt", "timescale"] | Power = key(
        "none",
        "how optimizer.weight_decay grows with the effective batch size; a number is the power; timescale: so that the "
        "epochs over which it averages the updates, `weight_decay_timescale`, stay those of the reference batch, "
        "whatever rules.lr does",
        cost="none",
    )
    betas: Literal["none", "sqrt", "linear", "half_life"] | Power = key(
        "none",
        "how the betas of the Adam family follow the effective batch size; sqrt: with eps, as square-root scaling of "
        "lr requires; linear or a number: both 1 - beta grow with the ratio, or with that power of it; half_life: "
        "beta2 to the power of the ratio, so that its half-life in samples stays; beta1 stays",
        cost="none",
    )
    warmup: Literal["none", "graded"] = key(
        "none",
        "graded: none of the warm-up up to 2 times `rules.reference_batch`, a third at 4 times, two thirds at 8, "
        "all of it from 16 on; triangular has its own",
        cost="none",
    )
    epochs: Literal["none", "linear", "sqrt"] | Fraction = key(
        "none",
        "how budget.epochs grow with the effective batch size; a number is the power: 0 is as many epochs at every "
        "batch size, 1 as many steps",
        cost="trial",
    )
    label_smoothing: Literal["none", "linear", "sqrt"] = key(
        "none",
        f"how regularization.label_smoothing grows with the effective batch size, up to {MOST_LABEL_SMOOTHING:g}",
        cost="none",
    )
    dropout: Literal["none", "linear", "sqrt"] = key(
        "none", f"how model.dropout grows with the effective batch size, up to {MOST_DROPOUT:g}", cost="none"
    )
    ema: Literal["none", "power"] = key(
        "none",
        "power: regularization.ema_decay is for steps of rules.reference_batch samples; its half-life in samples stays",
        cost="none",
    )


class ScheduleSection(Section):
    name: ScheduleName = key(
        "cosine", "learning-rate schedule after the warm-up; wsd: warm-up, stable, decay", cost="none"
    )
    warmup: Annotated[float, Field(ge=0.0)] = key(
        0.05,
        "over which the learning rate rises, in warmup_unit; a text like '5 epochs' sets both",
        unit="`schedule.warmup_unit`",
        cost="none",
    )
    warmup_unit: Unit = key("fraction", "what `schedule.warmup` counts; a fraction is one of the budget", cost="none")
    milestones: str = key(
        "0.5, 0.75", "where step falls: fractions of the budget, or '30, 60 epochs' (steps, samples)", cost="none"
    )
    gamma: Annotated[float, Field(gt=0.0, le=1.0)] = key(0.1, "factor of step at each milestone", cost="none")
    peak: Fraction = key(
        0.2, "fraction of the budget at which triangular is highest; its warm-up", unit="fraction", cost="none"
    )
    final: Fraction = key(
        0.0, "of the highest rate, where cosine, linear, triangular and wsd end", unit="fraction", cost="none"
    )
    decay_share: Annotated[float, Field(gt=0.0, le=1.0)] = key(
        0.2,
        "last part of the budget, over which wsd falls; before it the rate is the highest, but for the warm-up",
        unit="fraction",
        cost="none",
    )

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
        "fp32",
        "number format of a step; `bf16`, `fp16` keep the weights in 32 bits; `tf32` requires a GPU",
        cost="step",
    )
    channels_last: bool = key(False, "memory layout of images and convolutions", cost="step")
    compile: bool = key(False, "`torch.compile`", cost="step")
    checkpointing: bool = key(False, "compute each block's activations again instead of keeping them", cost="step")
    cuda_graphs: bool = key(False, "replay forward and backward as one CUDA graph; requires a GPU", cost="step")


class RegularizationSection(Section):
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = key(
        0.0, "share of the target that is spread over all classes", unit="fraction", cost="switch"
    )
    grad_clip: Annotated[float, Field(gt=0.0)] | None = key(
        None, "largest norm of the gradient of a step; absent: no limit", cost="switch"
    )
    ema_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = key(
        None, "evaluate, and save, the moving average of the weights", cost="switch"
    )
    mixup: Annotated[float, Field(ge=0.0, le=100.0)] = key(0.0, "alpha of mixup; 0 is off", cost="switch")
    cutmix: Annotated[float, Field(ge=0.0, le=100.0)] = key(0.0, "alpha of cutmix; 0 is off", cost="switch")


class EvaluationSection(Section):
    tta: Literal["none", "flip"] = key(
        "none", "flip: the logits of an image and of its mirror image are averaged, in every evaluation", cost="step"
    )


class DiagnosticsSection(Section):
    ledger: Literal["phases", "full"] = key(
        "phases", "full: the time of steps is split into forward, backward and optimizer", cost="step"
    )
    noise_scale: bool = key(
        False, "measure the gradient noise scale while training, for each evaluation", cost="switch"
    )
    sharpness: bool = key(
        False,
        "measure how sharp the minimum is that was found; inside a study for confirming trials, or for all where "
        "the study has none",
        cost="trial",
    )
