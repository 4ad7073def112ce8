"""Weights from a file, for fine-tuning."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from sweep.config.errors import InputError

_WRAPPERS = ("state_dict", "model_state_dict", "model")  # keys under which training scripts save the weights
_PREFIXES = ("module.", "_orig_mod.")  # of DistributedDataParallel and torch.compile
_MAX_NAMED = 5


def load_pretrained(model: nn.Module, path: str) -> None:
    """Loads the weights of the file ``path`` into ``model``; a head with another number of classes is not loaded.

    Raises:
        InputError: the file is missing, unreadable, or holds anything but tensors; the weights are of another model.
    """
    weights = _plain_names(read_weights(path))
    expected = model.state_dict()
    head = _head_name(model)
    weights = _rename_head(weights, set(expected), head)
    fresh = {
        name for name in expected if name.rpartition(".")[0] == head and not _fits(weights.get(name), expected[name])
    }
    unexpected = sorted(weights.keys() - expected.keys())
    missing = sorted(expected.keys() - weights.keys() - fresh)
    other = sorted(
        name for name in weights.keys() & expected.keys() - fresh if not _fits(weights[name], expected[name])
    )
    if unexpected or missing or other:
        raise InputError(
            f"model.weights = {path!r} are not the weights of this model. {_list_names('Not in the file', missing)}"
            f"{_list_names('Not in the model', unexpected)}{_list_names('Of another shape', other)}"
            "Check model.name, model.norm and the size and channels of the images."
        )
    model.load_state_dict({**expected, **{name: tensor for name, tensor in weights.items() if name not in fresh}})


def read_weights(path: str) -> dict[str, Tensor]:
    """The tensors of a safetensors file, or of a torch file that holds nothing but tensors in dictionaries.

    A torch file cannot run code: it is read by the reader that accepts nothing but tensors.

    Raises:
        InputError: for anything else.
    """
    file = Path(path)
    if not file.is_file():
        raise InputError(f"model.weights = {path!r} is not a file; give the path of a .safetensors or torch file.")
    try:
        if file.suffix == ".safetensors":
            content: Any = load_file(file)
        else:
            content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may make a reader raise any error
        reason = str(error).partition("\n")[0]
        raise InputError(f"model.weights = {path!r} cannot be read as plain tensors: {reason}") from None
    for key in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
            break
    if not isinstance(content, Mapping) or not all(isinstance(each, Tensor) for each in content.values()):
        raise InputError(f"model.weights = {path!r} holds no state dict, which has one tensor per name.")
    return {str(name): tensor for name, tensor in content.items()}


def _plain_names(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    for prefix in _PREFIXES:
        if tensors and all(name.startswith(prefix) for name in tensors):
            tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
    return tensors


def _head_name(model: nn.Module) -> str:
    names = [name for name, module in model.named_modules() if type(module) is nn.Linear]
    return names[-1] if names else ""


def _rename_head(weights: dict[str, Tensor], expected: set[str], head: str) -> dict[str, Tensor]:
    # with dropout the head has one more level in its name
    ours = {name for name in expected if name.rpartition(".")[0] == head}
    if not ours or ours & weights.keys():
        return weights
    unexpected = weights.keys() - expected
    theirs = {name.rpartition(".")[0] for name in unexpected}
    if len(theirs) != 1:
        return weights
    (old,) = theirs
    return {name.replace(old, head, 1) if name in unexpected else name: tensor for name, tensor in weights.items()}


def _fits(tensor: Tensor | None, expected: Tensor) -> bool:
    return tensor is not None and tensor.shape == expected.shape


def _list_names(title: str, names: list[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return f"{title}: {', '.join(names[:_MAX_NAMED])}{more}. "
