"""The import of torchvision: everything that requires torchvision imports it from here, behind its operators."""

import importlib
from typing import Any

from sweep.training.operators import DECLARED

__all__ = ["DECLARED", "datasets", "resnet", "vision_transformer"]

# Imported by name, because the operators must be known first.
datasets: Any = importlib.import_module("torchvision.datasets")
resnet: Any = importlib.import_module("torchvision.models.resnet")
vision_transformer: Any = importlib.import_module("torchvision.models.vision_transformer")
