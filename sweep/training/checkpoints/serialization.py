"""Nested state as tensors and JSON, and back, without pickle, which could run code."""

import json
from typing import Any

import torch
from torch import Tensor

_SCALARS = (str, int, float, bool, type(None))


def pack_state(state: Any) -> tuple[dict[str, Tensor], str]:
    """The tensors of ``state`` by their path in it, on the CPU, and the rest as JSON that refers to them.

    ``state`` is made of dictionaries with scalar keys, lists, tuples, scalars and tensors.

    Raises:
        TypeError: for anything else, with its path.
    """
    tensors: dict[str, Tensor] = {}
    return tensors, json.dumps(_pack(state, "", tensors))


def unpack_state(tensors: dict[str, Tensor], text: str) -> Any:
    """The inverse of :func:`pack`. Raises ``ValueError`` or ``KeyError`` where the two do not match."""
    return _unpack(json.loads(text), tensors)


def _pack(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return _pack_tensor(value, path, tensors)
    if type(value) in _SCALARS:
        return value
    if isinstance(value, dict):
        # as pairs, because JSON would convert numbers among the keys into strings
        pairs = [[_scalar(key, path), _pack(item, f"{path}.{key}", tensors)] for key, item in value.items()]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        items = [_pack(item, f"{path}.{index}", tensors) for index, item in enumerate(value)]
        return {"tuple": items} if isinstance(value, tuple) else items
    raise TypeError(f"{path.lstrip('.')}: a {type(value).__name__} cannot be kept in a checkpoint")


def _pack_tensor(tensor: Tensor, path: str, tensors: dict[str, Tensor]) -> Any:
    name = path.lstrip(".") or "tensor"
    # a copy, because safetensors refuses tensors that share memory
    tensors[name] = tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
    # with strides, because fused optimizers require the same memory layout of parameter and momentum
    strides = None if tensor.is_contiguous() else list(torch.empty_like(tensor, device="meta").stride())
    return {"tensor": name, "strides": strides}


def _scalar(key: Any, path: str) -> Any:
    if type(key) not in _SCALARS:
        raise TypeError(f"{path.lstrip('.')}: the key {key!r} cannot be kept in a checkpoint")
    return key


def _unpack(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if "dict" in value:
        return {key: _unpack(item, tensors) for key, item in value["dict"]}
    if "tuple" in value:
        return tuple(_unpack(item, tensors) for item in value["tuple"])
    tensor = tensors[value["tensor"]]
    if value["strides"] is None:
        return tensor
    return torch.empty_strided(tensor.shape, value["strides"], dtype=tensor.dtype).copy_(tensor)
