"""The data set that a configuration names: loaded, counted and checked before anything trains, and identified.

What a load function returns is checked as strictly as a study file. Imports no torch, unless to check a model, or for a
set that requires it to load.
"""

import hashlib
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from operator import index
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import numpy as np

from sweep.config.errors import InputError
from sweep.config.metrics import format_count
from sweep.config.sections import DataSection, ModelSection
from sweep.config.tables import DATASETS, DataFacts, ImageShape, find_entry, resolve
from sweep.config.trial import TrialConfig
from sweep.records.inputs import DataSummary, Ignored
from sweep.records.messages import ExpectedData
from sweep.training.data.image_maps import OnProgress
from sweep.training.data.images import (
    HELD_OUT,
    ArrayImages,
    Images,
    Indices,
    Pixels,
    Source,
    Splits,
    check_subset,
    find_validation_share,
    hold_out,
    split_source,
)

if TYPE_CHECKING:
    from sweep.config.study import StudySpec


_MAX_DIGESTED_BYTES = 64 * 2**20  # of pixels that every trial digests, which takes 0.3 s at most
_MAX_EXAMPLES = 1000  # paths of one reason
_MAX_ABSENT = 10  # classes in one note
_EFFECTS = {  # of a class without images in a split
    "train": "a training image, so that it cannot be learned",
    "val": "a validation image, so that val_accuracy does not cover it",
    "test": "a test image, so that test_accuracy does not cover it",
}


def load_splits(section: DataSection, expected: ExpectedData | None = None) -> Splits:
    """The splits of the data set that ``section`` names; its images are compared with those ``expected``. Raises
    ``InputError``: for an unknown set, missing files, too few images, or others than expected."""
    source = _load_source(section)
    if expected is not None:
        _check_unchanged(source, section, expected)
    return split_source(source, section)


def find_facts(section: DataSection) -> DataFacts:
    """Shape and number of the training images of the set that ``section`` names; loads it only where nothing is known.
    Raises ``InputError``: for a set that must be looked at and is not there, or a key that the set does not admit."""
    entry = find_entry("data set", section.name, DATASETS)
    if entry.facts is not None:
        _check_image_size(section)
    # a fixed number of training images holds for the usual hold-out alone
    fixed = entry.facts if section.validation_share is None else None
    facts: DataFacts | None = resolve(entry.find_facts)(section) if entry.find_facts else fixed
    if facts is None:
        splits = load_splits(section)
        return DataFacts(splits.shape, len(splits.train))
    check_subset(section, facts.num_train)
    return facts._replace(num_train=section.subset or facts.num_train)


def check_inputs(
    configs: Iterable[TrialConfig],
    device_type: str | None = None,
    on_progress: OnProgress | None = None,
    *,
    may_download: bool = False,
) -> DataSummary:
    """Checks what trials of ``configs`` need before any runs; what their data set holds. All read the same images.

    ``device_type`` is cpu or cuda; None admits what any of them has. See :func:`look_at_data` for the other arguments.
    Raises ``InputError``: the device type does not have a precision or a norm, the data or the weights to start from
    cannot be used, or a model cannot take the images."""
    from sweep.training.models.build import check_model  # imports torch, which takes seconds

    found: dict[DataSection, tuple[DataSummary, ImageShape]] = {}
    models: set[tuple[ModelSection, ImageShape]] = set()
    for config in configs:
        if device_type is not None:
            check_device(config, device_type)
        _check_weights(config.model.weights)
        if config.data not in found:
            found[config.data] = _inspect(config.data, on_progress, may_download)
        _, shape = found[config.data]
        if (config.model, shape) not in models:
            check_model(config.model, shape)
            models.add((config.model, shape))
    return next(iter(found.values()))[0]


def look_at_data(section: DataSection, on_progress: OnProgress | None = None) -> DataSummary:
    """Counts the images of the set that ``section`` names and checks that trials can use them.

    ``on_progress`` is called with the images decoded so far, all of them, and what they are decoded into. Raises
    ``InputError``: a set that is missing, unreadable, or has images or labels that no trial can use."""
    return _inspect(section, on_progress, may_download=False)[0]


def _inspect(
    section: DataSection, on_progress: OnProgress | None, may_download: bool
) -> tuple[DataSummary, ImageShape]:
    # a published set that is not there yet is downloaded only where that is allowed; without it nothing is counted
    entry = find_entry("data set", section.name, DATASETS)
    if entry.facts is not None:
        _check_image_size(section)
    if entry.summarize is not None:
        summary: DataSummary = resolve(entry.summarize)(section, on_progress, may_download)
        shape = find_facts(section).shape
    else:
        summary, shape = summarize_source(section)
    return replace(
        summary, notes=(*_find_absent_classes(summary), *_find_similar_classes(summary), *summary.notes)
    ), shape


