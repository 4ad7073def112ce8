"""Fine-tuning from a file: which weights come over, and which files are refused."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from sweep.config.errors import InputError
from sweep.config.sections import ModelSection
from sweep.config.tables import ImageShape
from sweep.config.trial import build_config
from sweep.training.data.sources import check_inputs, make_inputs_digest
from sweep.training.models.build import build_model

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
    ({"name": "resnet20"}, "Not in the file: 3.1"), ({"norm": "group"}, "Not in the model: .*running_mean"),
    ({"name": "vit_micro"}, "not the weights of this model"),
    ({"shape": ImageShape(3, 8, 10)}, r"Of another shape: 0\.weight"),
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
