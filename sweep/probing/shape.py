"""The shape of a configuration: the fields that time and memory of its steps depend on, and its images on a GPU.

Imports no torch.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from math import ceil

from sweep.config.script import PREFIX
from sweep.config.tables import DATASETS, DataFacts
from sweep.config.trial import Scalar, TrialConfig, config_keys, default_settings, flatten_config, keys_of_cost
from sweep.records.records import digest_shape
from sweep.training.budget import BatchSchedule
from sweep.training.constants import RESIDENT_SHARE, TRAIN_ACCURACY_IMAGES
from sweep.training.data.windows import choose_crop_pad

# The declaration of each key says on what its cost depends, see sweep.config.sections.key.
SWITCHES = keys_of_cost("switch")
NO_SHAPE = keys_of_cost("trial", "none")
_STEP_KEYS = keys_of_cost("step")
_SIZE_KEYS = frozenset({"batch.micro", "batch.accumulation"})
_LABEL_BYTES = 8
_version = cache(version)


@dataclass(frozen=True)
class Shape:
    """``facts`` by the key that they come from. Two configurations of equal shape take equal time and memory a step."""

    facts: tuple[tuple[str, Scalar], ...]

    @property
    def text(self) -> str:
        return json.dumps(dict(self.facts))

    @classmethod
    def from_text(cls, text: str) -> "Shape":
        """The inverse of :attr:`text`."""
        return cls(tuple(json.loads(text).items()))

    @cached_property
    def group(self) -> "Shape":
        """All but the size of a step: inside a group only the micro batch and the accumulation differ."""
        return Shape(tuple(fact for fact in self.facts if fact[0] not in _SIZE_KEYS))

    def of(self, key: str) -> Scalar:
        return dict(self.facts)[key]

    def replace(self, changes: Mapping[str, Scalar]) -> "Shape":
        """The shape with other values of the keys of ``changes``."""
        return Shape(tuple((key, changes.get(key, value)) for key, value in self.facts))


def derive_shape(config: TrialConfig) -> Shape:
    """The shape of the steps of ``config``; of a growing batch, its largest step."""
    flat, data = flatten_config(config), config.data
    derived: dict[str, Scalar] = {
        "model.ghost_batch": config.model.ghost_batch if config.model.norm == "ghost" else 0,
        "data.root": data.root if DATASETS[data.name].depends_on_root else "",
        "data.augment_ops": data.augment_ops if data.augment == "randaugment" else 0,
        "data.prefetch": data.prefetch if data.workers else default_settings()["data.prefetch"],
        "batch.micro": config.micro_batch,
        "batch.accumulation": min(find_largest_accumulation(config), 2),
        "batch.schedule": "noise_scale" if config.batch.schedule == "noise_scale" else "constant",
    }
    facts: dict[str, Scalar] = {}
    for key in config_keys():
        if key in derived:
            facts[key] = derived[key]
        elif key in SWITCHES:
            facts[key] = bool(flat[key])
        elif key in _STEP_KEYS:
            facts[key] = flat[key]
    facts |= {key: value for key, value in flat.items() if key.startswith(PREFIX)}  # of a script's own
    return Shape(tuple(facts.items()))


def digest_trial_shape(config: TrialConfig) -> str:
    """The digest of the shape of every step of a trial; "" where its steps have several shapes."""
    if config.batch.is_auto or config.batch.schedule != "constant":
        return ""
    return digest_shape(derive_shape(config).text)


def find_largest_accumulation(config: TrialConfig) -> int:
    """Micro batches of the largest global batch of a training; ``config.num_accumulation`` where it does not grow."""
    quantum = config.micro_batch * config.distributed.world_size
    largest = BatchSchedule(config.batch, config.global_batch_size, quantum).largest
    return max(1, ceil(largest / quantum))


def replace_micro_batch(config: TrialConfig, micro: int, accumulation: int | None = None) -> TrialConfig:
    """``config`` with micro batches of ``micro`` samples, ``accumulation`` of them in a step (its own, at most two)."""
    count = min(find_largest_accumulation(config), 2) if accumulation is None else accumulation
    schedule = "noise_scale" if config.batch.schedule == "noise_scale" else "constant"
    changes = {"micro": micro, "accumulation": count, "global_": None, "schedule": schedule}
    return config.model_copy(update={"batch": config.batch.model_copy(update=changes)})


def make_probed_config(config: TrialConfig) -> TrialConfig:
    """The configuration that is probed for the shape of ``config``."""
    return replace_micro_batch(config, config.micro_batch)


def make_shape_key(shape: Shape, code_digest: str) -> str:
    """64 hexadecimal digits: equal keys on one device class mean that another probe would measure the same. The key
    covers the shape, the training code by its digest, and torch's version."""
    content = {"shape": dict(shape.facts), "code": code_digest, "torch": _version("torch")}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def count_resident_bytes(config: TrialConfig, facts: DataFacts, num_held_out: int, free_bytes: int) -> int:
    """Bytes of the images that ``config`` keeps on a GPU with ``free_bytes`` for a process, beside its training step.

    These are the train split with the border for crops, the part of it that train accuracy is measured on, and
    ``num_held_out`` other images. A train split of more than a quarter of ``free_bytes`` stays on the host. Images of
    files always do, and are counted too.
    """
    if config.data.placement != "device":
        return 0
    channels, side = facts.shape.channels, facts.shape.side
    if facts.num_train * channels * side**2 > RESIDENT_SHARE * free_bytes:
        return 0
    padded = channels * (side + 2 * choose_crop_pad(config, side)) ** 2
    others = num_held_out + min(facts.num_train, TRAIN_ACCURACY_IMAGES)
    return facts.num_train * (padded + _LABEL_BYTES) + others * (channels * side**2 + _LABEL_BYTES)
