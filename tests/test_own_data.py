"""Folders of images and the sets of plug-ins: what is used of them, and that all else is named or refused."""

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_folder_factory import count_files, list_images, make_image, write_files
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from sweep.cli.app import run_app
from sweep.cli.check import format_data
from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.study_file import build_study
from sweep.config.tables import DATASETS
from sweep.config.trial import TrialConfig, build_config
from sweep.records.inputs import DataSummary
from sweep.records.store import open_store
from sweep.training.checkpoints import load_model
from sweep.training.data import image_maps
from sweep.training.data.folders import read_image
from sweep.training.data.sources import find_facts, load_splits, look_at_data
from sweep.training.processes import load_plugin

FLAT = list_images({"a": 20, "b": 20})
SPLIT = list_images({"train/a": 10, "train/b": 10, "val/a": 3, "val/b": 3, "test/a": 2, "test/b": 2})
ONLY_TRAIN = list_images({"train/a": 20, "train/b": 20})


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))


def config(root: Path, **values: Any) -> TrialConfig:
    given = {"name": "imagefolder", "root": str(root), **values}
    return build_config({f"data.{key}": value for key, value in given.items()}, "t")


def look(root: Path, **values: Any) -> DataSummary:
    return look_at_data(config(root, **values).data)


def counts(found: DataSummary) -> tuple[int | None, ...]:
    return found.num_train, found.num_val, found.num_test, found.num_ignored


def rename(files: dict[str, str], **names: str) -> dict[str, str]:
    return {"/".join(names.get(part, part) for part in path.split("/")): kind for path, kind in files.items()}


def without(files: dict[str, str], split: str) -> dict[str, str]:
    return {path: kind for path, kind in files.items() if not path.startswith(f"{split}/")}


# Shape of the folder -> images for training, validation and test, and files that are named as not used.
USED: dict[str, tuple[dict[str, str], tuple[int, int, int, int]]] = {
    "flat": (FLAT, (28, 6, 6, 0)),
    "train alone": (ONLY_TRAIN, (28, 6, 6, 0)),
    "three splits": (SPLIT, (20, 6, 4, 0)),
    "train and val": (without(SPLIT, "test"), (16, 6, 4, 0)),
    "train and test": (without(SPLIT, "val"), (18, 2, 4, 0)),
    **{
        f"{name} for {split}": (rename(SPLIT, **{split: name}), (20, 6, 4, 0))
        for split, names in {
            "train": ("Train", "TRAIN", "training", "Training"),
            "val": ("valid", "validation", "dev", "Val", "VALID"),
            "test": ("Test", "testing"),
        }.items()
        for name in names
    },
    "subfolders of a class": (list_images({"a/2019": 10, "a/2020/may": 10, "b": 20}), (28, 6, 6, 0)),
    "subfolders of a class in splits": (rename(SPLIT, a="a/deep/er"), (20, 6, 4, 0)),
    "a class named like a split": (list_images({"train/train": 20, "train/bus": 20}), (28, 6, 6, 0)),
    **{
        f"{kind} images": (list_images({"a": 20, "b": 20}, kind), (28, 6, 6, 0))
        for kind in ("gray", "rgba", "palette", "bit", "deep")
    },
    "CMYK photographs": (list_images({"a": 20, "b": 20}, "cmyk", ".jpg"), (28, 6, 6, 0)),
    **{
        f"{suffix} files": (list_images({"a": 20, "b": 20}, suffix=suffix), (28, 6, 6, 0))
        for suffix in (".jpg", ".bmp", ".webp", ".ppm", ".PNG")
    },
    "names with blanks and accents": (list_images({"a cat": 20, "ein Hündchen": 20}), (28, 6, 6, 0)),
    "hidden files": (FLAT | {"a/.0.png": "rgb", ".DS_Store": "text", "b/._1.png": "text"}, (28, 6, 6, 3)),
    "a notebook's folder": (
        FLAT | {".ipynb_checkpoints/0.png": "rgb", "a/.ipynb_checkpoints/0.png": "rgb"}, (28, 6, 6, 2),
    ),
    "a Mac's archive": (FLAT | {"__MACOSX/a/0.png": "text", "__MACOSX/b/0.png": "text"}, (28, 6, 6, 2)),
    "a Mac's archive beside splits": (SPLIT | {"__MACOSX/train/a/0.png": "text"}, (20, 6, 4, 1)),
    "a NAS's folder": (FLAT | {"a/@eaDir/0.png": "rgb"}, (28, 6, 6, 1)),
    "texts": (FLAT | {"README.md": "text", "a/labels.csv": "text", "b/Makefile": "text"}, (28, 6, 6, 3)),
    "images beside the classes": (FLAT | {"cover.png": "rgb"}, (28, 6, 6, 1)),
    "images beside the splits": (SPLIT | {"cover.png": "rgb", "train/cover.png": "rgb"}, (20, 6, 4, 2)),
    "unlabeled test images": (without(SPLIT, "test") | {"test/0.png": "rgb", "test/1.png": "rgb"}, (16, 6, 4, 2)),
    "unlabeled validation images": (without(SPLIT, "val") | {"val/0.png": "rgb"}, (18, 2, 4, 1)),
    "a folder beside the splits": (SPLIT | {"extra/0.png": "rgb", "extra/c/0.png": "rgb"}, (20, 6, 4, 2)),
    "an empty val folder": (without(SPLIT, "val") | {"val": "folder"}, (18, 2, 4, 0)),
    "a class that val lacks": ({p: k for p, k in SPLIT.items() if not p.startswith("val/b")}, (20, 3, 4, 0)),
    "a link to a class": (list_images({"a": 20, "../real": 20}) | {"b": "link:../real"}, (28, 6, 6, 0)),
    "a link to an image": (FLAT | {"a/linked.png": "link:0.png"}, (29, 6, 6, 0)),
    "a link to nothing": (FLAT | {"a/gone.png": "link:nowhere.png"}, (28, 6, 6, 1)),
    "a link to a folder above": (FLAT | {"a/up": "link:.."}, (28, 6, 6, 1)),
}  # fmt: skip


