"""Data sets: fixed disjoint splits, digests, missing files, and images that change while a study runs."""

import hashlib
import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_folder_factory import list_images, make_image, write_files
from numpy.typing import NDArray
from PIL import Image

from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.tables import DATASETS, DatasetEntry
from sweep.config.trial import TrialConfig, build_config
from sweep.executors.table import ExecutorSettings
from sweep.probing.memory import run_estimate
from sweep.probing.prober import Prober
from sweep.records.inputs import DataSummary
from sweep.records.messages import Ending, EstimateTask, Task, decode_task, encode_task
from sweep.search import single as single_trial
from sweep.search.session import Options, open_session
from sweep.search.tuner import Stopped, TrialEnded
from sweep.training.data import image_folder, sources
from sweep.training.data import published as digits
from sweep.training.data.images import ArrayImages, Images, Source
from sweep.training.data.sources import expect_data, find_facts, load_splits, look_at_data, make_expected_data


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
    assert not parts[0] & parts[1] | parts[0] & parts[2] | parts[1] & parts[2]
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
    assert splits.train.labels.tolist() == [0] * 10 + [1] * 10
    assert len(set(hashes(splits.read_test()))) == 4  # as they were when they were decoded
    with pytest.raises(InputError, match="no readable image"):
        load_splits(config(name="imagefolder", root=str(root)).data)


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


def test_a_set_in_files_without_a_digest_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class FileImages:
        side, channels = 8, 3

        def __init__(self, labels: NDArray[np.int64]) -> None:
            self.labels = labels

        def __len__(self) -> int:
            return len(self.labels)

        def read(self, indices: NDArray[np.int64]) -> NDArray[np.uint8]:
            raise NotImplementedError

        def pick(self, indices: NDArray[np.int64]) -> "FileImages":
            return FileImages(self.labels[indices])

    def load(_section: object) -> Source:
        return Source(train=FileImages(np.arange(20) % 2), num_classes=2)

    found = []
    for digest in (None, lambda _section: "v1"):
        monkeypatch.setitem(DATASETS, "mine", DatasetEntry(load=load, digest=digest))
        found.append(look_at_data(config(name="mine").data))
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


NUM_TRAIN, NUM_TEST = 2000, 500
STUDY = """
name = "NAME"
[base]
data.name = "NAME"
data.root = "ROOT"
"""


def make_images() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (2500, 28, 28) and labels (2500,)."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (NUM_TRAIN + NUM_TEST, 28, 28), dtype=np.uint8)
    return pixels, generator.integers(0, 10, len(pixels), dtype=np.uint8)


def write_idx(folder: Path, part: str, pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">IIII", 2051, *pixels.shape)
    (folder / f"{part}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
    (folder / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, len(labels)) + labels.tobytes())