def expect_data(spec: "StudySpec", data: DataSummary) -> Callable[[TrialConfig], ExpectedData | None]:
    """What a trial of ``spec`` must read, by its configuration, where ``data`` was counted for the study."""
    entry = DATASETS[data.name]
    expected = make_expected_data(data)
    counted = spec.corners.first.data
    # a load function may make other pixels for another section; a digest of the files or of the entry does not
    is_of_pixels = entry.summarize is None and entry.digest is None
    return lambda config: None if is_of_pixels and config.data != counted else expected


def make_expected_data(data: DataSummary) -> ExpectedData | None:
    """What a trial must read of the set that was counted as ``data``; None where that is not known."""
    return ExpectedData(data.digest, sum(data.sizes.values())) if data.digest else None


def make_inputs_digest(config: TrialConfig, data_digest: str) -> str:
    """What identifies the images, whose digest is ``data_digest``, and the weights to start from: equal digests, equal
    content."""
    parts = [config.data.name, data_digest]
    if config.model.weights is not None:
        _check_weights(config.model.weights)
        with Path(config.model.weights).open("rb") as file:
            parts.append(hashlib.file_digest(file, "sha256").hexdigest())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def check_device(config: TrialConfig, device_type: str) -> None:
    """Raises ``InputError`` for a precision or a norm that a ``device_type`` (cpu, cuda) does not have."""
    if device_type == "cuda":
        return
    if config.precision.dtype == "tf32":
        raise InputError("precision.dtype = 'tf32' is a number format of NVIDIA GPUs; on a CPU use fp32 or bf16.")
    if config.precision.cuda_graphs:
        raise InputError("precision.cuda_graphs = true requires an NVIDIA GPU; on a CPU leave it out.")
    if config.model.norm == "sync" and config.distributed.world_size > 1:
        raise InputError(
            "model.norm = 'sync' over several ranks requires NVIDIA GPUs; on a CPU use 'batch' or 'ghost', whose "
            "statistics are of a rank's own micro batch."
        )


def summarize_source(section: DataSection) -> tuple[DataSummary, ImageShape]:
    """The summary of a set that is loaded for it; without a digest of its entry, all pixels and labels are digested."""
    source = _load_source(section)
    parts = _read_parts(source, section.name)
    in_memory = {split: images.pixels for split, images in parts.items() if isinstance(images, ArrayImages)}
    digests = {split: [_digest_array(pixels) for pixels in all_of] for split, all_of in in_memory.items()}
    notes = note_copies(digests, {split: images.labels for split, images in parts.items()})
    digest = _digest_entry(section) or _digest_pixels(parts)
    if not digest:
        notes.append(
            "its digest is not known, so that changed images cannot be noticed and no trial is taken from earlier "
            "records; give DatasetEntry(digest=...): a text that is equal for equal images"
        )
    side, channels, num_images = source.train.side, source.train.channels, sum(map(len, parts.values()))
    summary = summarize_splits(
        section,
        {split: images.labels for split, images in parts.items()},
        [str(label) for label in range(source.num_classes)],
        {split: f"the set's own {split} split" for split in parts},
        sizes={f"{side} x {side}": num_images},
        modes={f"{channels} {'channel' if channels == 1 else 'channels'}": num_images},
        notes=tuple(notes),
        digest=digest,
    )
    return summary, ImageShape(channels=channels, side=side, num_classes=source.num_classes)


def summarize_splits(
    section: DataSection,
    labels: Mapping[str, Indices],
    class_names: Sequence[str],
    origins: Mapping[str, str],
    *,
    ignored: Mapping[str, Sequence[str]] | None = None,
    **others: Any,
) -> DataSummary:
    """The summary of a set with the ``labels`` (n,) of each split that it has (train, and maybe val and test).

    ``origins`` say where these splits come from, ``ignored`` are paths by the reason why they are not used; ``others``
    are the summary's further fields.
    """
    held_out = hold_out(labels["train"], section, has_validation="val" in labels, has_test="test" in labels)
    train = labels["train"]
    used = {"train": train[held_out.train], "val": train[held_out.validation], "test": train[held_out.test]} | {
        split: numbers for split, numbers in labels.items() if split != "train"
    }
    paths = dict(ignored or {})
    if num_left_out := sum(map(len, labels.values())) - sum(map(len, used.values())):
        paths[f"left out by data.subset = {section.subset}"] = [""] * num_left_out
    counts = {split: np.bincount(numbers, minlength=len(class_names)).tolist() for split, numbers in used.items()}
    classes = {name: {split: counts[split][label] for split in counts} for label, name in enumerate(class_names)}
    return DataSummary(
        name=section.name,
        root=section.root if DATASETS[section.name].depends_on_root else "",
        num_train=len(used["train"]),
        num_val=len(used["val"]),
        num_test=len(used["test"]),
        num_ignored=sum(map(len, paths.values())),
        classes=classes,
        held_out=_describe_held_out(origins, section),
        ignored=tuple(
            Ignored(
                reason=reason,
                num_files=len(files),
                examples=tuple(path for path in sorted(files)[:_MAX_EXAMPLES] if path),
            )
            for reason, files in sorted(paths.items(), key=lambda item: -len(item[1]))
        ),
        **others,
    )