@pytest.mark.parametrize("shape", USED)
def test_every_file_is_used_or_named(shape: str, tmp_path: Path) -> None:
    files, expected = USED[shape]
    root = write_files(tmp_path / "images", files)
    found = look(root)
    assert counts(found) == expected
    splits = load_splits(config(root).data)
    assert (len(splits.train), len(splits.validation), len(splits.read_test())) == expected[:3]
    assert find_facts(config(root).data) == (splits.shape, expected[0])
    assert sum(item.num_files for item in found.ignored) == found.num_ignored
    per_split = [sum(counts.get(split, 0) for counts in found.classes.values()) for split in ("train", "val", "test")]
    assert tuple(per_split) == expected[:3]
    if shape in {"flat", "train alone", "three splits"}:  # no image is in two splits
        parts = [part.read(np.arange(len(part))) for part in (splits.train, splits.validation, splits.read_test())]
        assert len({image.tobytes() for part in parts for image in part}) == sum(expected)
    if "link" not in shape:
        assert sum(expected) == count_files(root)


REFUSED: dict[str, tuple[dict[str, str], str]] = {
    "nothing": ({".": "folder"}, "holds 0 class folders"),
    "no folder": ({}, r"data.root = .*images' is not a folder"),
    "images alone": ({"0.png": "rgb", "1.png": "rgb"}, "holds 0 class folders"),
    "one class": (list_images({"a": 3}), "holds 1 class folders: a/"),
    "an empty class": (FLAT | {"c": "folder"}, "c/ has no images .* would count as a class"),
    "two empty classes": (ONLY_TRAIN | {"train/c": "folder", "train/d/x.txt": "text"}, "c/, d/ have no images"),
    "a class of texts": (FLAT | {"docs/x.txt": "text"}, "docs/ has no images"),
    "all classes empty": ({"a": "folder", "b": "folder"}, "holds no images"),
    "train twice": (ONLY_TRAIN | rename(ONLY_TRAIN, train="training"), "train/, training/ are names of the same split"),
    "val twice": (SPLIT | list_images({"dev/a": 1, "dev/b": 1}), "dev/, val/ are names of the same split"),
    "no train": (list_images({"val/a": 3, "val/b": 3, "test/a": 2}), "has test/, val/ and no train/"),
    "classes beside test": (FLAT | list_images({"test/a": 2, "test/b": 2}), "has test/, beside a/, b/ and no train/"),
    "unlabeled splits": (list_images({"train": 3, "test": 3}), "test/, train/ could be a split or a class"),
    "a train among cars": (list_images({"train": 3, "car": 3, "bus": 3}), "train/ could be a split or a class"),
    "a folder too high": (list_images({"photos/a": 3, "photos/b": 3}), "set data.root to the folder"),
    "a class only in test": (SPLIT | {"test/c/0.png": "rgb"}, "class folders that the train split lacks: c"),
    "val without images": (without(SPLIT, "val") | {"val/a/x.txt": "text"}, "val holds no images"),
    "several sizes": (FLAT | {"a/wide.png": "rgb@12x8"}, r"8 x 8, 12 x 8 pixels.*data\.image_size, for example 8"),
    "oblong images": (list_images({"a": 3, "b": 3}, "rgb@12x8"), r"12 x 8 pixels.*data\.image_size"),
    "an image cut short": (FLAT | {"a/bad.png": "cut"}, r"1 of 41 images cannot be used:\n  a/bad.png"),
    "an empty image": (FLAT | {"b/bad.png": "empty"}, r"b/bad.png is empty"),
    "a page instead of an image": (FLAT | {"b/bad.jpg": "page"}, r"b/bad.jpg is no readable image"),
    "integers without a range": (FLAT | {"b/bad.tif": "wide"}, r"b/bad.tif has pixels of 32 bits"),
    "pixels without a range": (FLAT | {"b/bad.tif": "float"}, r"b/bad.tif has pixels of 32 bits"),
    "too few": ({"a/0.png": "rgb", "b/0.png": "rgb"}, r"2 images are too few.* 2 are left for training and 0 for"),
}  # fmt: skip


