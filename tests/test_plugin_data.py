"""What the load function of a plug-in returns is checked as strictly as a study file, before anything trains."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sweep.cli.app import run_app
from sweep.config.sections import DataSection
from sweep.config.tables import DATASETS
from sweep.training.data.sources import look_at_data
from sweep.training.processes import load_plugin

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


def test_a_handful_of_copies_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = write("copies", of_copies(2))
    assert run_app(["check", "study.toml", "--plugin", plugin]) == 0
    shown = capsys.readouterr().out
    assert "note: 2 of 200 images of the test split are in the train split too, so that accuracy" in shown
    assert "54 training, 6 validation and 200 test images" in shown
    assert "validation: 10 % of the set's own train split" in shown


def test_absent_classes_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["check", "study.toml", "--plugin", write("absent", of(rest="num_classes=5"))]) == 0
    note = "note: 2 classes without a training image, so that it cannot be learned: 3, 4"
    assert note in capsys.readouterr().out


def test_what_a_plug_in_prints_leaves_the_json_alone(capsys: pytest.CaptureFixture[str]) -> None:
    plugin = Path(write("prints", f"print('loading'); {of()}"))
    plugin.write_text(plugin.read_text() + "\nprint('hello')\n")
    assert run_app(["check", "study.toml", "--plugin", str(plugin), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["data"]["num_train"] == 42
    assert {"hello", "loading"} <= set(printed.err.split())


def test_a_plug_in_that_ends_the_process_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path("leaves.py").write_text("import sys\nsys.exit(0)\n")
    for command in ("check", "run"):
        assert run_app([command, "study.toml", "--plugin", "leaves.py"]) == 2
        assert "plug-in leaves.py: line 2: SystemExit: 0" in capsys.readouterr().err