def _describe_held_out(origins: Mapping[str, str], section: DataSection) -> str:
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


def note_copies(digests: Mapping[str, Sequence[object]], labels: Mapping[str, Indices]) -> list[str]:
    """Notes on images that are in two of a set's splits or, where a split is held out, can be, or in two classes;
    ``digests`` has one for each image of each split that the set has, ``labels`` its class."""
    notes, classes = list[str](), dict[object, set[int]]()
    for split, of_split in digests.items():
        for digest, label in zip(of_split, labels[split].tolist(), strict=True):
            classes.setdefault(digest, set()).add(label)
    if num_twice := sum(len(of_image) > 1 for of_image in classes.values()):
        notes.append(f"{format_count(num_twice, 'image')} in two classes or more, of which at most one is right")
    for split, other in (("val", "train"), ("test", "train"), ("test", "val")):
        in_other, of_split = set(digests.get(other, ())), digests.get(split, ())
        if num_twice := sum(digest in in_other for digest in of_split):
            notes.append(
                f"{num_twice} of {len(of_split)} images of the {split} split are in the {other} split too, so that "
                "accuracy on them is not accuracy on new images"
            )
    train = digests.get("train", ())
    if len(digests) < 3 and (num_twice := len(train) - len(set(train))):
        notes.append(
            f"{format_count(num_twice, 'image')} equal to another one, so that an image can be in the training split "
            "and in a held-out one"
        )
    return notes


def _find_absent_classes(summary: DataSummary) -> list[str]:
    notes = []
    for split, effect in _EFFECTS.items():
        absent = [name for name, counts in summary.classes.items() if not counts.get(split)]
        if absent and len(absent) < len(summary.classes):
            some = ", ".join(absent[:_MAX_ABSENT]) + (" ..." if len(absent) > _MAX_ABSENT else "")
            notes.append(f"{format_count(len(absent), 'class', 'classes')} without {effect}: {some}")
    return notes


def _find_similar_classes(summary: DataSummary) -> list[str]:
    alike: dict[str, list[str]] = {}
    for name in summary.classes:
        alike.setdefault(unicodedata.normalize("NFKC", name).strip().casefold(), []).append(name)
    groups = [" and ".join(map(repr, names)) for names in alike.values() if len(names) > 1]
    return [f"classes whose names differ in case or space alone count as several: {', '.join(groups)}"] * bool(groups)


def _check_image_size(section: DataSection) -> None:
    if section.image_size is not None:
        raise InputError(
            f"data.image_size = {section.image_size} holds for imagefolder and synthetic; {section.name} has its own "
            "size, so leave data.image_size out."
        )


def _load_source(section: DataSection) -> Source:
    """The images of the data set that ``section`` names, checked, before anything is held out; raises as
    :func:`load_splits`."""
    name, load = section.name, find_entry("data set", section.name, DATASETS).load
    if load is None:
        raise InputError(f"data set {name!r} is known from records alone; give the file of its plug-in: --plugin.")
    function = resolve(load)
    source = _call(lambda: function(section), name)
    if not isinstance(source, Source):
        raise InputError(
            f"data set {name!r}: its load function returned a value of the type {type(source).__name__}; return "
            "Source(train=ArrayImages(pixels, labels), num_classes=...)."
        )
    try:
        count = index(source.num_classes)  # also NumPy's integers, such as labels.max() + 1
    except TypeError:
        count = 0
    if count < 1:
        raise InputError(f"data set {name!r}: num_classes = {source.num_classes!r}; give a whole number of at least 1.")
    source = replace(source, num_classes=count)
    _check_images(name, "train", source.train, source)
    if source.validation is not None:
        _check_images(name, "validation", source.validation, source)
    return source