@pytest.mark.parametrize("shape", REFUSED)
def test_what_cannot_be_used_is_refused_by_name(shape: str, tmp_path: Path) -> None:
    files, reason = REFUSED[shape]
    root = write_files(tmp_path / "images", files)
    with pytest.raises(InputError, match=f"(?s){reason}"):
        look(root)


def test_every_bad_image_is_named_at_once_and_skipped_on_request(tmp_path: Path) -> None:
    bad = {"a/1.png": "cut", "a/2.png": "empty", "b/3.png": "page"}
    root = write_files(tmp_path / "images", FLAT | bad)
    with pytest.raises(InputError, match=r"(?s)3 of 40 images.*a/1\.png.*a/2\.png.*b/3\.png.*on_bad_image = 'skip'"):
        look(root)
    found = look(root, on_bad_image="skip")
    assert (sum(n or 0 for n in counts(found)[:3]), found.num_ignored) == (37, 3)
    (item,) = found.ignored
    assert (item.num_files, item.examples) == (3, ("a/1.png", "a/2.png", "b/3.png"))
    splits = load_splits(config(root, on_bad_image="skip").data)
    assert len(splits.train) == found.num_train
    only_bad = write_files(tmp_path / "more", list_images({"a": 5}) | list_images({"b": 5}, "cut"))
    with pytest.raises(InputError, match="b/ has no images that can be used"):
        look(only_bad, on_bad_image="skip")


@pytest.mark.parametrize(("files", "warnings"), [
    ({"a": 20, "b": 20}, [r"no answer is possible with \d validation images"]),
    ({"a": 10, "b": 1}, ["no answer .* validation image", r"no answer .* 1 class of 2 .* images: b \(1\)"]),
    ({"a": 60, "b": 60, "c": 3}, [r"accuracy means nothing for 1 class of 3 .* images: c \(3\)"]),
    ({"a": 60, "b": 60}, []),
])  # fmt: skip
def test_too_few_images_for_an_answer_are_stated_first(tmp_path: Path, files: dict[str, int], warnings: list) -> None:
    root = write_files(tmp_path / "images", list_images(files))
    lines = format_data(look(root))
    assert [line for line in lines if line.startswith("WARNING")] == lines[: len(warnings)]
    for line, pattern in zip(lines, warnings, strict=False):
        assert re.search(pattern, line), line


