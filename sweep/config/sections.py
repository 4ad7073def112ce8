"""The sections of a configuration that say how a model is trained and evaluated: model, optimizer, schedule, precision,
regularisation."""

from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from sweep.config.durations import Unit, parse_durations
from sweep.config.names import ModelName, OptimizerName, ScheduleName
from sweep.config.section import Fraction, PositiveInt, Section

Rule = Literal["none", "linear", "sqrt"]


class ModelSection(Section):
    name: ModelName = "resnet8"
    norm: Literal["batch", "ghost", "group", "layer", "sync"] = Field(
        "batch", description="normalisation of a ResNet (a ViT has layer); sync is batch where there is one rank"
    )
    ghost_batch: PositiveInt = Field(32, description="samples that share their statistics with norm = ghost")
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    stochastic_depth: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        0.0, description="probability that a sample skips the last residual branch; less for those before it"
    )
    weights: str | None = Field(None, description="file to start from: safetensors, or a torch file of tensors alone")
    freeze_stages: Annotated[int, Field(ge=0)] = Field(
        0, description="the stem and this many stages (of a ViT: blocks) stay as they are; 0: everything is trained"
    )


class OptimizerSection(Section):
    name: OptimizerName = "momentum"
    lr: Annotated[float, Field(gt=0.0, le=1e4)] = 0.1
    lr_rule: Rule | Literal["auto"] = Field(
        "none", description="how lr grows with the global batch; auto: linear for SGD and LARS, sqrt for the others"
    )
    reference_batch: PositiveInt = Field(256, description="global batch at which all values hold as they are written")
    weight_decay: Annotated[float, Field(ge=0.0, le=1e3)] = 0.0
    weight_decay_rule: Rule = Field("none", description="how weight_decay grows with the global batch")
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = Field(0.9, description="beta1 of the Adam family")
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] | None = Field(
        None, description="memory of the squared gradients; absent: the optimizer's own (0.999, RMSprop 0.99)"
    )
    eps: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        None, description="added to the denominator; absent: the optimizer's own (1e-8, LAMB 1e-6)"
    )
    betas_rule: Literal["none", "sqrt"] = Field(
        "none",
        description="sqrt: betas and eps of the Adam family follow the global batch, as square-root scaling asks",
    )
    trust_coefficient: Annotated[float, Field(gt=0.0, le=1.0)] = Field(1e-3, description="eta of LARS")


class ScheduleSection(Section):
    name: ScheduleName = "cosine"
    warmup: Annotated[float, Field(ge=0.0)] = Field(
        0.05, description="over which the learning rate rises, in warmup_unit; a text like '5 epochs' sets both"
    )
    warmup_unit: Unit = "fraction"
    milestones: str = Field(
        "0.5, 0.75", description="where step falls: fractions of the budget, or '30, 60 epochs' (steps, samples)"
    )
    gamma: Annotated[float, Field(gt=0.0, le=1.0)] = Field(0.1, description="factor of step at each milestone")
    peak: Fraction = Field(0.2, description="fraction of the budget at which triangular is highest; its warm-up")
    final: Fraction = Field(0.0, description="of the highest rate, where cosine, linear and triangular end")

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
    dtype: Literal["fp32", "tf32", "bf16", "fp16", "fp64"] = "fp32"
    channels_last: bool = False
    compile: bool = False
    checkpointing: bool = Field(False, description="compute each block's activations again instead of keeping them")
    cuda_graphs: bool = Field(False, description="replay forward and backward as one CUDA graph; needs a GPU")


class RegularizationSection(Section):
    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    grad_clip: Annotated[float, Field(gt=0.0)] | None = None
    ema_decay: Annotated[float, Field(gt=0.0, lt=1.0)] | None = Field(
        None, description="evaluate, and save, the moving average of the weights"
    )
    ema_rule: Literal["none", "power"] = Field(
        "none", description="power: ema_decay is for optimizer.reference_batch samples; larger steps forget as much"
    )
    mixup: Annotated[float, Field(ge=0.0, le=100.0)] = Field(0.0, description="alpha of mixup; 0 is off")
    cutmix: Annotated[float, Field(ge=0.0, le=100.0)] = Field(0.0, description="alpha of cutmix; 0 is off")


class EvaluationSection(Section):
    tta: Literal["none", "flip"] = Field(
        "none", description="flip: the logits of an image and of its mirror image are averaged, in every evaluation"
    )


class DiagnosticsSection(Section):
    ledger: Literal["phases", "full"] = Field(
        "phases", description="full: the time of steps is split into forward, backward and optimizer"
    )
    noise_scale: bool = Field(False, description="measure the gradient noise scale while training, for each evaluation")
    sharpness: bool = Field(
        False, description="measure how sharp the minimum is that was found; inside a study for confirming trials"
    )
