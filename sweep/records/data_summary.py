"""What a data set holds: found by looking at it before anything trains, recorded with the study, and shown."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

SPLITS = ("train", "val", "test")


@dataclass(frozen=True, kw_only=True)
class Ignored:
    """Files or images that no trial uses, for one ``reason``."""

    reason: str
    num_files: int
    examples: tuple[str, ...]  # paths relative to the root


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """The images of a data set, as its trials use them. Numbers are None where the set is not there to be counted."""

    name: str
    root: str = ""  # "" where the set does not depend on it
    num_train: int | None = None  # with data.subset as it is configured
    num_val: int | None = None
    num_test: int | None = None
    num_ignored: int = 0
    # images by class and split, in the order of the labels
    classes: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    held_out: str = ""  # where validation and test images come from
    sizes: Mapping[str, int] = field(default_factory=dict)  # number of images by "width x height", most frequent first
    modes: Mapping[str, int] = field(default_factory=dict)  # number of images by mode: RGB, L, 3 channels, ...
    ignored: tuple[Ignored, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader must know to trust results on it
    digest: str = ""  # equal digests, equal images, labels and splits; "" where that is not known

    def document(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The summary that :meth:`document` gave, of this or an earlier version."""
        known = {each.name for each in fields(cls)}
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in document.items()
        }
        values["ignored"] = tuple(
            Ignored(**(each | {"examples": tuple(each["examples"])})) for each in document.get("ignored", ())
        )
        return cls(**{key: value for key, value in values.items() if key in known})

    def counts(self) -> str:
        """The images of each split in words, such as ``"1,300 training, 228 validation and 269 test images"``."""
        if self.num_train is None or self.num_val is None or self.num_test is None:
            return "not counted"
        return f"{self.num_train:,} training, {self.num_val:,} validation and {self.num_test:,} test images"

    def is_other_than(self, other: Self) -> bool:
        """Whether the two are known to differ in images, labels or splits."""
        return bool(self.digest and other.digest) and self.digest != other.digest

    def describe(self) -> str:
        """The counts, and the beginning of the digest."""
        return f"{self.counts()} (digest {self.digest[:12] or 'unknown'})"
