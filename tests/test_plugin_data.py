"""What the load function of a plug-in returns is checked as strictly as a study file, before anything trains."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from sweep.cli.app import run_app
from sweep.config.errors import InputError
from sweep.config.sections import DataSection
from sweep.config.tables import DATASETS
from sweep.training.data.images import ArrayImages
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


# what the function does, and the value, the rule and the remedy that the message must have
MISTAKES: dict[str, tuple[str, tuple[str, ...]]] = {
    "floats_to_1": (of("pixels / 255.0"),
        (r"float64 from 0 to 1;", "uint8 from 0 to 255", r"give \(pixels \* 255\)\.round\(\)\.astype\('uint8'\)")),
    "floats_to_255": (of("pixels.astype('float32')"),
        ("float32 from 0 to 255;", "uint8 from 0 to 255", r"give pixels\.astype\('uint8'\)")),
    "normalized": (of("pixels / 128.0 - 1"), (r"float64 from -1 to 0\.99", "uint8", "before they were normalized")),
    "not_a_number": (of("np.full((60, 8, 8, 1), np.nan)"), ("float64 from nan to nan", "uint8", "normalized")),
    "tensor_of_floats": (of("torch.from_numpy(pixels) / 255"),
        ("float32 from 0 to 1;", r"\(pixels \* 255\)\.round\(\)\.to\(torch\.uint8\)")),
    "sixteen_bits": (of("pixels.astype('uint16') * 257"), ("uint16 from 0 to 65535", "scale them to 0 to 255")),
    "channels_first": (of("pixels.transpose(0, 3, 1, 2)"),
        ("60 x 1 x 8 x 8", r"required is \(images, side, side, channels\)", r"pixels\.transpose\(0, 2, 3, 1\)")),
    "channels_first_and_oblong": (of("np.repeat(pixels[:, :4], 3, axis=3).transpose(0, 3, 1, 2)"),
        ("60 x 3 x 4 x 8", r"pixels\.permute\(0, 2, 3, 1\)")),
    "no_channels": (of("pixels[..., 0]"), ("60 x 8 x 8;", "channels", r"give pixels\[\.\.\., None\]")),
    "oblong": (of("pixels[:, :5]"), ("images of 5 x 8 pixels", "models require squares", "crop or pad")),
    "flat": (of("pixels.reshape(60, 64)"), ("60 x 64;", r"give pixels\.reshape\(-1, 8, 8, 1\)")),
    "flat_and_oblong": (of("pixels.reshape(120, 32)"), ("120 x 32;", "these four axes")),
    "without_pixels": (of("pixels[:, :0, :0]"), ("60 x 0 x 0 x 1", "at least 1")),
    "more_labels": (of(labels="np.arange(61) % 3"), ("60 images", "shape 61", "one label for each image")),
    "one_label": (of(labels="5"), ("60 images", "of a single number", "one label for each image")),
    "labels_from_1": (of(labels="labels + 1"), ("train split", "labels are 1 to 3", "0 to 2", "give labels - 1")),
    "labels_too_large": (of(labels="labels + 5"), ("labels are 5 to 7", "num_classes = 3", "give num_classes = 8")),
    "negative_labels": (of(labels="labels - 1"), ("labels are -1 to 1", "0 to 2", "images without a class")),
    "float_labels": (of(labels="labels * 1.0"), (r"float64, such as 0\.0", "integers from 0", r"astype\('int64'\)")),
    "shares": (of(labels="labels / 3"), ("float64", "integers from 0", r"numpy\.unique\(labels")),
    "one_hot": (of(labels="np.eye(3)[labels]"), ("60 x 3", "one class index", r"labels\.argmax\(1\)")),
    "column_of_labels": (of(labels="labels[:, None]"), ("60 x 1", r"labels\[:, 0\]")),
    "texts": (of(labels="np.array(['cat', 'dog', 'owl'])[labels]"), ("such as cat", r"numpy\.unique\(labels, ")),
    "classes_as_text": (of(rest="num_classes='3'"), ("num_classes = '3'", "whole number", "number of classes")),
    "classes_as_float": (of(rest="num_classes=3.0"), (r"num_classes = 3\.0", "whole number")),
    "no_classes": (of(rest="num_classes=0"), ("num_classes = 0", "at least 1")),
    "empty": (of("pixels[:0]", "labels[:0]"), ("train split", "no images", "give at least 3")),
    "empty_lists": (of("pixels[:0]", "[]"), ("train split", "no images")),
    "too_few": (of("pixels[:3]", "labels[:3]"), ("3 images are too few", "at least 3 images of a class")),
    "a_tuple": ("return pixels, labels", ("of the type tuple", "Source", r"return Source\(train=ArrayImages")),
    "nothing": ("pass", ("returned nothing", "Source", r"return Source\(train=ArrayImages")),
    "arrays_alone": ("return Source(train=(pixels, labels), num_classes=3)",
        ("train split", "of the type tuple", r"give ArrayImages\(pixels, labels\)")),
    "raises": ("return {}['pixels']",
        (r"\(plugin_raises\.py, line 16\)", "load function failed", "KeyError: 'pixels'")),
    "exits": ("raise SystemExit(0)", (r"\(plugin_exits\.py, line 16\)", "load function failed", "SystemExit: 0")),
    "raises_in_numpy": ("return np.concatenate([pixels, more[..., 0]])",
        (r"\(plugin_raises_in_numpy\.py, line 16\)", "load function failed", "ValueError: all the input")),
    "raises_in_a_helper": ("return helper.join(pixels, more[..., 0])",
        (r"\(helper\.py, line 6\)", "load function failed", "ValueError: all the input")),
    "raises_in_torch": ("return torch.cat([torch.zeros(1, 2), torch.zeros(1, 2, 3)])",
        (r"\(plugin_raises_in_torch\.py, line 16\)", "RuntimeError: Tensors must have same")),
    "file_that_is_missing": ("return np.load('absent.npy')",
        (r"\(plugin_file_that_is_missing\.py, line 16\)", "FileNotFoundError", r"absent\.npy")),
    "validation_of_another_size": (
        of(rest="num_classes=3, validation=ArrayImages(more[:, :4, :4], np.arange(200) % 3)"),
        ("validation split", "4 x 4 x 1", "8 x 8 x 1", "one size")),
    "test_of_another_depth": (
        of(rest="num_classes=3, read_test=lambda: ArrayImages(np.repeat(more, 3, 3), np.arange(200) % 3)"),
        ("test split", "8 x 8 x 3", "8 x 8 x 1", "one size")),
    "test_of_other_classes": (of(rest="num_classes=3, read_test=lambda: ArrayImages(more, np.arange(200) % 4)"),
        ("test split", "labels are 0 to 3", "give num_classes = 4")),
    "test_is_no_function": (of(rest="num_classes=3, read_test=ArrayImages(more, np.arange(200) % 3)"),
        ("read_test", "lambda: images")),
    "test_returns_nothing": (of(rest="num_classes=3, read_test=lambda: None"), ("test split", "NoneType")),
    "test_raises": (of(rest="num_classes=3, read_test=lambda: np.load('absent.npy')"),
        (r"\(plugin_test_raises\.py, line 16\)", "FileNotFoundError")),
    "test_overlaps": (of_copies(3),
        ("3 of 200 images of the test split are in the train split", "not accuracy on new images", "disjoint splits")),
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


def assert_is_one_line(error: str, parts: tuple[str, ...]) -> None:
    lines = [line for line in error.splitlines() if line and not line.startswith(("advice", "`sweep check"))]
    assert len(lines) == 1, error
    for part in parts:
        assert re.search(part, lines[0]), (part, lines[0])


@pytest.mark.parametrize("name", MISTAKES)
def test_every_command_refuses_it_in_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    body, parts = MISTAKES[name]
    plugin = write(name, body)
    for command in (["check"], ["run", "--dry-run"], ["run"]):
        assert run_app([*command, "study.toml", "--plugin", plugin]) == 2
        assert_is_one_line(capsys.readouterr().err, parts)
    assert not list(Path("runs").rglob("study.sqlite"))


def test_a_process_of_its_own_refuses_it() -> None:
    body, parts = MISTAKES["test_overlaps"]
    plugin = write("test_overlaps", body)
    command = [sys.executable, "-m", "sweep.cli", "run", "study.toml", "--plugin", plugin]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 2, result.stderr
    assert_is_one_line(result.stderr, parts)
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
    assert "note: 2 of 200 images of the test split are in the train split too" in shown
    assert "54 training, 6 validation and 200 test images" in shown
    assert "validation: 10 % of the set's own train split" in shown


@pytest.mark.parametrize(("body", "note"), [
    (of("np.zeros((60, 8, 8, 1), np.uint8)"), "the pixels are 0 to 0, of the 0 to 255 of uint8"),
    (of("(pixels > 99).astype('uint8')"), "the pixels are 0 to 1, of the 0 to 255 of uint8"),
    (of("np.concatenate([pixels[:59], pixels[:1]])"), "1 image equal to another one, so that an image can be in the"),
    (of(rest="num_classes=5"), "2 classes without a training image, so that it cannot be learned: 3, 4"),
])  # fmt: skip
def test_doubtful_pixels_and_absent_classes_are_noted(body: str, note: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_app(["check", "study.toml", "--plugin", write("doubtful", body)]) == 0
    assert f"note: {note}" in capsys.readouterr().out


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


def test_what_is_no_array_of_numbers_is_refused() -> None:
    with pytest.raises((TypeError, RuntimeError), match=r"numpy|grad"):
        ArrayImages(torch.zeros(6, 8, 8, 1, requires_grad=True), np.zeros(6, dtype=np.int64))
    with pytest.raises(InputError, match=r"object.*uint8"):
        ArrayImages(np.full((6, 8, 8, 1), None), np.zeros(6, dtype=np.int64))