def test_images_are_decoded_once_until_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_files(tmp_path / "images", FLAT)
    decoded: list[str] = []
    decode = image_maps.decode_image
    monkeypatch.setattr(image_maps, "decode_image", lambda name, *by: (decoded.append(name), decode(name, *by))[1])
    first = look(root)
    assert sorted(decoded) == sorted(FLAT)
    decoded.clear()
    assert look(root) == first
    assert decoded == []
    status = (root / "a/3.png").stat()
    (root / "a/3.png").write_bytes(make_image("rgb", 999))
    os.utime(root / "a/3.png", ns=(status.st_atime_ns, status.st_mtime_ns))  # as a copying program may do
    (root / "b/7.png").unlink()
    assert look(root).digest != first.digest
    assert decoded == ["a/3.png"]


@pytest.mark.parametrize("suffix", [".folder.json", ".jsonl", ".npy"])
def test_a_damaged_cache_changes_nothing(suffix: str, tmp_path: Path) -> None:
    root = write_files(tmp_path / "images", FLAT)
    first, pixels = look(root), load_splits(config(root).data).train.read(np.arange(28))
    (cached,) = (tmp_path / "cache").glob(f"*{suffix}")
    cached.write_bytes(cached.read_bytes()[:99])
    if suffix == ".jsonl":  # is looked at when something has changed
        write_files(root, {"README.md": "text"})
    found = look(root)
    assert (found.digest, found.sizes, found.notes) == (first.digest, first.sizes, first.notes)
    assert np.array_equal(load_splits(config(root).data).train.read(np.arange(28)), pixels)


def test_a_cache_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_files(tmp_path / "images", FLAT)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"8 x 8 pixels, .* cannot be written: File exists; give SWEEP_CACHE another"):
        look(root)


def test_sixteen_bits_keep_their_shades(tmp_path: Path) -> None:
    root = write_files(tmp_path, list_images({"a": 20, "b": 20}, "deep"))
    pixels = load_splits(config(root).data).train.read(np.arange(28))
    assert 100 < pixels.mean() < 155  # Pillow's own conversion makes nearly all of them white
    assert len(np.unique(pixels)) > 200


@pytest.mark.parametrize(("resize", "column"), [("crop", "bbbbbbbb"), ("stretch", "abbbbbbc"), ("pad", "  abbc  ")])
def test_the_three_ways_to_one_size(resize: str, column: str, tmp_path: Path) -> None:
    # an image 4 times as wide as high: a border of 2 pixels in red and in blue at its ends, green between
    colors = {"a": (255, 0, 0), "b": (0, 255, 0), "c": (0, 0, 255), " ": (0, 0, 0)}
    wide = np.zeros((8, 16, 3), dtype=np.uint8)
    wide[:, :2], wide[:, 2:14], wide[:, 14:] = colors["a"], colors["b"], colors["c"]
    for name in list_images({"a": 5, "b": 5}):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.fromarray(wide).save(tmp_path / name)
    splits = load_splits(config(tmp_path, image_size=8, resize=resize).data)
    image = splits.train.read(np.arange(1))[0]
    line = image[:, 4] if resize == "pad" else image[4]
    expected = np.array([colors[letter] for letter in column])
    if resize == "pad":  # the borders are above and below
        assert (line[[0, 1, 6, 7]] == 0).all()
        assert (line[2:6].sum(1) > 200).all()
    else:
        assert np.abs(line.astype(int) - expected).max() < 130
        assert np.array_equal(line[1:7].argmax(1), expected[1:7].argmax(1))


def test_what_decoding_drops_is_counted(tmp_path: Path) -> None:
    root = write_files(tmp_path / "images", FLAT | {"a/deep.png": "deep", "b/1.tif": "pages", "a/r.jpg": "rotated"})
    assert look(root).notes == (
        "1 image of 16 bits a pixel, of which the upper 8 are used: images of 12 bits become dark",
        "1 image of several frames, of which the first is used",
        "1 image with an EXIF rotation, which is not applied",
    )


def test_a_name_cannot_forge_a_line(tmp_path: Path) -> None:
    root = write_files(tmp_path / "images", FLAT | {"a/x\n  b/9.png is empty.png": "cut"})
    with pytest.raises(InputError, match=r"1 of 41 images") as refused:
        look(root)
    assert len(str(refused.value).splitlines()) == 3
    assert "a/x\\n  b/9.png is empty.png" in str(refused.value)


