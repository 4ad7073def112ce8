"""Images that change while a study runs end its trials with one line; folders are read no oftener than they must be."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from image_folder_factory import list_images, make_image, write_files

from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.tables import DATASETS, DatasetEntry
from sweep.config.trial import TrialConfig, build_config
from sweep.executors.table import ExecutorSettings
from sweep.probing.memory import run_estimate
from sweep.probing.prober import Prober, ProbeSettings
from sweep.records.inputs import DataSummary
from sweep.records.messages import Ending, EstimateTask, ExpectedData, Task, TrialTask, decode_task, encode_task
from sweep.search import single as single_trial
from sweep.search.session import Options, open_session
from sweep.search.tuner import Stopped, TrialEnded
from sweep.training.data import image_folder as folder
from sweep.training.data import sources
from sweep.training.data.images import ArrayImages, Source
from sweep.training.data.sources import expect_data, load_splits, look_at_data, make_expected_data

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
    scan = folder.scan_folder
    monkeypatch.setattr(folder, "scan_folder", lambda root: (seen.append(root), scan(root))[1])
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


def test_a_replaced_image_is_noticed_although_the_numbers_are_the_same(images: Path, tmp_path: Path) -> None:
    changed = images / "dog" / "3.png"
    found, _ = run(make_study(images), tmp_path / "runs", lambda: changed.write_bytes(make_image("rgb", 999)))
    assert ": 40 images (digest " in found[1]
    assert ") -> 40 (digest " in found[1]


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


@pytest.mark.parametrize("subset", [None, 10])
@pytest.mark.parametrize("size", [None, 6])
def test_the_expected_images_are_the_same_for_every_section_of_a_folder(
    images: Path, subset: int | None, size: int | None
) -> None:
    spec = make_study(images)
    expected = make_expected_data(look_at_data(spec.config({"optimizer.lr": 0.01}).data))
    values = {"data.subset": subset, "data.image_size": size, "data.placement": "host"}
    settings = {key: value for key, value in values.items() if value is not None}
    load_splits(build_config(spec.base | settings, "test").data, expected)


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


def test_what_is_expected_is_part_of_a_trials_task() -> None:
    task = TrialTask(number=1, config=build_config({}, "test"), expected_data=ExpectedData("0a", 3))
    assert decode_task(encode_task(task)) == task


# ---------------------------------------------------------------------- estimates, and commands without a study


def test_many_estimates_scan_the_folder_once(images: Path, scans: list[Path]) -> None:
    def run_query(task: Task) -> Ending:
        received = decode_task(encode_task(task))
        assert isinstance(received, EstimateTask)
        (ending,) = run_estimate(received)
        assert isinstance(ending, Ending)
        return ending

    prober = Prober(run_query, ProbeSettings(device="cpu", device_class="test"))
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
    if fault == "missing":
        assert f"error: data.root = '{root}' is not a folder" in error
    else:
        assert (
            f"error: data.root = '{root}': 1 of 41 images cannot be used:\n  dog/broken.png cannot be decoded" in error
        )
        assert error.rstrip().endswith("or set data.on_bad_image = 'skip' to train without them.")
    assert not (images.parent / "runs").exists()
