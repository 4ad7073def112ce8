"""Model FLOPs utilisation: what a training computes over what the device could."""

import re

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

# Dense bf16 with 32-bit accumulation, in FLOP/s, from NVIDIA's data sheets; by words of the device's name, of which the
# more telling come first.
PEAKS = {
    "H200": 989e12,
    "GH200": 989e12,
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
}


def training_flops(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """FLOPs of the forward and backward pass of one image; a multiplication and an addition are two."""
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(cross_entropy(model(images), labels))
    model.zero_grad(set_to_none=True)
    return float(counter.get_total_flops()) / len(images)


def peak_flops(device: torch.device) -> float | None:
    """What the device could compute, where it is known."""
    if device.type != "cuda":
        return None
    return peak_of(torch.cuda.get_device_name(device))


def peak_of(name: str) -> float | None:
    """The same by the device's name."""
    words = set(re.split(r"[^A-Za-z0-9]+", name))
    return next((peak for known, peak in PEAKS.items() if set(known.split()) <= words), None)