def test_copies_between_splits_are_named(tmp_path: Path) -> None:
    root = write_files(tmp_path / "images", SPLIT)
    (root / "val/a/0.png").write_bytes((root / "train/a/0.png").read_bytes())
    assert any("1 of 6 images of the val split are in the train split too" in note for note in look(root).notes)
    flat = write_files(tmp_path / "flat", FLAT)
    assert look(flat).notes == ()
    (flat / "a/0.png").write_bytes((flat / "b/0.png").read_bytes())
    assert any("1 image equal to another one" in note for note in look(flat).notes)


def test_an_image_in_two_classes_and_classes_of_nearly_one_name_are_named(tmp_path: Path) -> None:
    root = write_files(tmp_path / "images", rename(SPLIT, a="Cat", b="cat "))
    (root / "train/cat /1.png").write_bytes((root / "train/Cat/0.png").read_bytes())
    (root / "test/cat /0.png").write_bytes((root / "val/cat /0.png").read_bytes())
    assert look(root).notes == (
        "classes whose names differ in case or space alone count as several: 'Cat' and 'cat '",
        "1 image in two classes or more, of which at most one is right",
        "1 of 4 images of the test split are in the val split too, so that accuracy on them is not accuracy on new "
        "images",
    )


def test_whole_pixels_beside_a_damaged_text_are_used(tmp_path: Path) -> None:
    root = write_files(tmp_path / "images", FLAT)
    about = PngInfo()
    about.add_text("Raw profile type exif", "\nexif\n   12\nzz not hex\n")
    with Image.open(root / "a/0.png") as image:
        before = np.asarray(image)
        image.save(root / "a/0.png", pnginfo=about)
    assert look(root).notes == ("1 image with EXIF data that cannot be read; no rotation is applied",)
    assert np.array_equal(read_image(str(root / "a/0.png"), 8, None, 8), before)


