"""The sections of a configuration on what a model is trained on and how much of it: data, batch, budget, ranks."""

from itertools import pairwise
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from sweep.config.fields import Fraction, PositiveInt, Section, key
from sweep.config.tables.datasets import DatasetName


class DataSection(Section):
    name: DatasetName = key("digits", "the data set; a plug-in may add more", cost="step")
    root: str = key("data", "folder that holds the data; for imagefolder the folder of class folders", cost="derived")
    # A micro batch is no larger than the data, and small sets are fed in another way.
    subset: PositiveInt | None = key(None, "train on this many images; all when absent", unit="images", cost="step")
    # What is held out is not trained on, so that it changes the number of training images.
    validation_share: Annotated[float, Field(gt=0.0, lt=1.0)] | None = key(
        None,
        "share of the images, without those held out for testing, that is held out for validation where the set has no "
        "validation split of its own; absent: 0.15, or 0.1 where it has a test split of its own",
        unit="fraction",
        cost="step",
    )
    image_size: Annotated[int, Field(ge=1, le=2**14)] | None = key(
        None, "side in pixels that imagefolder images are brought to", unit="pixels", cost="step"
    )
    resize: Literal["crop", "stretch", "pad"] = key(
        "crop",
        "how imagefolder images get that size: `crop`: the short side, then the center square; `stretch`: both sides; "
        "`pad`: the long side, with black borders",
        cost="trial",
    )
    on_bad_image: Literal["refuse", "skip"] = key(
        "refuse", "imagefolder images that cannot be decoded: refuse the study, or train without them", cost="trial"
    )
    augment: Literal[
        "none",
        "flip",
        "crop_flip",
        "alternating_flip",
        "crop_alternating_flip",
        "random_resized_crop",
        "randaugment",
    ] = key(
        "none",
        "drawn for each sample of each epoch; random_resized_crop: 8 to 100 % of the image, which has "
        "`data.image_size` by then, at an aspect ratio of 3/4 to 4/3, brought back to that size, and a flip",
        cost="step",
    )
    augment_ops: Annotated[int, Field(ge=0, le=16)] = key(
        2, "operations per image of randaugment", unit="operations", cost="derived"
    )
    augment_magnitude: Annotated[int, Field(ge=0, le=30)] = key(9, "strength of randaugment's operations", cost="trial")
    placement: Literal["device", "host"] = key(
        "device",
        "`device`: all images are kept on the device where there is room; `host`: they are streamed",
        cost="step",
    )
    workers: Annotated[int, Field(ge=0, le=256)] = key(
        0, "that read images which are streamed", unit="processes", cost="step"
    )
    prefetch: Annotated[int, Field(ge=1, le=1024)] = key(
        2, "that each worker reads ahead; requires data.workers", unit="micro batches", cost="derived"
    )


class BatchSection(Section):
    micro: PositiveInt | Literal["auto"] = key(
        64,
        "samples of one forward and backward pass, at most; auto: the largest that fits; requires batch.global",
        unit="samples",
        cost="derived",
    )
    accumulation: PositiveInt | None = key(1, "micro batches per optimizer step", unit="micro batches", cost="derived")
    global_: Annotated[PositiveInt | None, Field(alias="global")] = key(
        None, "replaces `batch.accumulation`; samples per optimizer step", unit="samples", cost="derived"
    )
    memory_low: Fraction = key(
        0.6, "share of the device's memory below which an auto micro batch grows", unit="fraction", cost="trial"
    )
    memory_high: Fraction = key(
        0.8, "share of the device's memory above which it shrinks", unit="fraction", cost="trial"
    )
    schedule: Literal["constant", "linear", "exponential", "stepwise", "noise_scale", "plateau"] = key(
        "constant",
        "how the effective (global) batch size grows over the budget; plateau: it doubles when the training loss has "
        "stopped falling",
        cost="derived",
    )
    schedule_factor: Annotated[float, Field(ge=1.0, le=1e6)] = key(
        8.0, "last effective batch size over the first; for noise_scale and plateau the most", cost="derived"
    )
    schedule_milestones: str = key(
        "0.3, 0.6, 0.8", "shares of the budget at which stepwise grows", unit="fraction", cost="trial"
    )
    schedule_lr: Literal["keep", "rule", "seesaw"] = key(
        "keep",
        "rule: rules.lr follows the growth; seesaw: the rate falls with the square root of the growth",
        cost="trial",
    )
    plateau_patience: PositiveInt = key(
        2, "without progress, after which plateau doubles the batch", unit="evaluations", cost="trial"
    )
    plateau_threshold: Fraction = key(
        0.01,
        "by which the mean training loss between two evaluations must fall below the lowest one for progress",
        unit="fraction",
        cost="trial",
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
        if self.memory_low >= self.memory_high:
            raise ValueError(
                f"memory_low must lie below memory_high; they are {self.memory_low:g} and {self.memory_high:g}: lower "
                "the first or raise the second"
            )
        shares = self.milestones
        if not shares or any(not low < high for low, high in pairwise((0.0, *shares, 1.0))):
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
        """``schedule_milestones`` as numbers; empty where they are none."""
        try:
            return tuple(float(share) for share in self.schedule_milestones.replace(",", " ").split())
        except ValueError:
            return ()


BUDGETS = ("epochs", "steps", "samples", "seconds", "target_accuracy")


class BudgetSection(Section):
    epochs: Annotated[float, Field(gt=0.0, le=1e6)] | None = key(
        None, "passes over the training split; a part of one is rounded up to a step", unit="passes", cost="trial"
    )
    steps: PositiveInt | None = key(None, "replaces the other budgets", unit="optimizer steps", cost="trial")
    samples: PositiveInt | None = key(None, "replaces the other budgets", unit="samples", cost="trial")
    seconds: Annotated[float, Field(gt=0.0)] | None = key(
        None, "of train_seconds; replaces the other budgets", unit="seconds", cost="trial"
    )
    target_accuracy: Annotated[float, Field(gt=0.0, le=1.0)] | None = key(
        None,
        "train until an evaluation reaches this val_accuracy, for max_epochs at most; replaces the other budgets",
        unit="fraction",
        cost="trial",
    )
    max_epochs: Annotated[float, Field(gt=0.0, le=1e6)] = key(
        100.0,
        "cap of a target_accuracy, below which the trial ends there as `target_missed`; else unused",
        unit="passes",
        cost="trial",
    )

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
        1,
        "they train one trial together, each on a GPU of its own; on a CPU they share its cores",
        unit="ranks",
        cost="step",
    )
