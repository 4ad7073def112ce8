"""Looks at a data set before anything trains on it. No torch here, unless a set requires it to load."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from sweep.config.data_sections import DataSection
from sweep.config.errors import InputError
from sweep.config.tables.datasets import DATASETS
from sweep.config.tables.entries import find_entry, resolve
from sweep.config.units import format_count
from sweep.records.data_summary import DataSummary, Ignored
from sweep.training.data.digests import digest_entry, digest_pixels, read_parts
from sweep.training.data.folders.inspection import OnProgress
from sweep.training.data.images import Indices
from sweep.training.data.source_checks import check_overlap, find_doubtful_pixels
from sweep.training.data.splits import (
    HELD_OUT,
    check_split_sizes,
    find_validation_share,
    hold_out_missing,
    shorten_train,
    split_source,
)
from sweep.training.data.table import load_source

_MAX_EXAMPLES = 1000  # paths of one reason
_MAX_ABSENT = 10  # classes in one note
# of a class without images in a split
_EFFECTS = {
    "train": "a training image, so that it cannot be learned",
    "val": "a validation image, so that val_accuracy does not cover it",
    "test": "a test image, so that test_accuracy does not cover it",
}


def count_classes(labels: Mapping[str, Indices], names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Images by class and split, from the ``labels`` (n,) of each split."""
    counts = {split: np.bincount(each, minlength=len(names)).tolist() for split, each in labels.items()}
    return {name: {split: counts[split][label] for split in counts} for label, name in enumerate(names)}


def share_of(labels: Mapping[str, Indices], section: DataSection) -> dict[str, Indices]:
    """The labels of the train, val and test split that trials use, from those of the splits that the set has.

    Raises:
        InputError: there are too few images to split.
    """
    train = labels["train"]
    rest, for_val, for_test = hold_out_missing(train, section, "val" in labels, "test" in labels)
    val = labels.get("val", train[for_val])
    check_split_sizes(section, len(train), len(rest), len(val))
    return {
        "train": train[shorten_train(rest, section)],
        "val": val,
        "test": labels.get("test", train[for_test]),
    }


def describe_held_out(origins: Mapping[str, str], section: DataSection) -> str:
    """Where validation and test images come from; ``origins`` are the splits that the set has and their names."""
    shares = {"test": HELD_OUT, "val": find_validation_share(section, has_test="test" in origins)}
    train = origins["train"] if origins["train"] != "/" else "all images"
    texts = []
    for split, word in (("test", "test"), ("val", "validation")):
        if split in origins:
            texts.append(f"{word}: {origins[split]}")
        else:
            whole = "the rest" if split == "val" and "test" not in origins else train
            texts.append(f"{word}: {100 * shares[split]:.0f} % of {whole}, held out by class, the same for every trial")
    return "; ".join(texts)


def list_ignored(ignored: Mapping[str, Sequence[str]]) -> tuple[Ignored, ...]:
    """The files of each reason, most first, with some of their paths."""
    most_first = sorted(ignored.items(), key=lambda item: -len(item[1]))
    return tuple(
        Ignored(
            reason=reason, num_files=len(paths), examples=tuple(path for path in sorted(paths)[:_MAX_EXAMPLES] if path)
        )
        for reason, paths in most_first
    )


def look_at_data(
    section: DataSection, on_progress: OnProgress | None = None, *, may_download: bool = False
) -> DataSummary:
    """Counts the images of the set that ``section`` names and checks that trials can use them.

    ``on_progress`` is called with the images inspected so far and all of them, where each file is decoded.
    A published set that is not there yet is downloaded only where that is allowed; without it nothing is counted.

    Raises:
        InputError: a set that is missing, unreadable, or has images or labels that no trial can use.
    """
    entry = find_entry("data set", section.name, DATASETS)
    if entry.facts is not None:
        _check_image_size(section)
    if entry.summarize is not None:
        summary: DataSummary = resolve(entry.summarize)(section, on_progress, may_download)
    else:
        summary = summarize_source(section)
    return replace(summary, notes=(*_find_absent_classes(summary), *summary.notes))


def _find_absent_classes(summary: DataSummary) -> list[str]:
    notes = []
    for split, effect in _EFFECTS.items():
        absent = [name for name, counts in summary.classes.items() if not counts.get(split)]
        if absent and len(absent) < len(summary.classes):
            some = ", ".join(absent[:_MAX_ABSENT]) + (" ..." if len(absent) > _MAX_ABSENT else "")
            notes.append(f"{format_count(len(absent), 'class', 'classes')} without {effect}: {some}")
    return notes


def summarize_source(section: DataSection) -> DataSummary:
    """The summary of a set that is loaded for it; without a digest of its entry, all pixels and labels are digested."""
    source = load_source(section)
    parts = read_parts(source, section.name)
    notes = [*check_overlap(section.name, parts), *find_doubtful_pixels(parts)]
    splits = split_source(source, section)
    labels = share_of({split: images.labels for split, images in parts.items()}, section)
    digest = digest_entry(section) or digest_pixels(parts)
    if not digest:
        notes.append(
            "its digest is not known, so that changed images cannot be noticed and no trial is taken from earlier "
            "records; give DatasetEntry(digest=...): a text that is equal for equal images"
        )
    num_all, num_used = sum(map(len, parts.values())), sum(map(len, labels.values()))
    left_out = {f"left out by data.subset = {section.subset}": [""] * (num_all - num_used)}
    side, channels = splits.shape.side, splits.shape.channels
    return DataSummary(
        name=section.name,
        root=section.root if DATASETS[section.name].depends_on_root else "",
        num_train=len(labels["train"]),
        num_val=len(labels["val"]),
        num_test=len(labels["test"]),
        num_ignored=num_all - num_used,
        classes=count_classes(labels, [str(label) for label in range(source.num_classes)]),
        held_out=describe_held_out({split: f"the set's own {split} split" for split in parts}, section),
        sizes={f"{side} x {side}": num_all},
        modes={f"{channels} {'channel' if channels == 1 else 'channels'}": num_all},
        ignored=list_ignored(left_out) if num_all > num_used else (),
        notes=tuple(notes),
        digest=digest,
    )


def _check_image_size(section: DataSection) -> None:
    if section.image_size is not None:
        raise InputError(
            f"data.image_size = {section.image_size} holds for imagefolder and synthetic; {section.name} has its own "
            "size, so leave data.image_size out."
        )
