"""What operations hold inside themselves, where no tensor shows it: a small model with fitted coefficients.

On a CPU, oneDNN's convolutions copy what comes in another order of memory than the kernel's own (channels_last images
they take as they are, and the first layer's few channels in any order), weights in nearly every case, and sum the
weight gradients of 16-bit numbers in 32 bits. Where torch does without oneDNN, it unfolds the images into columns. And
torch's batch normalisation allocates the gradient of its input twice, layer normalisation makes its arguments
contiguous, and a sum of two number formats widens the narrower term. The sizes of these copies follow from the shapes;
how much of them is alive at the worst moment was fitted to what trials recorded.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

_BLOCK = 16  # channels that oneDNN keeps together (AVX-512)
_FEW_CHANNELS = 3  # of which oneDNN takes the plain order
_SMALL_IMAGE = 20_480  # values of a single image; up to here torch unfolds it


class Load(NamedTuple):
    """Bytes at one moment inside an operation, beyond its arguments and results."""

    copies: int = 0  # of images and their gradients
    weights: int = 0  # copies of weights and their gradients
    sums: int = 0  # of 16-bit weight gradients, and the images that threads work on
    columns: int = 0  # unfolded images


class Coefficients(NamedTuple):
    """The share of each kind of :class:`Load` that is alive."""

    copies: float
    weights: float
    sums: float
    columns: float


# By device type. `python -m benchmarks.memory_forecast --fit` fits those of a CPU to trials of other configurations
# than the ones that the forecast is judged by, and found 1.002, 1.0, 1.002 and 1.0 (torch 2.13, AVX-512, 2 threads):
# all of each copy is alive. A GPU's are not fitted: the workspaces of cuDNN are left out.
COEFFICIENTS = {
    "cpu": Coefficients(copies=1.0, weights=1.0, sums=1.0, columns=1.0),
    "cuda": Coefficients(copies=0.0, weights=0.0, sums=0.0, columns=0.0),
}


def scratch_bytes(loads: tuple[Load, ...], coefficients: Coefficients) -> int:
    """The most that an operation holds of its own, of the moments ``loads``."""
    found = (sum(share * count for share, count in zip(coefficients, load, strict=True)) for load in loads)
    return round(max(0.0, *found)) if loads else 0


def find_loads(name: str, arguments: Sequence[Any]) -> tuple[Load, ...]:
    """The moments inside the operation ``name``, by the signatures of ``aten``; none where nothing is known of it."""
    if name == "aten::convolution":
        return _forward(arguments[0], arguments[1], _Setting(*arguments[3:9]))
    if name == "aten::convolution_backward":
        return _backward(arguments[0], arguments[1], arguments[2], _Setting(*arguments[4:10]))
    copied = _COPIED.get(name)
    return (Load(copies=copied(arguments)),) if copied else ()


def _scattered_bytes(*tensors: Tensor) -> int:
    return sum(_num_bytes(tensor) for tensor in tensors if not tensor.is_contiguous())


def _widened_bytes(left: Any, right: Any) -> int:
    if not isinstance(left, Tensor) or not isinstance(right, Tensor) or not left.ndim or not right.ndim:
        return 0  # a number takes no room
    wide = torch.promote_types(left.dtype, right.dtype)
    return sum(each.numel() * wide.itemsize for each in (left, right) if each.dtype != wide)


# What other operations copy inside themselves, from their arguments.
_COPIED: dict[str, Callable[[Sequence[Any]], int]] = {
    "aten::native_batch_norm_backward": lambda arguments: _num_bytes(arguments[1]),
    "aten::native_layer_norm": lambda arguments: _scattered_bytes(arguments[0]),
    "aten::native_layer_norm_backward": lambda arguments: _scattered_bytes(*arguments[:2]),
    "aten::add.Tensor": lambda arguments: _widened_bytes(*arguments[:2]),
}


class _Setting(NamedTuple):
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    transposed: bool
    output_padding: Sequence[int]
    groups: int


def _forward(source: Tensor, weight: Tensor, setting: _Setting) -> tuple[Load, ...]:
    if not _uses_onednn(source, weight, setting):
        return (Load(columns=_column_bytes(source, weight, setting)),)
    weights = _num_bytes(weight)
    if _is_channels_last(source, weight):
        return (Load(weights=weights),)
    # the result in the kernel's order takes the place of the one that is returned; then one becomes the other
    result = _blocked_bytes(len(source) * weight.shape[0] * _num_windows(source, weight, setting), weight.shape[0])
    return Load(_source_bytes(source), weights), Load(result * source.element_size())


def _backward(gradient: Tensor, source: Tensor, weight: Tensor, setting: _Setting) -> tuple[Load, ...]:
    if not _uses_onednn(source, weight, setting):
        return (Load(columns=_column_bytes(source, weight, setting)),)
    weights, sums = _num_bytes(weight), _sum_bytes(gradient, source, weight)
    if _is_channels_last(source, weight):
        return Load(weights=2 * weights), Load(sums=sums)
    copy = _source_bytes(source)
    # the gradient of the weights, which comes last, wants source and gradient in the kernel's order
    loads = [Load(copy + _source_bytes(gradient), sums=sums), Load(weights=weights)]
    if max(setting.stride) > 1:  # the gradient of the source is copied twice, before that of the weights is there
        loads.append(Load(2 * copy, -weights))
    return tuple(loads)


def _sum_bytes(gradient: Tensor, source: Tensor, weight: Tensor) -> int:
    if source.element_size() > 2:
        return 0
    images = (_num_bytes(source) + _num_bytes(gradient)) // max(1, len(source))
    return 4 * weight.numel() + torch.get_num_threads() * images


def _is_channels_last(source: Tensor, weight: Tensor) -> bool:
    # either of them decides
    layout = torch.channels_last
    return any(each.is_contiguous(memory_format=layout) and not each.is_contiguous() for each in (source, weight))


def _num_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _source_bytes(images: Tensor) -> int:
    channels = images.shape[1]
    return 0 if channels <= _FEW_CHANNELS else _blocked_bytes(images.numel(), channels) * images.element_size()


def _blocked_bytes(count: int, channels: int) -> int:
    return count // channels * _BLOCK * math.ceil(channels / _BLOCK)


def _uses_onednn(source: Tensor, weight: Tensor, setting: _Setting) -> bool:
    if source.dtype != torch.float32:  # bfloat16 where the processor has wide registers; fp16 on the newest ones alone
        return source.dtype == torch.bfloat16 and torch.backends.cpu.get_cpu_capability() == "AVX512"
    is_large = min(weight.shape[2:]) > 3 or len(source) > 1 or source.numel() > _SMALL_IMAGE
    return setting.groups > 1 or is_large


def _num_windows(source: Tensor, weight: Tensor, setting: _Setting) -> int:
    sides = zip(source.shape[2:], weight.shape[2:], setting.stride, setting.padding, setting.dilation, strict=True)
    return math.prod((side + 2 * pad - gap * (kernel - 1) - 1) // step + 1 for side, kernel, step, pad, gap in sides)


def _column_bytes(source: Tensor, weight: Tensor, setting: _Setting) -> int:
    windows = _num_windows(source, weight, setting)
    if weight.shape[2:].numel() == 1 and windows == source.shape[2:].numel():
        return 0  # the images are their own columns
    return len(source) * windows * source.shape[1] * weight.shape[2:].numel() * source.element_size()