def test_folders_whose_names_are_no_utf_8_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_files(Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9")), list_images({"a": 8, "x": 8}))
    (root / "x").rename(root / os.fsdecode(b"b\xe9"))
    given = ["--set", "data.name=imagefolder", "--set", f"data.root={root}", "--set", "budget.steps=1"]
    weights = tmp_path / "w.safetensors"
    assert run_app(["train", *given, "--set", "batch.micro=4", "--on", "cpu", "--save", str(weights), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["config.data.root"].endswith(r"/caf\udce9")
    assert load_model(weights).class_names == ("a", r"b\udce9")
    spec = build_study({"name": "s", "base": config(root).model_dump(include={"data"}, exclude_none=True)}, "t")
    with contextlib.closing(open_store(tmp_path / "study.sqlite", create=True)) as store:
        store.create_study(spec)
        kept = store.load_spec("s")
    assert kept is not None
    assert look_at_data(kept.corners.first.data).num_train == 12


FOLDERS = st.sampled_from([
    "a", "b", "c", "train", "Training", "val", "valid", "test", ".git", "__MACOSX", "x y", ".ipynb_checkpoints", "é",
])  # fmt: skip
NAMES = st.sampled_from(["0.png", "1.PNG", "2.jpg", ".3.png", "x.txt", "Thumbs.db", "noext", "4.webp", "5.gif"])
PATHS = st.builds(lambda folders, name: "/".join([*folders, name]), st.lists(FOLDERS, max_size=4), NAMES)
KINDS = st.sampled_from(["rgb", "rgb", "rgb", "gray", "cut", "empty"])


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None)
@given(extra=st.dictionaries(PATHS, KINDS, max_size=6), base=st.sampled_from([{}, FLAT, ONLY_TRAIN, SPLIT]))
def test_used_and_ignored_files_are_all_files(extra, base, tmp_path_factory) -> None:
    images = {".png", ".jpg", ".webp"}
    shown = {path: kind if Path(path).suffix.lower() in images else "text" for path, kind in extra.items()}
    root = write_files(tmp_path_factory.mktemp("images"), base | shown)
    try:
        found = look(root, on_bad_image="skip")
    except InputError:  # said, not silent; which refusal belongs to which folder is tested above
        return
    assert sum(counts(found)) == count_files(root), found  # none of them is None
    splits = load_splits(config(root, on_bad_image="skip").data)
    assert (len(splits.train), len(splits.validation), len(splits.read_test())) == counts(found)[:3]


PREAMBLE = """
import helper
import numpy as np
import torch
from sweep.config.tables import DATASETS
from sweep.training.data.images import ArrayImages
from sweep.training.data.images import Source

generator = np.random.default_rng(0)
pixels = generator.integers(0, 256, (60, 8, 8, 1), dtype=np.uint8)
labels = np.arange(60) % 3
more = generator.integers(0, 256, (200, 8, 8, 1), dtype=np.uint8)


def load(section):
    {body}


DATASETS["mine"] = load
"""
HELPER = """
import numpy as np


def join(first, second):
    return np.concatenate([first, second])
"""
STUDY = """
name = "tiny"
question = "?"
trials = 1
confirm = { max_configurations = 0, seeds = 0 }

[base]
data.name = "mine"
budget.steps = 2

[space]
"batch.micro" = { choice = [16, 32] }
"""


def of(pixels: str = "pixels", labels: str = "labels", rest: str = "num_classes=3") -> str:
    return f"return Source(train=ArrayImages({pixels}, {labels}), {rest})"


def of_copies(count: int) -> str:
    """A test split of 200 images, of which so many are training images."""
    images = f"np.concatenate([more[:{200 - count}], pixels[:{count}]])"
    return of(rest=f"num_classes=3, read_test=lambda: ArrayImages({images}, np.arange(200) % 3)")


# what the function does, and what the message must have
MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "floats": (of("pixels / 255.0"),
        ("float64 of shape 60 x 8 x 8 x 1", "uint8, 0 to 255", r"\(pixels \* 255\)\.round\(\)\.astype\('uint8'\)")),
    "tensor_of_floats": (of("torch.from_numpy(pixels) / 255"), ("float32", r"of a torch tensor to\(torch\.uint8\)")),
    "channels_first": (of("pixels.transpose(0, 3, 1, 2)"),
        ("60 x 1 x 8 x 8", r"of shape \(images, side, side, channels\)", r"pixels\.transpose\(0, 2, 3, 1\)")),
    "no_channels": (of("pixels[..., 0]"), ("60 x 8 x 8;", r"pixels\[\.\.\., None\]")),
    "oblong": (of("pixels[:, :5]"), ("60 x 5 x 8 x 1",)),
    "without_pixels": (of("pixels[:, :0, :0]"), ("60 x 0 x 0 x 1",)),
    "objects": (of("np.full((60, 8, 8, 1), None)"), ("pixels are object",)),
    "more_labels": (of(labels="np.arange(61) % 3"), ("shape 61 for 60 images", "one class index for each image")),
    "one_label": (of(labels="5"), ("of a single number for 60 images",)),
    "one_hot": (of(labels="np.eye(3)[labels]"), ("60 x 3 for 60 images", r"labels\.argmax\(1\)")),
    "float_labels": (of(labels="labels * 1.0"), ("labels are float64", "an integer from 0")),
    "texts": (of(labels="np.array(['cat', 'dog', 'owl'])[labels]"), ("labels are <U3", r"numpy\.unique\(labels, ")),
    "labels_from_1": (of(labels="labels + 1"), ("train split", "labels are 1 to 3", "0 to 2", "number the classes")),
    "negative_labels": (of(labels="labels - 1"), ("labels are -1 to 1", "0 to 2")),
    "classes_as_text": (of(rest="num_classes='3'"), ("num_classes = '3'", "whole number")),
    "no_classes": (of(rest="num_classes=0"), ("num_classes = 0", "at least 1")),
    "empty_lists": (of("pixels[:0]", "[]"), ("train split", "no images", "give at least 3")),
    "too_few": (of("pixels[:3]", "labels[:3]"), ("3 images are too few", "at least 3 images of a class")),
    "nothing": ("pass", ("returned a value of the type NoneType", r"return Source\(train=ArrayImages")),
    "arrays_alone": ("return Source(train=(pixels, labels), num_classes=3)",
        ("train split", "of the type tuple", r"give ArrayImages\(pixels, labels\)")),
    "exits": ("raise SystemExit(0)", (r"\(plugin_exits\.py, line 16\)", "load function failed", "SystemExit: 0")),
    "raises_in_numpy": ("return np.concatenate([pixels, more[..., 0]])",
        (r"\(plugin_raises_in_numpy\.py, line 16\)", "load function failed", "ValueError: all the input")),
    "raises_in_a_helper": ("return helper.join(pixels, more[..., 0])", (r"\(helper\.py, line 6\)", "ValueError")),
    "validation_of_another_size": (
        of(rest="num_classes=3, validation=ArrayImages(more[:, :4, :4], np.arange(200) % 3)"),
        ("validation split", "4 x 4 x 1", "8 x 8 x 1", "one size")),
    "test_of_other_classes": (of(rest="num_classes=3, read_test=lambda: ArrayImages(more, np.arange(200) % 4)"),
        ("test split", "labels are 0 to 3")),
    "test_is_no_function": (of(rest="num_classes=3, read_test=3"), ("'int' object is not callable",)),
    "test_returns_nothing": (of(rest="num_classes=3, read_test=lambda: None"), ("test split", "NoneType")),
}  # fmt: skip


@pytest.fixture(autouse=True)
def _forget_the_data_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    DATASETS.pop("mine", None)
    sys.modules.pop("helper", None)


def write(name: str, body: str) -> str:
    """The plug-in's file, and beside it the study and a module of its own."""
    Path("study.toml").write_text(STUDY)
    Path("helper.py").write_text(HELPER)
    path = Path(f"plugin_{name}.py")
    path.write_text(PREAMBLE.replace("{body}", body))
    return str(path)


@pytest.mark.parametrize("name", MISTAKES)
def test_every_command_refuses_it_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    body, parts = MISTAKES[name]
    command = ["run"] if name == "nothing" else ["check"]
    assert run_app([*command, "study.toml", "--plugin", write(name, body)]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(("advice", "`sweep check"))]
    assert len(lines) == 1
    for part in parts:
        assert re.search(part, lines[0]), (part, lines[0])
    assert not list(Path("runs").rglob("study.sqlite"))


@pytest.mark.parametrize("body", [
    of(), of(labels="labels.astype('uint8')", rest="num_classes=labels.max() + 1"),
    of(labels="list(labels)", rest="num_classes=torch.tensor(3)"),
    of("torch.from_numpy(pixels)", "torch.from_numpy(labels)"),
    of("torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous().permute(0, 2, 3, 1)", "torch.arange(60) % 3"),
])  # fmt: skip
def test_arrays_tensors_and_lists_are_the_same_images(body: str) -> None:
    load_plugin(write(f"good_{abs(hash(body))}", body))
    found = look_at_data(DataSection(name="mine"))
    assert (found.num_train, found.num_val, found.num_test) == (42, 9, 9)
    assert {name: sum(counts.values()) for name, counts in found.classes.items()} == {"0": 20, "1": 20, "2": 20}
    assert "test: 15 % of the set's own train split, held out by class" in found.held_out
    assert "validation: 15 % of the rest, held out by class" in found.held_out
    assert (found.sizes, found.modes) == ({"8 x 8": 60}, {"1 channel": 60})
    load_plugin(write("plain", of()))
    assert look_at_data(DataSection(name="mine")).digest == found.digest != ""


@pytest.mark.parametrize(("body", "shown"), [
    (of_copies(2), [
        "note: 2 of 200 images of the test split are in the train split too, so that accuracy",
        "54 training, 6 validation and 200 test images", "validation: 10 % of the set's own train split",
    ]),
    (of(rest="num_classes=5"), ["note: 2 classes without a training image, so that it cannot be learned: 3, 4"]),
], ids=["copies", "absent"])  # fmt: skip
def test_copies_and_absent_classes_are_noted(body: str, shown: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["check", "study.toml", "--plugin", write(f"noted_{len(shown)}", body)]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in shown)


def test_what_a_plug_in_prints_leaves_the_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = Path(write("prints", f"print('loading'); {of()}"))
    plugin.write_text(plugin.read_text() + "\nprint('hello')\n")
    assert run_app(["check", "study.toml", "--plugin", str(plugin), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["data"]["num_train"] == 42
    assert {"hello", "loading"} <= set(printed.err.split())
