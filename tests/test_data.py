"""Data sets: fixed disjoint splits, image folders, digests, and what is said when files are missing."""

import hashlib
import os
import subprocess
import sys
import tarfile
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from image_folder_factory import list_images, write_files

from sweep.config.errors import InputError
from sweep.config.tables import DATASETS, DatasetEntry
from sweep.config.trial import TrialConfig, build_config
from sweep.training.data import published as digits
from sweep.training.data.image_folder import FolderImages, load_imagefolder
from sweep.training.data.images import ArrayImages, Images, Source
from sweep.training.data.sources import find_facts, load_splits, look_at_data

ROOT = Path(__file__).parents[1]
ARCHIVE = ROOT.parent / "shared" / "data" / "cifar10-jpeg.tar.xz"


def config(**values: object) -> TrialConfig:
    return build_config({f"data.{key}": value for key, value in values.items()}, "test")


def find_digest(**values: object) -> str:
    return look_at_data(config(**values).data).digest


def write_images(root: Path, counts: dict[str, int]) -> Path:
    return write_files(root, list_images(counts))


def everything(images: Images) -> np.ndarray:
    return images.read(np.arange(len(images)))


def hashes(images: Images) -> list[bytes]:
    return [image.tobytes() for image in everything(images)]


def test_digits_splits_are_disjoint_whole_stratified_and_fixed() -> None:
    splits, again = load_splits(config(name="digits").data), load_splits(config(name="digits").data)
    test = splits.read_test()
    assert (len(splits.train), len(splits.validation), len(test)) == (1300, 228, 269)
    assert splits.shape == (1, 8, 10)
    parts = [set(hashes(part)) for part in (splits.train, splits.validation, test)]
    assert not parts[0] & parts[1]
    assert not parts[0] & parts[2]
    assert not parts[1] & parts[2]
    shares = np.bincount(splits.validation.labels) / np.bincount(splits.train.labels)
    assert np.ptp(shares) < 0.03
    assert np.array_equal(everything(splits.train), everything(again.train))
    assert np.array_equal(everything(splits.validation), everything(again.validation))


def test_the_digits_are_those_of_the_published_set() -> None:
    found = digits.read_digits()
    assert (found.levels.shape, found.levels.min(), found.levels.max()) == ((1797, 8, 8), 0, 16)
    content = [hashlib.sha256(values.astype(np.uint8).tobytes()).hexdigest() for values in found]
    assert content == [
        "8f26b2bd9d135c256808f68f14fdabddde6d9c7f869ae419704b051f0f14b3b3",
        "8ba4f891220f5e4c9c819638d1602d74b83618f167043c6da52a2a247841ddf0",
    ]
    train = digits.load_digits(config(name="digits").data).train
    assert np.array_equal(everything(train)[..., 0], np.rint(found.levels * 255 / 16))
    assert np.array_equal(train.labels, found.labels)


@pytest.mark.parametrize("share", [0.15, 0.33, 0.6])
def test_the_share_for_validation_is_taken_from_the_training_images_alone(share: float) -> None:
    usual, chosen = (load_splits(config(name="digits", **keys).data) for keys in ({}, {"validation_share": share}))
    rest = {*hashes(usual.train), *hashes(usual.validation)}
    assert {*hashes(chosen.train), *hashes(chosen.validation)} == rest
    assert hashes(chosen.read_test()) == hashes(usual.read_test())
    assert abs(len(chosen.validation) - share * (1300 + 228)) <= 5  # rounded for each of 10 classes
    facts = find_facts(config(name="digits", validation_share=share).data)
    assert (facts.shape, facts.num_train) == (chosen.shape, len(chosen.train))
    found = look_at_data(config(name="digits", validation_share=share).data)
    assert (found.num_train, found.num_val, found.num_test) == (len(chosen.train), len(chosen.validation), 269)
    assert f"validation: {100 * share:.0f} % of the rest" in found.held_out


@pytest.mark.parametrize("check", [look_at_data, load_splits, find_facts])
def test_a_share_for_validation_is_refused_where_the_set_has_its_own(check, tmp_path: Path) -> None:
    root = write_images(tmp_path, {"train/a": 5, "train/b": 5, "val/a": 2, "val/b": 2})
    with pytest.raises(InputError, match=r"data.validation_share = 0.3, but imagefolder has a validation split"):
        check(config(name="imagefolder", root=str(root), validation_share=0.3).data)


def test_a_share_for_validation_changes_what_is_known_of_published_sets() -> None:
    assert find_facts(config(name="cifar10").data).num_train == 45_000
    assert find_facts(config(name="cifar10", validation_share=0.25).data).num_train == 37_500


def test_subset_shortens_the_train_split_alone_and_grows_by_adding() -> None:
    small, large = (load_splits(config(name="digits", subset=count).data) for count in (100, 200))
    assert len(small.train) == 100
    assert set(hashes(small.train)) <= set(hashes(large.train))
    assert hashes(small.validation) == hashes(large.validation)


def test_synthetic_has_the_wanted_size_and_is_the_same_each_time() -> None:
    splits = load_splits(config(name="synthetic", subset=500, image_size=16).data)
    assert (len(splits.train), splits.shape) == (500, (3, 16, 10))
    assert hashes(splits.train) == hashes(load_splits(config(name="synthetic", subset=500, image_size=16).data).train)


