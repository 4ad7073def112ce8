"""The compiled operators of torchvision, which must be known before its import.

A CPU build of torch with the torchvision wheel of PyPI fails on ``import torchvision`` with ``operator
torchvision::nms does not exist`` (pytorch/vision#8985), because the compiled operators of the wheel require CUDA
libraries. Image classification uses none of them, so their schemas are declared when they cannot be loaded.
"""

import importlib.util
from pathlib import Path
from typing import Any

import torch

# torch leaves these untyped
_OPERATORS: Any = torch.ops
_LIBRARY: Any = torch.library


def _compiled_operators_load() -> bool:
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    for library in sorted(Path(spec.origin).parent.glob("_C*.so")):
        try:
            _OPERATORS.load_library(str(library))
        except OSError:
            continue
        return True
    return False


def _declare_missing_operators() -> Any:
    library = _LIBRARY.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


# The declaration exists as long as the library object, therefore the module-level reference.
DECLARED = None if _compiled_operators_load() else _declare_missing_operators()
