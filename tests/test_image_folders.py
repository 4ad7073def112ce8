"""Folders of images: which files are used, and that each of the others is named with its reason."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from image_folder_factory import count_files, list_images, make_image, write_files
from PIL import Image

from sweep.cli.check import format_data
from sweep.config.errors import InputError
from sweep.config.trial import TrialConfig, build_config
from sweep.records.inputs import DataSummary
from sweep.training.data import folders as inspection
from sweep.training.data.sources import find_facts, load_splits, look_at_data

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
    "a subset": (FLAT, (28, 6, 6, 0)),
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
    inspect = inspection.inspect_image
    monkeypatch.setattr(inspection, "inspect_image", lambda name, data: (decoded.append(name), inspect(name, data))[1])
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


def test_a_damaged_or_forbidden_cache_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_files(tmp_path / "images", FLAT)
    first = look(root)
    (cached,) = (tmp_path / "cache").glob("*.images.json")
    cached.write_bytes(cached.read_bytes()[:99])
    assert look(root) == first
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "file"))
    assert look(root) == first


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
