"""Runs the script of its arguments where torchvision's compiled operators are missing, with Ultralytics' own."""

import runpy
import sys

import sweep.training.operators  # noqa: F401 - the door to torchvision comes first

# isort: split
import torchvision
from ultralytics.utils.nms import TorchNMS

torchvision.ops.nms = TorchNMS.nms
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