def write_folders(folder: Path, pixels: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / str(label) / f"{number:04}.png")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the images in both forms and a study of each."""
    place = tmp_path_factory.mktemp("mnist")
    pixels, labels = make_images()
    roots = {"mnist": "idx", "imagefolder": "png"}
    for part, folder, some in (("train", "training", slice(NUM_TRAIN)), ("t10k", "testing", slice(NUM_TRAIN, None))):
        write_idx(place / "idx" / "MNIST" / "raw", part, pixels[some], labels[some])
        write_folders(place / "png" / folder, pixels[some], labels[some])
    for name, root in roots.items():
        (place / f"{name}.toml").write_text(STUDY.replace("NAME", name).replace("ROOT", root))
    return place


def test_both_are_counted_alike(place: Path, capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("SWEEP_CACHE", str(place / "cache"))
    assert run_app(["check", "mnist.toml", "--json"]) == run_app(["check", "imagefolder.toml", "--json"]) == 0
    idx, png = (json.loads(line)["data"] for line in capsys.readouterr().out.splitlines())
    of_class = np.bincount(make_images()[1][:NUM_TRAIN])
    num_val = sum(round(0.1 * count) for count in of_class.tolist())
    for found in (idx, png):
        counts = found["num_train"], found["num_val"], found["num_test"], found["num_ignored"]
        assert counts == (NUM_TRAIN - num_val, num_val, NUM_TEST, 0)
        assert found["sizes"] == {"28 x 28": NUM_TRAIN + NUM_TEST}
        assert "10 % of" in found["held_out"]
    assert idx["classes"] == png["classes"]
    assert [counts["val"] for counts in png["classes"].values()] == [round(0.1 * count) for count in of_class.tolist()]
    assert (idx["modes"], png["modes"]) == ({"1 channel": 2500}, {"L": 2500})
    assert (idx["notes"], png["notes"]) == ([], [])


TRIALS = {"model.name": "resnet8", "budget.epochs": 1, "schedule.warmup": 0.0}


def make_study(root: Path, **more: Any) -> StudySpec:
    table = {
        "name": "s", "objectives": ["val_accuracy"], "trials": 3, "sampler": "random", "confirm": {"seeds": 0},
        "base": {"data.name": "imagefolder", "data.root": str(root), "batch.micro": 16, **TRIALS},
        "space": {"optimizer.lr": {"log": [0.001, 0.01]}},
    }  # fmt: skip
    return build_study(table | more, "test")


def run(spec: StudySpec, root: Path, after_trial: Callable[[], object] = lambda: None) -> tuple[list[str], str]:
    """The outcomes and errors of all trials on record, and why the study stopped; calls back after each trial."""
    options = Options(root=root, executor=ExecutorSettings(name="inline", device="cpu"), reuse=False)
    stopped = ""
    with open_session(spec, options) as session:
        for event in session.run():
            if isinstance(event, TrialEnded):
                after_trial()
            if isinstance(event, Stopped):
                stopped = event.reason
        records = session.store.trial_records("s")
    return [f"{record.outcome} {record.error}".strip() for record in records], stopped


@pytest.fixture
def images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    return write_files(tmp_path / "images", list_images({"cat": 20, "dog": 20}))


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folders that are scanned in this process, in order."""
    seen: list[Path] = []
    digest = image_folder.digest_folder
    monkeypatch.setattr(image_folder, "digest_folder", lambda root: (seen.append(root), digest(root))[1])
    return seen


def test_an_image_added_between_two_trials_stops_the_study_with_both_counts(images: Path, tmp_path: Path) -> None:
    new = images / "cat" / "new.png"
    spec = make_study(images)
    found, stopped = run(spec, tmp_path / "runs", lambda: new.write_bytes(make_image("rgb", 999)))
    assert found[0] == "complete"
    assert len(found) == 3
    assert found[1] == found[2]
    line = (
        f"crashed data imagefolder in '{images}': its images have changed since they were counted: 40 images (digest "
    )
    assert found[1].startswith(line)
    assert ") -> 41 (digest " in found[1]
    assert len(found[1].splitlines()) == 1
    assert stopped.startswith("2 trials in a row crashed in the same way: data imagefolder in ")

    with pytest.raises(InputError, match="what its trials read has changed"):  # it cannot go on with them
        run(spec, tmp_path / "runs")
    new.unlink()
    found, stopped = run(spec, tmp_path / "runs")  # restored, it does
    assert [text.split()[0] for text in found] == ["complete", "crashed", "crashed", "complete", "complete"]
    assert stopped == ""


def test_a_trial_that_checks_its_folder_scans_it_once(images: Path, scans: list[Path]) -> None:
    config = build_config({"data.name": "imagefolder", "data.root": str(images)}, "test")
    expected = make_expected_data(look_at_data(config.data))
    scans.clear()
    assert len(load_splits(config.data, expected).train) == 28
    assert scans == [images]
    write_files(images, {"dog/another.png": "rgb"})
    with pytest.raises(InputError, match=r"40 images .* -> 41 "):
        load_splits(config.data, expected)
    assert len(scans) == 2