def _read_parts(source: Source, name: str) -> dict[str, Images]:
    parts = {"train": source.train}
    if source.validation is not None:
        parts["val"] = source.validation
    if source.read_test is not None:
        parts["test"] = _call(source.read_test, name)
        _check_images(name, "test", parts["test"], source)
    return parts


def _call(function: Callable[[], Any], name: str) -> Any:
    try:
        with redirect_stdout(sys.stderr):  # standard output is the command's own, which may be JSON
            return function()
    except InputError as error:
        is_complete = str(error).startswith(("data ", "data."))
        raise InputError(str(error) if is_complete else f"data set {name!r}{_locate(error)}: {error}") from None
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        text = " ".join(str(error).split()).rstrip(".")
        raise InputError(
            f"data set {name!r}{_locate(error)}: its load function failed: {type(error).__name__}: {text}."
        ) from error


def _locate(error: BaseException) -> str:
    # the last line beside the function that was called, because one of a library explains nothing
    frames = [frame for frame in extract_tb(error.__traceback__) if frame.filename != __file__]
    if not frames:
        return ""
    folder = Path(frames[0].filename).parent
    last = [frame for frame in frames if Path(frame.filename).parent == folder][-1]
    return f" ({Path(last.filename).name}, line {last.lineno})"


def _check_images(name: str, split: str, images: Any, source: Source) -> None:
    where, train = f"data set {name!r}, {split} split", source.train
    if not all(hasattr(images, attribute) for attribute in ("labels", "side", "channels", "read", "pick", "__len__")):
        raise InputError(
            f"{where}: a value of the type {type(images).__name__} holds no labeled images; give "
            "ArrayImages(pixels, labels)."
        )
    if len(images) == 0:
        raise InputError(f"{where}: it has no images; give at least 3 of each class.")
    low, high = int(np.min(images.labels)), int(np.max(images.labels))
    if low < 0 or high >= source.num_classes:
        raise InputError(
            f"{where}: the labels are {low} to {high}; num_classes = {source.num_classes} requires 0 to "
            f"{source.num_classes - 1}: number the classes from 0, or give their number."
        )
    if (images.side, images.channels) != (train.side, train.channels):
        raise InputError(
            f"{where}: images of {images.side} x {images.side} x {images.channels}; the images of the train split are "
            f"{train.side} x {train.side} x {train.channels}: bring all to one size."
        )


def _check_weights(path: str | None) -> None:
    if path is not None and not Path(path).is_file():
        raise InputError(f"model.weights = {path!r} is not a file; give the path of a .safetensors or torch file.")


def _check_unchanged(source: Source, section: DataSection, expected: ExpectedData) -> None:
    """Compares the digest of ``source`` with the digest of the images that were counted, where finding it is cheap."""
    entry, digest = DATASETS[section.name], ""
    if source.find_digest is not None:
        digest = source.find_digest()
    elif entry.digest is not None:
        digest = _digest_entry(section)
    elif entry.summarize is None and _is_small(source.train, source.validation):
        parts = _read_parts(source, section.name)
        digest = _digest_pixels(parts) if _is_small(*parts.values()) else ""
    if not digest or digest == expected.digest:
        return
    where = f" in {section.root!r}" if entry.depends_on_root else ""
    num_images = sum(map(len, _read_parts(source, section.name).values()))
    raise InputError(
        f"data {section.name}{where}: its images have changed since they were counted: "
        f"{expected.num_images:,} images (digest {expected.digest[:12]}) -> {num_images:,} (digest {digest[:12]}); "
        "trials of one study must read the same images: restore them, or give the study a new name."
    )


def _is_small(*parts: Images | None) -> bool:
    images = [part for part in parts if part is not None]
    num_bytes = sum(len(part) * part.side**2 * part.channels for part in images)
    return all(isinstance(part, ArrayImages) for part in images) and num_bytes <= _MAX_DIGESTED_BYTES


def _digest_entry(section: DataSection) -> str:
    given = DATASETS[section.name].digest
    if given is None:
        return ""
    return hashlib.blake2b(str(resolve(given)(section)).encode(), digest_size=16).hexdigest()


def _digest_pixels(parts: Mapping[str, Images]) -> str:
    """The digest of all pixels and labels; empty where they are not in memory."""
    digest = hashlib.blake2b(digest_size=16)
    for split, images in sorted(parts.items()):
        if not isinstance(images, ArrayImages):
            return ""
        digest.update(f"{split} {images.pixels.shape}\0".encode())
        digest.update(np.ascontiguousarray(images.pixels).data)
        digest.update(np.ascontiguousarray(images.labels).data)
    return digest.hexdigest()


def _digest_array(pixels: Pixels) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(pixels).data, digest_size=16).digest()
