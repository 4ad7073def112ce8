"""Folders that are decoded once into a mapped file: by one process of several, after kills, within a disk's room."""

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_folder_factory import list_images, make_image, write_files
from PIL import Image

from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.trial import TrialConfig, build_config
from sweep.search import guided_study
from sweep.search.ask import Answers
from sweep.search.session import Options
from sweep.search.single import train_trial
from sweep.training.checkpoints import load_model
from sweep.training.data import cache, image_folder, image_maps
from sweep.training.data.feeders import StreamFeeder, _ReadAhead, make_feeder
from sweep.training.data.folders import decode_image
from sweep.training.data.images import ArrayImages, crop_center
from sweep.training.data.sources import load_splits, look_at_data
from sweep.training.data.windows import cut_epoch

CPU = torch.device("cpu")
CHILD = """
import sys, time
from pathlib import Path
from sweep.config.trial import build_config
from sweep.training.data import image_maps
from sweep.training.data.sources import look_at_data

root, log = sys.argv[1:]
image_maps._PARALLEL_BYTES, image_maps._SPAN = 0, 4
decode_image = image_maps.decode_image
def decode_slowly(name, *by):
    with open(log, "a") as file:
        file.write(name + "\\n")
    time.sleep(0.01)
    return decode_image(name, *by)
image_maps.decode_image = decode_slowly
print(look_at_data(build_config({"data.name": "imagefolder", "data.root": root}, "t").data).digest)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of 200 images, and a cache of its own."""
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    return write_files(tmp_path / "images", list_images({"a": 100, "b": 100}))


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are decoded in this process, in order."""
    names: list[str] = []
    decode = image_maps.decode_image
    monkeypatch.setattr(image_maps, "decode_image", lambda name, *by: (names.append(name), decode(name, *by))[1])
    return names


def config(root: Path, **values: Any) -> TrialConfig:
    data = {f"data.{key}": value for key, value in ({"name": "imagefolder", "root": str(root)} | values).items()}
    return build_config(data | {"model.name": "resnet8", "batch.micro": 16, "budget.epochs": 1}, "t")


def spy(function: Callable[..., Any], calls: list[Any]) -> Callable[..., Any]:
    return lambda *given, **named: (calls.append(given), function(*given, **named))[1]


def pixels_of(root: Path, **values: Any) -> np.ndarray:
    train = load_splits(config(root, **values).data).train
    return train.read(np.arange(len(train)))


def start(root: Path, log: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(root), str(log)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill_after(num_decoded: int, root: Path, log: Path) -> list[str]:
    """The files that were decoded when the process was killed, at least so many."""
    with start(root, log) as process:
        while len(read_log(log)) < num_decoded:
            time.sleep(0.005)
        process.kill()
    names = read_log(log)
    time.sleep(0.1)
    assert len(read_log(log)) - len(names) <= 2  # its workers die with it
    return read_log(log)


def finish(root: Path, log: Path) -> str:
    """The digest that a process prints."""
    with start(root, log) as process:
        return process.communicate()[0].strip()


def read_log(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def cache_files(suffix: str) -> list[Path]:
    return sorted(path for path in cache.find_cache_folder().iterdir() if path.name.endswith(suffix))


def test_five_kills_leave_nothing_torn_and_decode_no_finished_span_again(folder: Path, tmp_path: Path) -> None:
    expected, moments = look_at_data(config(folder).data).digest, random.Random(0)
    whole = pixels_of(folder)
    for path in cache_files(""):
        path.unlink()
    log, kept = tmp_path / "log", 0
    for _ in range(5):
        kept = len(kill_after(kept + moments.randrange(4, 40), folder, log))
        assert cache_files(".npy") == cache_files(".folder.json") == []  # whole or not there
    assert finish(folder, log) == expected
    names = read_log(log)
    assert set(names) == set(list_images({"a": 100, "b": 100}))
    spans_in_progress = 5 * len(os.sched_getaffinity(0)) * 4
    assert len(names) <= 200 + spans_in_progress
    assert np.array_equal(pixels_of(folder), whole)
    assert cache_files(".part") == []


def test_a_span_whose_pixels_are_torn_is_decoded_again(folder: Path, tmp_path: Path, decoded: list[str]) -> None:
    whole, log = pixels_of(folder), tmp_path / "log"
    for path in cache_files(""):
        path.unlink()
    kill_after(80, folder, log)
    (pixels,), (journal,) = cache_files(".npy.part"), cache_files(".jsonl.part")
    rows, _, _ = next(span for span in map(json.loads, journal.read_text().split()) if span[0])
    with pixels.open("r+b") as file:  # as after a power failure, in which the disk keeps what it likes
        file.seek(pixels.stat().st_size - (200 - rows[0]) * 8 * 8 * 3)
        file.write(b"\0" * 64)
    journal.write_bytes(journal.read_bytes()[:-7])
    decoded.clear()
    assert np.array_equal(pixels_of(folder), whole)
    assert len(rows) <= len(decoded) < 200


def test_two_at_once_decode_every_image_once(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(finish, [folder] * 2, [log] * 2))) == 1
    assert sorted(read_log(log)) == sorted(list_images({"a": 100, "b": 100}))


@pytest.mark.parametrize(("change", "anew"), [
    (lambda root: (root / "a/new.png").write_bytes(make_image("rgb", 999)), ["a/new.png"]),
    (lambda root: (root / "a/7.png").write_bytes(make_image("rgb", 999)), ["a/7.png"]),
    (lambda root: (root / "b/7.png").rename(root / "b/8.bak"), []),
    (lambda root: (root / "b/7.png").rename(root / "b/x.png"), ["b/x.png"]),
    (lambda root: (root / "notes.txt").write_text("x"), []),
], ids=["added", "changed", "removed", "renamed", "a text"])  # fmt: skip
def test_only_what_changed_is_decoded_anew(
    change: Callable[[Path], object], anew: list[str], folder: Path, decoded: list[str]
) -> None:
    held = load_splits(config(folder).data).train
    before = held.read(np.arange(len(held)))
    decoded.clear()
    change(folder)
    after = pixels_of(folder)
    assert [name for name in decoded if (folder / name).exists()][-len(anew) :] == anew
    assert len(set(decoded) - {*anew, "a/0.png"}) == 0  # the first one tells the side
    assert len(cache_files(".npy")) == 1
    assert np.array_equal(held.read(np.arange(len(held))), before)  # who has the earlier state mapped keeps it
    for path in cache_files(""):
        path.unlink()
    assert np.array_equal(pixels_of(folder), after)


def test_an_earlier_map_that_is_gone_meanwhile_is_decoded_again(folder: Path) -> None:
    pixels_of(folder)
    for path in cache_files(".npy"):  # the name is still there, and what it names is not
        path.unlink()
        path.with_name(f"{path.name.partition('.')[0]}.0.npy").symlink_to("nowhere")
    assert pixels_of(folder).any()


@pytest.mark.parametrize("limit", ["0", "12800", "38399"])
def test_a_cache_too_small_is_refused_with_the_size_that_fits(
    limit: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SWEEP_CACHE_BYTES", limit)
    with pytest.raises(InputError, match=r"200 images decode to 8 x 8 pixels, 3.84e-05 GB") as refused:
        look_at_data(config(folder).data)
    side = {"0": 0, "12800": 4, "38399": 7}[limit]
    assert f"Sizes up to {side} fit: set data.image_size to at most {side}" in str(refused.value)
    if side:
        assert pixels_of(folder, image_size=side).shape == (144, side, side, 3)
    given = ["--set", "data.name=imagefolder", "--set", f"data.root={folder}"]
    assert run_app(["train", *given]) == 2
    assert "Sizes up to" in capsys.readouterr().err


def test_a_full_disk_is_refused_before_a_page_is_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(InputError, match="cannot be written: No space left on device; give SWEEP_CACHE another"):
        look_at_data(config(folder).data)
    assert cache_files(".npy") == []


def test_a_process_that_dies_while_it_decodes_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_maps, "_PARALLEL_BYTES", 0)
    decode = image_maps.decode_image
    die = lambda name, *by: os._exit(1) if name == "b/50.png" else decode(name, *by)  # noqa: E731
    monkeypatch.setattr(image_maps, "decode_image", die)
    with pytest.raises(InputError, match="a process that decodes its images was killed, maybe for lack of memory"):
        look_at_data(config(folder).data)
    monkeypatch.setattr(image_maps, "decode_image", decode)
    assert pixels_of(folder).shape == (144, 8, 8, 3)


def test_a_thread_reads_ahead_in_order_and_ends_with_its_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    empty, read = torch.empty, []
    monkeypatch.setattr(torch, "empty", lambda *shape, **by: empty(*shape, dtype=by["dtype"]))  # needs no GPU
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    pixels = np.arange(40 * 4 * 4 * 3, dtype=np.uint32).astype(np.uint8).reshape(40, 4, 4, 3)
    images = ArrayImages(pixels, np.arange(30), rows=np.arange(39, 9, -1))
    monkeypatch.setattr(ArrayImages, "read", spy(ArrayImages.read, read))
    order = [np.arange(start, start + 3) for start in range(0, 30, 3)]
    for batch, indices in zip(_ReadAhead(images, order, 2), order, strict=True):
        assert np.array_equal(batch[0], pixels[39 - indices])
        assert np.array_equal(batch[1], indices)
    read.clear()
    batches = iter(_ReadAhead(images, order, 2))
    next(batches)
    batches.close()
    assert len(read) <= 4
    assert not [thread for thread in threading.enumerate() if "ThreadPoolExecutor" in thread.name]


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = [write_files(tmp_path / name, list_images({"a": 100, "b": 100})) for name in ("one", "two", "three")]
    for age, root in enumerate(roots[:2]):
        look_at_data(config(root).data)
        for path in cache_files(""):
            os.utime(path, (1000 + age, 1000 + age))
    look_at_data(config(roots[0]).data)  # is used again
    full, _ = cache.measure_cache()
    kept = image_folder._open_folder(config(roots[0]).data)[0].map_name
    monkeypatch.setenv("SWEEP_CACHE_BYTES", str(full))
    look_at_data(config(roots[2]).data)
    taken, limit = cache.measure_cache()
    assert taken <= limit == full
    left = {path.name for path in cache_files(".npy")}
    assert len(left) == 2
    assert kept in left


def test_a_limit_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, capsys, folder: Path) -> None:
    monkeypatch.setenv("SWEEP_CACHE_BYTES", "5 GB")
    with pytest.raises(InputError, match="SWEEP_CACHE_BYTES = '5 GB' is no number of bytes; give one such as 50000"):
        look_at_data(config(folder).data)
    run_app(["check", "--json"])
    found = {item["name"]: item for item in json.loads(capsys.readouterr().out)}
    assert found["cache"]["status"] == "FAIL"


def test_check_says_what_the_cache_takes_and_what_decoding_took(folder: Path, capsys) -> None:
    given = ["--set", f"data.root={folder}", "--set", "data.image_size=8"]
    assert run_app(["check", "imagefolder", *given]) == 0
    printed = capsys.readouterr()
    assert "decoding 200 images once: 8 x 8 pixels, 3.84e-05 GB in " in printed.err
    assert "  decoded once in " in printed.out
    assert ": 37.5 KiB at 8 x 8 pixels, for all trials" in printed.out
    assert run_app(["check", "imagefolder", *given, "--json"]) == 0
    printed = capsys.readouterr()
    assert "decoding" not in printed.err
    data = json.loads(printed.out)["data"]
    assert (data["stored_side"], data["stored_bytes"]) == (8, 200 * 8 * 8 * 3)
    assert data["decode_seconds"] > 0


def test_a_budget_that_decoding_exceeds_is_refused_and_what_was_decoded_is_kept(
    folder: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guided_study, "_RATE_SECONDS", 0.0)
    monkeypatch.setattr(image_maps, "_SPAN", 4)
    answers = Answers(data="imagefolder", data_root=str(folder))
    task = guided_study.GuideTask(name="s", answers=answers, options=Options(), budget_seconds=1e-3)
    with pytest.raises(InputError, match=r"--budget: .* Give --budget"):
        guided_study.look_at_images(task)
    assert 0 < len(set(decoded)) < 100
    facts, _ = guided_study.look_at_images(replace(task, budget_seconds=None))
    assert facts.side == 8
    assert len(decoded) == 200


def test_splits_and_subsets_share_the_pixels_of_one_file(folder: Path) -> None:
    splits = load_splits(config(folder, subset=50).data)
    parts = [splits.train, splits.validation, splits.read_test()]
    assert [len(part) for part in parts] == [50, 26, 30]
    stored = [part._stored for part in parts]
    assert all(np.shares_memory(stored[0], other) for other in stored[1:])
    assert not stored[0].flags.writeable


@pytest.mark.parametrize("augment", ["none", "crop_flip", "random_resized_crop", "randaugment"])
def test_streamed_from_the_map_a_training_is_the_same_to_the_last_bit(
    augment: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = config(folder, augment=augment, image_size=8)
    resident = train_trial(settings, device="cpu")
    monkeypatch.setattr("sweep.training.data.feeders.CPU_RESIDENT_BYTES", 0)
    images = load_splits(settings.data).train
    assert isinstance(make_feeder(settings, images, CPU), StreamFeeder)
    streamed = train_trial(settings, device="cpu")
    assert resident.outcome == streamed.outcome == "complete"
    assert resident.measurements["val_loss"] == streamed.measurements["val_loss"]
    assert resident.correct_images == streamed.correct_images


def test_a_resized_crop_is_cut_out_of_more_than_the_crop(tmp_path: Path) -> None:
    root = write_files(tmp_path / "large", list_images({"a": 20, "b": 20}, "rgb@70x60"))
    settings = config(root, image_size=28, augment="random_resized_crop")
    data, splits = look_at_data(settings.data), load_splits(settings.data)
    assert (data.stored_side, splits.shape.side, splits.train.side) == (32, 28, 28)
    assert isinstance(splits.train, ArrayImages)
    whole, rows = splits.train.uncropped(), np.arange(28)
    assert whole.read(rows).shape == (28, 32, 32, 3)
    assert np.array_equal(splits.train.read(rows), crop_center(whole.read(rows), 28))
    feeder, windows = make_feeder(settings, splits.train, CPU), cut_epoch(28, 28, 28)
    feeder.begin_epoch(0, windows)
    ((images, _),) = feeder.micro_batches(windows[0])
    assert images.shape == (28, 28, 28, 3)
    weights = tmp_path / "w.safetensors"
    given = {"data.augment": "random_resized_crop", "data.image_size": "28", "budget.steps": "1", "batch.micro": "8"}
    given |= {"data.name": "imagefolder", "data.root": str(root), "model.name": "resnet8"}
    sets = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
    assert run_app(["train", *sets, "--on", "cpu", "--save", str(weights), "--json"]) == 0
    seen = load_model(weights).read_images([root / "a/0.png"])[0].numpy()
    assert np.array_equal(seen, crop_center(decode_image("", root / "a/0.png", 32, "crop").pixels, 28))


@pytest.mark.parametrize(("size", "shrunk_to"), [((64, 64), 64), ((128, 128), 64), ((260, 200), 65), ((20, 400), 20)])
def test_a_large_jpeg_is_decoded_at_a_fraction_of_its_size(size, shrunk_to, tmp_path, monkeypatch) -> None:
    path, widths = tmp_path / "x.jpg", []
    steps = np.linspace(0, 255, size[0] * size[1] * 3).astype(np.uint8).reshape(size[1], size[0], 3)
    Image.fromarray(steps).save(path, quality=95)
    load = Image.Image.convert
    monkeypatch.setattr(
        "sweep.training.data.folders._convert_to_rgb", lambda image: (widths.append(image.width), image)[1]
    )
    found = decode_image("x", path, 32, "crop")
    assert load
    assert (found.width, found.height) == size
    assert min(widths[0], size[0]) == widths[0] == (shrunk_to if size[0] != 260 else 130)
    assert found.pixels is not None
    with Image.open(path) as image:
        edge = min(size)
        left, top = (size[0] - edge) // 2, (size[1] - edge) // 2
        full = np.asarray(image.crop((left, top, left + edge, top + edge)).resize((32, 32), Image.Resampling.BILINEAR))
    assert np.abs(found.pixels.astype(int) - full).mean() < 6