def test_folder_with_splits_keeps_them_and_reads_test_only_when_asked(tmp_path: Path) -> None:
    counts = {"train/a": 10, "train/b": 10, "val/a": 3, "val/b": 3, "test/a": 2, "test/b": 2}
    root = write_images(tmp_path, counts)
    splits = load_splits(config(name="imagefolder", root=str(root)).data)
    for file in (root / "test").rglob("*.png"):
        file.write_bytes(b"no image")
    assert (len(splits.train), len(splits.validation)) == (20, 6)
    assert splits.train.labels.tolist() == [0] * 10 + [1] * 10
    with pytest.raises(InputError, match="no readable image"):
        splits.read_test()


def test_folder_digest_follows_names_and_content(tmp_path: Path) -> None:
    first = write_images(tmp_path / "one", {"a": 3, "b": 3})
    copy = write_images(tmp_path / "two", {"a": 3, "b": 3})
    digests = [find_digest(name="imagefolder", root=str(root)) for root in (first, copy)]
    assert digests[0] == digests[1]
    (copy / "a" / "0.png").rename(copy / "a" / "9.png")
    renamed = find_digest(name="imagefolder", root=str(copy))
    (copy / "b" / "0.png").write_bytes((copy / "b" / "1.png").read_bytes())
    changed = find_digest(name="imagefolder", root=str(copy))
    assert len({digests[0], renamed, changed}) == 3


def test_digests_tell_sets_and_sizes_apart() -> None:
    assert find_digest(name="digits") == find_digest(name="digits", subset=9)
    assert find_digest(name="digits") != find_digest(name="synthetic")
    assert find_digest(name="digits") == find_digest(name="digits", augment="flip")


def test_the_digest_of_a_plug_ins_data_follows_its_pixels_and_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    pixels, labels = np.arange(20 * 16, dtype=np.uint8).reshape(20, 4, 4, 1), np.arange(20) % 2
    found = []
    for changed in (False, False, True):
        images = ArrayImages(pixels ^ np.uint8(changed), labels)
        source = Source(train=images, num_classes=2)
        monkeypatch.setitem(DATASETS, "mine", DatasetEntry(load=lambda _section, source=source: source))
        found.append(find_digest(name="mine"))
    assert found[0] == found[1] != found[2]
    monkeypatch.setitem(DATASETS, "mine", DatasetEntry(load=digits.load_digits, digest=lambda _section: "v1"))
    assert find_digest(name="mine") not in found


def test_a_set_in_files_without_a_digest_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = write_images(tmp_path, {"cats": 10, "dogs": 10})
    found = []
    for digest in (None, lambda _section: "v1"):
        monkeypatch.setitem(DATASETS, "mine", DatasetEntry(load=load_imagefolder, digest=digest))
        found.append(look_at_data(config(name="mine", root=str(root), placement="host").data))
    assert [bool(summary.digest) for summary in found] == [False, True]
    (note,) = found[0].notes
    assert "its digest is not known, so that changed images cannot be noticed" in note
    assert "give DatasetEntry(digest=...)" in note
    assert found[1].notes == ()


@pytest.mark.parametrize("name", [name for name, entry in DATASETS.items() if entry.published])
def test_a_missing_download_names_its_files(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # a proxy that nobody serves: the network is off, wherever the test runs
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    section, published = config(name=name, root=str(tmp_path)).data, DATASETS[name].published
    assert "not counted" in look_at_data(section).notes[0]
    with pytest.raises(InputError, match="could not be downloaded") as caught:
        load_splits(section)
    assert str(tmp_path / published.folder) in str(caught.value)
    assert published.files[0] in str(caught.value)


def test_checks_and_digest_import_no_torch(tmp_path: Path) -> None:
    root = write_images(tmp_path, {"a": 4, "b": 4})
    code = f"""
import sys
from sweep.config.trial import build_config
from sweep.training.data.sources import look_at_data
for values in ({{}}, {{'data.name': 'imagefolder', 'data.root': {str(root)!r}}}):
    assert look_at_data(build_config(values, 't').data).digest
print('torch' in sys.modules)
"""
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "False\n"


def test_a_decoded_folder_is_cached_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("sweep.training.data.folders._MIN_CACHED_BYTES", 1)
    root = write_images(tmp_path / "images", {"train/a": 4, "train/b": 4})
    settings = config(name="imagefolder", root=str(root)).data
    first = hashes(load_splits(settings).train)
    (cached,) = (tmp_path / "cache").glob("*.npy")
    zeros = np.zeros_like(np.load(cached))
    np.save(cached, zeros)
    assert not everything(load_splits(settings).train).any()
    os.utime(root / "train" / "a" / "0.png", ns=(0, 0))
    assert hashes(load_splits(settings).train) == first


def test_real_photographs_decode_alike_in_memory_and_from_files(tmp_path: Path) -> None:
    if not ARCHIVE.is_file():
        pytest.skip(f"the archive of CIFAR-10 images is not at {ARCHIVE}")
    with tarfile.open(ARCHIVE) as archive:
        members = [member for member in islice(archive, 11_000) if member.isfile()][::40]
    folders = sorted({Path(member.name).parent for member in members})
    assert len(folders) >= 2
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, members=members, filter="data")
    root = tmp_path / folders[0].parent
    in_memory = load_splits(config(name="imagefolder", root=str(root)).data)
    streamed = load_splits(config(name="imagefolder", root=str(root), placement="host").data)
    assert isinstance(in_memory.train, ArrayImages)
    assert isinstance(streamed.train, FolderImages)
    assert in_memory.shape.side == 32
    assert len(in_memory.train) > 100
    assert hashes(in_memory.train) == hashes(streamed.train)
    assert 40 < everything(in_memory.train).mean() < 200
