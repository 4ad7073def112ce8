"""What a data set holds: found by looking at it before anything trains, recorded with the study, and shown."""

from collections.abc import Callable, Mapping
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
    # number of images by "width x height", most frequent first, and of "others" where there are very many sizes
    sizes: Mapping[str, int] = field(default_factory=dict)
    modes: Mapping[str, int] = field(default_factory=dict)  # number of images by mode: RGB, L, 3 channels, ...
    ignored: tuple[Ignored, ...] = ()
    notes: tuple[str, ...] = ()  # what a reader must know to trust results on it
    digest: str = ""  # equal digests, equal images, labels and splits; "" where that is not known

    def document(self) -> dict[str, Any]:
        """The summary as JSON values."""
        return asdict(self)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The summary that :meth:`document` gave, of this, an earlier or a later version.

        Raises:
            AttributeError, KeyError, TypeError: the document is not one of these.
        """
        return cls(**{name: read(document[name]) for name, read in _READERS.items() if name in document})

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


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} where a text belongs")
    return value


def _read_count(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{type(value).__name__} where a number of images belongs")
    return value


def _read_split(value: Any) -> int | None:
    return None if value is None else _read_count(value)


def _read_texts(values: Any) -> tuple[str, ...]:
    return tuple(map(_read_text, values))


def _read_counts(values: Any) -> dict[str, int]:
    return {name: _read_count(count) for name, count in values.items()}


def _read_ignored(value: Any) -> Ignored:
    return Ignored(
        reason=_read_text(value["reason"]),
        num_files=_read_count(value["num_files"]),
        examples=_read_texts(value["examples"]),
    )


# Records are files of others, too: each value is checked. Not by Pydantic, which refuses names that are no text.
_READERS: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("name", "root", "held_out", "digest"), _read_text),
    **dict.fromkeys(("num_train", "num_val", "num_test"), _read_split),
    "num_ignored": _read_count,
    "classes": lambda values: {name: _read_counts(counts) for name, counts in values.items()},
    **dict.fromkeys(("sizes", "modes"), _read_counts),
    "ignored": lambda values: tuple(map(_read_ignored, values)),
    "notes": _read_texts,
}
assert _READERS.keys() == {each.name for each in fields(DataSummary)}