def test_a_training_without_a_study_compares_too(images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check = single_trial.check_config

    def check_then_change(config: TrialConfig, executor: ExecutorSettings) -> DataSummary:
        data = check(config, executor)
        write_files(images, {"dog/another.png": "rgb"})
        return data

    monkeypatch.setattr(single_trial, "check_config", check_then_change)
    settings = {"data.name": "imagefolder", "data.root": str(images), "batch.micro": 16, **TRIALS}
    ending = single_trial.train_trial(build_config(settings, "test"), device="cpu")
    assert ending.outcome == "crashed"
    assert ": 40 images (digest " in ending.error
    assert ") -> 41 (digest " in ending.error


# ---------------------------------------------------------------------- sets in memory


class Pixels:
    """A data set that can change, and that counts how often its test split is read."""

    def __init__(self) -> None:
        self.value, self.num_test_reads = 0, 0

    def load(self, section: Any) -> Source:
        side = section.image_size or 8
        return Source(train=self._make(30, side, self.value), num_classes=2, read_test=lambda: self._read_test(side))

    def _make(self, count: int, side: int, value: int) -> ArrayImages:
        pixels = np.random.default_rng(value).integers(0, 256, (count, side, side, 1), dtype=np.uint8)
        return ArrayImages(pixels, np.arange(count, dtype=np.int64) % 2)

    def _read_test(self, side: int) -> ArrayImages:
        self.num_test_reads += 1
        return self._make(10, side, 77)


@pytest.fixture
def pixels(monkeypatch: pytest.MonkeyPatch) -> Pixels:
    made = Pixels()
    monkeypatch.setitem(DATASETS, "mine", DatasetEntry(load=made.load))
    return made


def test_a_small_set_in_memory_is_compared_by_its_pixels(pixels: Pixels) -> None:
    config = build_config({"data.name": "mine"}, "test")
    expected = make_expected_data(look_at_data(config.data))
    assert expected is not None
    assert expected.num_images == 40
    load_splits(config.data, expected)
    pixels.value = 1
    with pytest.raises(InputError, match=r"data mine in '.*': its images have changed .*: 40 images .* -> 40 "):
        load_splits(config.data, expected)


def test_a_large_set_in_memory_is_not_digested_in_every_trial(pixels: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    config = build_config({"data.name": "mine"}, "test")
    expected = make_expected_data(look_at_data(config.data))
    monkeypatch.setattr(sources, "_MAX_DIGESTED_BYTES", 30 * 64 - 1)
    pixels.num_test_reads = 0
    pixels.value = 1
    load_splits(config.data, expected)
    assert pixels.num_test_reads == 0


def test_a_set_with_a_digest_of_its_own_is_compared_by_that(pixels: Pixels, monkeypatch: pytest.MonkeyPatch) -> None:
    version = ["one"]
    monkeypatch.setitem(DATASETS, "mine", DatasetEntry(load=pixels.load, digest=lambda _section: version[0]))
    config = build_config({"data.name": "mine"}, "test")
    expected = make_expected_data(look_at_data(config.data))
    pixels.value = 1  # its author says that the images are equal
    load_splits(config.data, expected)
    version[0] = "two"
    with pytest.raises(InputError, match="its images have changed"):
        load_splits(config.data, expected)


def test_other_pixels_for_another_section_are_no_change(pixels: Pixels) -> None:
    del pixels
    space = {"data.image_size": {"choice": [8, 4]}}
    spec = make_study(Path(), base={"data.name": "mine", "batch.micro": 16, **TRIALS}, space=space)
    expect = expect_data(spec, look_at_data(spec.config({"data.image_size": 8}).data))
    small, large = (spec.config({"data.image_size": size}) for size in (4, 8))
    assert expect(small) is None
    assert expect(large) is not None
    load_splits(large.data, expect(large))


# ---------------------------------------------------------------------- estimates, and commands without a study


def test_many_estimates_scan_the_folder_once(images: Path, scans: list[Path]) -> None:
    def run_query(task: Task) -> Ending:
        received = decode_task(encode_task(task))
        assert isinstance(received, EstimateTask)
        (ending,) = run_estimate(received)
        assert isinstance(ending, Ending)
        return ending

    prober = Prober(run_query, device="cpu", device_class="test")
    spec = make_study(images, space={"batch.micro": {"log2": [1, 3]}})
    peaks = [prober.estimate_peak_memory_bytes(spec.config({"batch.micro": micro})) for micro in (2, 4, 8)]
    assert sorted(set(peaks), key=lambda peak: peak or 0) == peaks  # of three sizes, each with a peak of its own
    assert None not in peaks
    assert scans == [images]


@pytest.mark.parametrize("fault", ["missing", "bad"])
@pytest.mark.parametrize("command", [["train"], ["cost", "--measure", "--one"], ["cost"]])
def test_a_folder_that_cannot_be_read_is_refused_before_anything_runs(
    command: list[str], fault: str, images: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(images.parent)
    write_files(images, {"dog/broken.png": "cut"})
    root = images if fault == "bad" else images / "missing"
    settings = [f"{key}={value}" for key, value in {"data.name": "imagefolder", "data.root": root, **TRIALS}.items()]
    assert run_app([*command, *(part for each in settings for part in ("--set", each))]) == 2
    error = capsys.readouterr().err
    reason = "is not a folder" if fault == "missing" else "1 of 41 images cannot be used:\n  dog/broken.png is no "
    assert re.search(f"error: data.root = '{root}'.*{reason}", error)
    assert not (images.parent / "runs").exists()
