"""The same images as MNIST's IDX files and as class folders: the same counts, the same images, the same learning.

The images are the shipped digits at MNIST's size, because MNIST itself is not at hand.
"""

import json
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from sweep import load_frames
from sweep.cli.app import run_app
from sweep.config.trial import build_config
from sweep.training.data.images import Images
from sweep.training.data.published import read_digits
from sweep.training.data.sources import load_splits

NUM_TRAIN, NUM_TEST = 2000, 500
STUDY = """
name = "NAME"
question = "Which micro batch?"
trials = 1
sampler = "grid"
objectives = ["val_accuracy", "train_seconds"]
confirm = { max_configurations = 1, seeds = 2 }

[base]
data.name = "NAME"
data.root = "ROOT"
model.name = "resnet8"
optimizer.lr = 0.05
budget.epochs = 2

[space]
"batch.micro" = { choice = [25] }
"""


def make_images() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (2500, 28, 28) and labels (2500,): all digits at 24 pixels in the middle, and some again, moved."""
    digits = read_digits()
    small = [Image.fromarray(np.uint8(image * 15.9)) for image in digits.levels]
    large = [np.asarray(image.resize((24, 24), Image.Resampling.BICUBIC)) for image in small]
    padded = np.pad(np.stack(large), ((0, 0), (2, 2), (2, 2)))
    moved = np.roll(padded, (2, -2), axis=(1, 2))
    order = np.random.default_rng(0).permutation(NUM_TRAIN + NUM_TEST)
    labels = np.concatenate([digits.labels, digits.labels])
    return np.concatenate([padded, moved])[order], labels[order].astype(np.uint8)


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


def run_sweep(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "sweep.cli", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


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
    note = f"these are not the published files: {NUM_TRAIN:,} images for training and validation instead of 60,000"
    assert (idx["notes"], png["notes"]) == ([note], [])


def pictures_of(images: Images) -> Counter[tuple[int, bytes]]:
    """How often each picture is there with each label; of three channels all must be alike."""
    pixels = images.read(np.arange(len(images)))
    assert (pixels == pixels[..., :1]).all()
    return Counter((int(label), image.tobytes()) for label, image in zip(images.labels, pixels[..., 0], strict=True))


def test_both_hold_the_same_pictures_with_the_same_labels(place: Path) -> None:
    splits = {
        name: load_splits(build_config({"data.name": name, "data.root": str(place / root)}, "test").data)
        for name, root in (("mnist", "idx"), ("imagefolder", "png"))
    }
    idx, png = splits["mnist"], splits["imagefolder"]
    assert (idx.shape.channels, png.shape.channels) == (1, 3)
    assert pictures_of(idx.read_test()) == pictures_of(png.read_test())
    everything = [pictures_of(each.train) + pictures_of(each.validation) for each in (idx, png)]
    assert everything[0] == everything[1]
    assert len(everything[0]) == NUM_TRAIN  # no picture twice, so that none can be in two splits


@pytest.mark.slow
def test_both_are_learned_alike_and_not_compared_as_one_set(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("SWEEP_CACHE", str(place / "cache"))
    reached = {}
    for name in ("mnist", "imagefolder"):
        run_sweep("run", f"{name}.toml")
        folder = place / "runs" / name
        frames = load_frames(folder)
        assert sorted(frames.trials["seed"]) == [0, 1, 2]
        assert set(frames.trials["outcome"]) == {"complete"}
        reached[name] = frames.trials.sort_values("seed")["val_accuracy"].to_numpy()
        page = (folder / "report.html").read_text()
        assert frames.data is not None
        assert frames.data.counts() in page
        assert ("these are not the published files" in page) == (name == "mnist")
    means = {name: accuracies.mean() for name, accuracies in reached.items()}
    # Channels, and so the weights at the start, and the images held out differ. What is left is the noise of three
    # seeds on each side: three standard errors, by the spread between seeds, or of a share of so few images.
    between_seeds = np.mean([accuracies.var(ddof=1) for accuracies in reached.values()])
    of_images = means["mnist"] * (1 - means["mnist"]) / frames.data.num_val
    tolerance = 3 * np.sqrt(2 / 3 * max(between_seeds, of_images))
    assert tolerance < 0.1  # one class of ten that is labeled wrongly in one of the splits costs more
    assert abs(means["mnist"] - means["imagefolder"]) < tolerance
    assert min(means.values()) > 0.8  # chance is 0.1
    compared = run_sweep("compare", "mnist", "imagefolder")
    assert "The data differ, so that no results are compared:" in compared
    assert "in both" not in compared  # no configuration is aligned
    assert "data.name: mnist -> imagefolder" in compared
