"""Weights in files: a saved model predicts what was evaluated, and fine-tuning begins with what fits."""

import pickle
from pathlib import Path

import pytest
import torch
from image_folder_factory import list_images, make_image, write_files
from safetensors.torch import save_file
from torch import nn

from sweep import Evaluation, InputError, load_model, load_plugin, train_trial
from sweep.config.sections import ModelSection
from sweep.config.tables import MODELS, ImageShape
from sweep.config.trial import TrialConfig, build_config
from sweep.training.data.sources import check_inputs, load_splits, make_inputs_digest
from sweep.training.models.build import build_model

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
    for name in ("cats/0.png", "dogs/1.png", "owls/2.png"):  # photographs of a camera that was held upright
        (root / name).write_bytes(make_image("rotated", 7, (11, 9)))
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
    changed = header.replace(b"[1,8,10]", b"[1,8,11]")
    assert changed != header
    other.write_bytes(path.read_bytes().replace(header, changed))
    with pytest.raises(InputError, match=r"the weights are not those of resnet8: .*size mismatch"):
        load_model(other)


TEN, THREE = ImageShape(1, 8, 10), ImageShape(1, 8, 3)


def model(seed: int = 0, shape: ImageShape = TEN, **values: object) -> nn.Module:
    torch.manual_seed(seed)
    return build_model(ModelSection.model_validate(values), shape)


def saved(network: nn.Module, path: Path) -> str:
    save_file(network.state_dict(), path)
    return str(path)


def same(first: nn.Module, second: nn.Module) -> set[str]:
    other = second.state_dict()
    return {name for name, tensor in first.state_dict().items() if torch.equal(tensor, other[name])}


@pytest.mark.parametrize("kind", ["safetensors", "torch", "nested", "parallel"])
def test_every_kind_of_file_brings_all_weights(tmp_path: Path, kind: str) -> None:
    source, path = model(1), tmp_path / ("w.safetensors" if kind == "safetensors" else "w.pt")
    state = source.state_dict()
    if kind == "safetensors":
        save_file(state, path)
    elif kind == "parallel":
        torch.save({f"module.{name}": tensor for name, tensor in state.items()}, path)
    else:
        torch.save({"epoch": 3, "state_dict": state} if kind == "nested" else state, path)
    tuned = model(0, weights=str(path))
    assert same(tuned, source) == set(state)


@pytest.mark.parametrize(("name", "head"), [("resnet8", "8."), ("vit_micro", "heads.head.")])
def test_a_head_of_other_classes_stays_fresh(tmp_path: Path, name: str, head: str) -> None:
    source = model(1, name=name)
    path = saved(source, tmp_path / "w.safetensors")
    tuned = model(0, THREE, name=name, weights=path)
    fresh = model(0, THREE, name=name)
    kept = {key for key in tuned.state_dict() if not key.startswith(head)}
    assert kept <= same(tuned, source)
    assert tuned.state_dict().keys() - kept <= same(tuned, fresh)


def test_dropout_before_the_head_does_not_hide_it(tmp_path: Path) -> None:
    source = model(1)
    tuned = model(0, dropout=0.2, weights=saved(source, tmp_path / "w.safetensors"))
    assert torch.equal(tuned.state_dict()["8.1.weight"], source.state_dict()["8.weight"])


@pytest.mark.parametrize(("values", "message"), [
    ({"name": "resnet20"}, r"such as .*3\.1"), ({"norm": "group"}, "such as .*running_mean"),
    ({"name": "vit_micro"}, "not the weights of this model"),
    ({"shape": ImageShape(3, 8, 10)}, r"1 tensors .* such as 0\.weight\."),
])  # fmt: skip
def test_weights_of_another_model_are_refused(tmp_path: Path, values: dict[str, object], message: str) -> None:
    path = saved(model(), tmp_path / "w.safetensors")
    with pytest.raises(InputError, match=message):
        model(weights=path, **values)


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


def test_a_pickle_that_would_run_code_is_refused_and_does_not(tmp_path: Path) -> None:
    marker, path = tmp_path / "ran", tmp_path / "w.pt"
    path.write_bytes(pickle.dumps(Hostile(marker)))
    with pytest.raises(InputError, match="cannot be read as plain tensors"):
        model(weights=str(path))
    assert not marker.exists()


def test_damaged_files_and_what_is_no_state_dict_are_refused(tmp_path: Path) -> None:
    for name, content in (("w.safetensors", b"\xff" * 64), ("w.safetensors", b""), ("w.pt", b"hello"), ("w.pt", b"")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError, match="cannot be read"):
            model(weights=str(tmp_path / name))
    for other in ([1, 2], {"weight": 3.0}, torch.ones(3)):
        torch.save(other, tmp_path / "w.pt")
        with pytest.raises(InputError, match="no state dict"):
            model(weights=str(tmp_path / "w.pt"))


def test_a_missing_file_is_refused_before_anything_runs(tmp_path: Path) -> None:
    config = build_config({"model.weights": str(tmp_path / "none.pt")}, "test")
    with pytest.raises(InputError, match=r"model\.weights = .*none.pt' is not a file"):
        check_inputs([config])


def test_the_digest_follows_the_content_of_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "w.pt"
    config = build_config({"model.weights": str(path)}, "test")
    digests = set()
    for content in (b"a", b"b", b"b"):
        path.write_bytes(content)
        digests.add(make_inputs_digest(config, "images"))
    assert len(digests) == 2
    assert make_inputs_digest(build_config({}, "test"), "images") not in digests
