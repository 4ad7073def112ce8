"""A trained model in a file: it predicts what was evaluated in training, and other files are refused."""

from pathlib import Path

import pytest
import torch
from image_folder_factory import list_images, write_files
from safetensors.torch import save_file

from sweep import Evaluation, InputError, load_model, load_plugin, train_trial
from sweep.config.tables import MODELS
from sweep.config.trial import TrialConfig, build_config
from sweep.training.data.sources import load_splits

PLUGIN = """
from sweep.config.tables import MODELS
from torch import nn

MODELS["flat"] = lambda section, shape: nn.Sequential(
    nn.Flatten(), nn.Linear(shape.channels * shape.side**2, shape.num_classes)
)
"""
SHORT = {"budget.steps": 6, "batch.micro": 8, "optimizer.lr": 0.05}


def train(path: Path, values: dict[str, object], plugin: str | None = None) -> tuple[TrialConfig, Evaluation]:
    config, evaluations = build_config({**SHORT, **values}, "test"), []
    ending = train_trial(config, device="cpu", plugin=plugin, save=path, on_evaluation=evaluations.append)
    assert ending.outcome == "complete", ending.error
    return config, evaluations[-1]


def accuracy_of(path: Path, config: TrialConfig) -> float:
    """The share of the validation images that the model in ``path`` gets right."""
    validation = load_splits(config.data).validation
    images = torch.from_numpy(validation.read(torch.arange(len(validation)).numpy()))
    with torch.no_grad():
        predicted = load_model(path)(images).argmax(1)
    return (predicted == torch.from_numpy(validation.labels)).double().mean().item()


@pytest.mark.parametrize("values", [
    {"model.name": "resnet8"}, {"model.name": "resnet8", "model.dropout": 0.2, "regularization.ema_decay": 0.5},
    {"model.name": "vit_micro", "optimizer.lr": 0.01},
    {"model.name": "resnet8", "precision.channels_last": True, "model.norm": "group"},
])  # fmt: skip
def test_it_predicts_as_in_the_last_evaluation(tmp_path: Path, values: dict[str, object]) -> None:
    path = tmp_path / "w.safetensors"
    config, evaluation = train(path, {**values, "budget.steps": 60, "data.subset": 600})
    assert evaluation.val_accuracy > 0.15  # it has learned, so that a wrong normalization would be seen
    assert accuracy_of(path, config) == pytest.approx(evaluation.val_accuracy, abs=1e-9)


def test_image_files_are_read_as_in_training(tmp_path: Path) -> None:
    root = write_files(tmp_path / "photos", list_images({"cats": 6, "dogs": 6, "owls": 6}, "rgb@11x9"))
    path = tmp_path / "w.safetensors"
    config, _ = train(path, {"data.name": "imagefolder", "data.root": str(root), "data.image_size": 8})
    model = load_model(path)
    assert model.class_names == ("cats", "dogs", "owls")
    files = sorted(root.glob("*/*.png"))
    read = model.read_images(files)
    assert (read.dtype, tuple(read.shape)) == (torch.uint8, (18, 8, 8, 3))
    splits = load_splits(config.data)
    trained_on = splits.train.read(torch.arange(len(splits.train)).numpy())
    assert {image.tobytes() for image in trained_on} <= {image.numpy().tobytes() for image in read}
    assert model(read).shape == (18, 3)
    with pytest.raises(InputError, match=r"torch.float32 of shape .*; give uint8 of shape \(n, 8, 8, 3\)"):
        model(read.float())


def test_a_model_of_a_plug_in_needs_the_plug_in(tmp_path: Path) -> None:
    (tmp_path / "flat.py").write_text(PLUGIN)
    path = tmp_path / "w.safetensors"
    load_plugin(str(tmp_path / "flat.py"))
    config, evaluation = train(path, {"model.name": "flat"}, plugin=str(tmp_path / "flat.py"))
    assert accuracy_of(path, config) == pytest.approx(evaluation.val_accuracy, abs=1e-9)
    del MODELS["flat"]
    with pytest.raises(InputError, match=r"w.safetensors: .*'flat'.*--plugin"):
        load_model(path)


@pytest.mark.parametrize("content", [b"", b"\xff" * 64, b"\x02\0\0\0\0\0\0\0{}"])
def test_other_files_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match="no model that `sweep train --save` has written"):
        load_model(path)
    save_file({"weight": torch.ones(3)}, path)
    with pytest.raises(InputError, match=r"set model\.weights"):
        load_model(path)
    with pytest.raises(InputError, match="cannot be read: there is no such file"):
        load_model(tmp_path / "none.safetensors")


def test_gray_images_are_no_files_and_weights_must_fit_their_description(tmp_path: Path) -> None:
    path, other = tmp_path / "w.safetensors", tmp_path / "other.safetensors"
    train(path, {})
    model = load_model(path)
    assert model.class_names == tuple("0123456789")
    with pytest.raises(InputError, match=r"1 channel\(s\), files are read as RGB"):
        model.read_images(["any.png"])
    length = int.from_bytes(path.read_bytes()[:8], "little")
    header = path.read_bytes()[8 : 8 + length]
    changed = header.replace(b'\\"num_classes\\": 10', b'\\"num_classes\\": 11')
    assert changed != header
    other.write_bytes(path.read_bytes().replace(header, changed))
    with pytest.raises(InputError, match=r"the weights are not those of resnet8: .*size mismatch"):
        load_model(other)
