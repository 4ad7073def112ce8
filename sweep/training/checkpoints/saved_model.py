"""A trained model in one file: its weights, and what a program needs that takes predictions from it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, final

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from sweep.config.errors import InputError
from sweep.config.recipe_sections import ModelSection
from sweep.config.tables.datasets import ImageShape
from sweep.config.tables.entries import find_entry
from sweep.config.tables.models import MODELS
from sweep.training.checkpoints.checkpoint import write_atomically
from sweep.training.data.folders.decoding import decode_image
from sweep.training.models.pretrained import read_weights
from sweep.training.models.table import build_model

_NAME = "batch_sweep"  # of the description in the metadata of the file


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What the weights alone do not tell."""

    model: ModelSection
    shape: ImageShape
    class_names: tuple[str, ...]  # in the order of the logits
    mean: list[float]  # of each channel over the training images, of pixels from 0 to 255
    inverse_deviation: list[float]  # as mean
    resize: Literal["crop", "stretch", "pad"] | None  # data.resize, where data.image_size was given


def save_model(model: nn.Module, facts: ModelFacts, path: str) -> None:
    """Writes the model's state as safetensors, atomically, with ``facts`` in the metadata of the file.

    Raises:
        InputError: the path cannot be written.
    """
    state: dict[str, Tensor] = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(Path(path), save(state, {_NAME: _encode_facts(facts)}))
    except OSError as error:
        raise InputError(f"weights cannot be written to {path}: {error.strerror}.") from None


@final
class SavedModel(nn.Module):
    """A trained model with the normalization of its training images, in evaluation mode and 32 bits.

    Call it with uint8 images (n, side, side, channels) of 0 to 255; it returns logits (n, classes) in the order of
    ``class_names``. Test-time augmentation is not part of it.
    """

    mean: Tensor
    inverse_deviation: Tensor

    def __init__(self, model: nn.Module, facts: ModelFacts) -> None:
        super().__init__()
        self.model, self.facts, self.class_names = model, facts, facts.class_names
        for name in ("mean", "inverse_deviation"):
            self.register_buffer(name, torch.tensor(getattr(facts, name), dtype=torch.float32)[:, None, None])
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        expected = (self.facts.shape.side, self.facts.shape.side, self.facts.shape.channels)
        if images.dtype != torch.uint8 or images.ndim != 4 or tuple(images.shape[1:]) != expected:
            found = f"{images.dtype} of shape {tuple(images.shape)}"
            raise InputError(f"the images are {found}; give uint8 of shape (n, {', '.join(map(str, expected))}).")
        floats = images.permute(0, 3, 1, 2).to(torch.float32).contiguous()
        logits: Tensor = self.model((floats - self.mean) * self.inverse_deviation)
        return logits

    def read_images(self, paths: Sequence[str | Path]) -> Tensor:
        """The image files as the model was given those of its training: uint8 (n, side, side, channels).

        Raises:
            InputError: there is no file, one cannot be decoded or has another size, or the model is not for colored
                images.
        """
        if not paths:
            raise InputError("no image file is given.")
        shape = self.facts.shape
        if shape.channels != 3:
            raise InputError(
                f"the model takes images of {shape.channels} channel(s), files are read as RGB: call it with a tensor."
            )
        return torch.from_numpy(np.stack([decode_image(str(path), shape.side, self.facts.resize) for path in paths]))


def load_model(path: str | Path) -> SavedModel:
    """The model that ``sweep train --save`` wrote to the file ``path``, on the CPU.

    It takes uint8 images (n, side, side, channels) and returns logits (n, classes) in the order of its ``class_names``;
    its method ``read_images`` reads image files. For a model of a plug-in call :func:`sweep.load_plugin` first.

    Raises:
        InputError: no such file, or another program wrote it.
    """
    facts = _read_facts(Path(path))
    model = build_model(facts.model.model_copy(update={"weights": None}), facts.shape)
    try:
        model.load_state_dict(read_weights(str(path)))
    except RuntimeError as error:  # torch lists the names of the tensors that differ
        reason = " ".join(str(error).split()).rstrip(".")
        raise InputError(f"{path}: the weights are not those of {facts.model.name}: {reason}.") from None
    return SavedModel(model, facts)


def _encode_facts(facts: ModelFacts) -> str:
    return json.dumps(asdict(facts) | {"model": facts.model.model_dump(), "shape": facts.shape._asdict()})


def _read_facts(path: Path) -> ModelFacts:
    if not path.is_file():
        raise InputError(f"{path}: the model cannot be read: there is no such file.")
    try:
        with safe_open(path, framework="pt") as file:
            content = json.loads(file.metadata()[_NAME])
        find_entry("model", content["model"]["name"], MODELS)  # its message explains what is missing
        shape = ImageShape(**content["shape"])
        content |= {"shape": shape, "class_names": tuple(content["class_names"])}
        return ModelFacts(**content | {"model": ModelSection(**content["model"])})
    except OSError as error:
        raise InputError(f"{path}: the model cannot be read: {error.strerror}.") from None
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    except (SafetensorError, ValueError, KeyError, TypeError):
        raise InputError(
            f"{path}: no model that `sweep train --save` has written. To train from other weights, set model.weights."
        ) from None
