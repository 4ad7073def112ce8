"""The shape of a configuration: what time and memory of its steps depend on, and nothing else. No torch here."""

import hashlib
import json
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from math import ceil

from sweep.config.trial_config import Scalar, TrialConfig, config_keys, flatten
from sweep.training.steps.batch_schedule import BatchSchedule

# Every key of a configuration stands in one of these tables; a test holds that, so that a new key is thought about.
AS_THEY_ARE = (
    "model.name",
    "model.norm",
    "model.freeze_stages",
    "data.name",
    "data.subset",  # a micro batch is no larger, and small sets are fed in another way
    "data.image_size",
    "data.augment",
    "data.placement",
    "data.workers",
    "optimizer.name",
    "precision.dtype",
    "precision.channels_last",
    "precision.compile",
    "precision.checkpointing",
    "precision.cuda_graphs",
    "evaluation.tta",  # no step depends on it, but the time of an evaluation does
    "diagnostics.ledger",
    "distributed.world_size",
)
# Only whether they are on; how much of it costs the same.
SWITCHES = (
    "model.dropout",
    "model.stochastic_depth",
    "optimizer.momentum",
    "regularization.label_smoothing",
    "regularization.grad_clip",
    "regularization.ema_decay",
    "regularization.mixup",
    "regularization.cutmix",
    "diagnostics.noise_scale",
)
# What they mean depends on another key; each is worked out in ``_worked_out``.
WORKED_OUT = (
    "data.root",
    "data.augment_ops",
    "model.ghost_batch",
    "batch.micro",
    "batch.accumulation",
    "batch.global",
    "batch.schedule",
    "batch.schedule_factor",
)
NO_SHAPE = frozenset(
    {
        "model.weights",
        "data.augment_magnitude",
        "batch.memory_low",
        "batch.memory_high",
        "batch.schedule_milestones",
        "batch.schedule_lr",
        "optimizer.lr",
        "optimizer.lr_rule",
        "optimizer.reference_batch",
        "optimizer.weight_decay",
        "optimizer.weight_decay_rule",
        "optimizer.beta2",
        "optimizer.eps",
        "optimizer.betas_rule",
        "optimizer.trust_coefficient",
        "schedule.name",
        "schedule.warmup",
        "schedule.warmup_unit",
        "schedule.milestones",
        "schedule.gamma",
        "schedule.peak",
        "schedule.final",
        "budget.epochs",
        "budget.steps",
        "budget.samples",
        "budget.seconds",
        "budget.target_accuracy",
        "budget.max_epochs",
        "regularization.ema_rule",
        "diagnostics.sharpness",
        "seed",
    }
)
_PLACELESS = frozenset({"digits", "mnist", "fashion_mnist", "cifar10", "cifar100", "synthetic", "noisy_quadratic"})
_OF_A_WINDOW = frozenset({"batch.micro", "batch.accumulation"})


@dataclass(frozen=True)
class Shape:
    """``facts`` by the key that they come from. Two configurations of equal shape take equal time and memory a step."""

    facts: tuple[tuple[str, Scalar], ...]

    @property
    def text(self) -> str:
        """JSON, to be read by people and programs."""
        return json.dumps(dict(self.facts))

    @classmethod
    def from_text(cls, text: str) -> "Shape":
        """The inverse of :attr:`text`."""
        return cls(tuple(json.loads(text).items()))

    @cached_property
    def group(self) -> "Shape":
        """All but the size of a step: what differs inside a group is the micro batch and the accumulation."""
        return Shape(tuple(fact for fact in self.facts if fact[0] not in _OF_A_WINDOW))

    def of(self, key: str) -> Scalar:
        """The fact called ``key``."""
        return dict(self.facts)[key]


def shape_of(config: TrialConfig) -> Shape:
    """The shape of ``config``."""
    flat = flatten(config)
    worked_out = _worked_out(config)
    facts: dict[str, Scalar] = {}
    for key in config_keys():
        if key in worked_out:
            facts[key] = worked_out[key]
        elif key in SWITCHES:
            facts[key] = bool(flat[key])
        elif key not in NO_SHAPE and key not in WORKED_OUT:
            facts[key] = flat[key]
    return Shape(tuple(facts.items()))


def _worked_out(config: TrialConfig) -> dict[str, Scalar]:
    data = config.data
    return {
        "model.ghost_batch": config.model.ghost_batch if config.model.norm == "ghost" else 0,
        "data.root": "" if data.name in _PLACELESS else data.root,
        "data.augment_ops": data.augment_ops if data.augment == "randaugment" else 0,
        "batch.micro": micro_batch(config),
        "batch.accumulation": min(num_micro_batches(config), 2),
        "batch.schedule": "noise_scale" if config.batch.schedule == "noise_scale" else "constant",
    }


def micro_batch(config: TrialConfig) -> int:
    """Samples of a micro batch on each rank; one that is to be found is taken to be as large as it can be."""
    return config.global_batch_size if config.batch.micro == "auto" else config.batch.micro


def num_micro_batches(config: TrialConfig) -> int:
    """Micro batches of the largest global batch that may come."""
    quantum = micro_batch(config) * config.distributed.world_size
    largest = BatchSchedule(config.batch, config.global_batch_size, quantum).largest
    return max(1, ceil(largest / quantum))


def with_micro(config: TrialConfig, micro: int, accumulation: int | None = None) -> TrialConfig:
    """``config`` in micro batches of ``micro`` samples; of so many in a step, its own number (at most two) if None."""
    count = min(num_micro_batches(config), 2) if accumulation is None else accumulation
    schedule = "noise_scale" if config.batch.schedule == "noise_scale" else "constant"
    changes = {"micro": micro, "accumulation": count, "global_": None, "schedule": schedule}
    return config.model_copy(update={"batch": config.batch.model_copy(update=changes)})


def probed_config(config: TrialConfig) -> TrialConfig:
    """The configuration that is probed for the shape of ``config``."""
    return with_micro(config, micro_batch(config))


def shape_key(shape: Shape, code_digest: str) -> str:
    """64 hexadecimal digits: equal keys on one device class mean that probing again would tell the same.

    Over the shape, the training code by its digest, and torch's version. Facts that are those of a configuration of
    defaults are left out, so that a key stays valid when a field is added.
    """
    usual = dict(_default_facts())
    facts = {key: value for key, value in shape.facts if key not in usual or value != usual[key]}
    content = {"shape": facts, "code": code_digest, "torch": _torch_version()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def _torch_version() -> str:
    return version("torch")


@cache
def _default_facts() -> tuple[tuple[str, Scalar], ...]:
    return shape_of(TrialConfig()).facts
