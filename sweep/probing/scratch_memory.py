"""Memory that an operation of torch holds internally on a CPU, measured by running it once on zeros.

A library such as oneDNN copies arguments into layouts of its own, sums 16-bit gradients in 32 bits and gives each
thread a buffer. What it does depends on the processor's instruction set, the number of threads, the number format and
the layout, and not on the values of tensors, so it is measured here. A large operation is run with two smaller batches
and extrapolated by a straight line, because a copy either grows with the batch or does not depend on it. Matrices of a
product are copied block by block, so its batches are doubled until blocks have their full size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sweep.measurement.memory import record_allocations

_LARGE_BYTES = 2**22  # of the arguments; from here on smaller batches are run
_LARGE_HALF_BYTES = 2**19  # of 16-bit floats that many processors have no fast instructions for
_HUGE_BYTES = 2**30  # of the arguments; an operation is not run with more
_BLOCK_BYTES = 2**22  # for each thread: a block fits a cache, so what is larger is a copy of the whole
_FLAT_SHARE = 1 / 64  # of the bytes by which the arguments grow; scratch memory that grows less does not grow
_KEPT = 2**12  # measurements: a step has about a hundred different operations
_WITH_BATCH = {"aten::convolution": (0,), "aten::convolution_backward": (0, 1)}  # of others any argument may have one
_LEFT_FACTOR = {"aten::mm": 0, "aten::addmm": 1}  # the argument of matrix products


@dataclass(frozen=True)
class TensorLayout:
    """A tensor without its values."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes of all its elements."""
        return prod(self.shape) * self.dtype.itemsize

    def make_zeros(self) -> Tensor:
        """A tensor of this layout."""
        is_empty = 0 in self.shape
        length = 0 if is_empty else 1 + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        return torch.zeros(length, dtype=self.dtype).as_strided(self.shape, self.stride)

    def resize(self, axis: int, length: int) -> "TensorLayout":
        """The layout with ``length`` elements along ``axis``, in the same order of memory."""
        before = self.shape[axis]
        stride = tuple(step * length // before if step > self.stride[axis] else step for step in self.stride)
        return replace(self, shape=(*self.shape[:axis], length, *self.shape[axis + 1 :]), stride=stride)


class Operation(NamedTuple):
    """A call of one of torch's operators: tensors as layouts, lists as tuples."""

    function: Any  # an overload, as torch.ops.aten.mm.default
    arguments: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors among its arguments."""
        return sum(item.num_bytes for item in self.arguments if isinstance(item, TensorLayout))


def find_operation(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Operation | None:
    """The call as an :class:`Operation`; None for one that computes nothing new: views, changes in place, foreign
    operators, and operators on lists of tensors."""
    is_new = function.namespace == "aten" and not function.is_view and not function._schema.is_mutable
    if not is_new or not any(isinstance(item, Tensor) and item.ndim for item in arguments):
        return None
    frozen = [_freeze(value) for value in arguments]
    if function.name() == "aten::native_batch_norm_backward" and isinstance(frozen[2], TensorLayout):
        # The fake forward pass gives the saved statistics the format of the images, the real one uses the weights'.
        frozen[5:7] = [replace(statistics, dtype=frozen[2].dtype) for statistics in frozen[5:7]]
    return Operation(function, tuple(frozen), tuple((name, _freeze(value)) for name, value in sorted(keywords.items())))


def measure_scratch(operation: Operation) -> int | None:
    """The most bytes that the CPU allocator holds during ``operation`` beyond its arguments and results; None where it
    cannot be run on zeros, or only with arguments of more than 1 GiB."""
    return _measure(operation, torch.get_num_threads())


@lru_cache(maxsize=_KEPT)
def _measure(operation: Operation, num_threads: int) -> int | None:
    axes = _find_batch_axes(operation)
    length, longer = _axis_length(operation, axes), _choose_length(operation, axes, num_threads)
    largest = _largest_length(operation, axes)
    while 2 <= longer < length:
        shorter = longer // 2
        small, large = (_resize(operation, axes, size) for size in (shorter, longer))
        low, high = _run(small), _run(large)
        if low is None or high is None:
            break
        is_flat = abs(high - low) <= _FLAT_SHARE * (large.num_bytes - small.num_bytes)
        is_whole = operation.function.name() not in _LEFT_FACTOR or high >= num_threads * _BLOCK_BYTES
        if is_flat or is_whole or largest < min(2 * longer, length):
            return max(0, high + (high - low) * (length - longer) // (longer - shorter))
        longer *= 2
    return _run(operation)


def _choose_length(operation: Operation, axes: Sequence[tuple[int, int]], num_threads: int) -> int:
    is_half = any(isinstance(item, TensorLayout) and item.dtype == torch.float16 for item in operation.arguments)
    limit = min(_LARGE_BYTES, _LARGE_HALF_BYTES) if is_half else _LARGE_BYTES
    small = _axis_length(operation, axes) * limit // max(1, operation.num_bytes)
    # The size of a copy may depend on whether the batch is smaller than the number of threads.
    return min(max(small, 2 * num_threads), _largest_length(operation, axes))


def _largest_length(operation: Operation, axes: Sequence[tuple[int, int]]) -> int:
    """The longest batch, of at most the operation's own length, with which it may be run."""
    length = _axis_length(operation, axes)
    if operation.num_bytes <= _HUGE_BYTES or not length:
        return length
    fixed = _resize(operation, axes, 0).num_bytes
    return (_HUGE_BYTES - fixed) * length // (operation.num_bytes - fixed)


def _find_batch_axes(operation: Operation) -> list[tuple[int, int]]:
    """Argument and axis of all that grows with the batch; of a matrix product rows or inner axis, the longer one."""
    name, layouts = operation.function.name(), operation.arguments
    if name in _LEFT_FACTOR:
        left = _LEFT_FACTOR[name]
        rows, inner = layouts[left].shape
        return [(left, 0)] if rows >= inner else [(left, 1), (left + 1, 0)]
    batched = {
        index: layouts[index]
        for index in _WITH_BATCH.get(name, range(len(layouts)))
        if isinstance(layouts[index], TensorLayout) and len(layouts[index].shape) > 1
    }
    if not batched:
        return []
    largest = max(batched.values(), key=lambda layout: layout.num_bytes)
    return [(index, 0) for index, layout in batched.items() if layout.shape[0] == largest.shape[0]]


def _axis_length(operation: Operation, axes: Sequence[tuple[int, int]]) -> int:
    return int(operation.arguments[axes[0][0]].shape[axes[0][1]]) if axes else 0


def _resize(operation: Operation, axes: Sequence[tuple[int, int]], length: int) -> Operation:
    arguments = list(operation.arguments)
    for index, axis in axes:
        arguments[index] = arguments[index].resize(axis, length)
    return operation._replace(arguments=tuple(arguments))


def _run(operation: Operation) -> int | None:
    if operation.num_bytes > _HUGE_BYTES:
        return None
    arguments = [_thaw(value) for value in operation.arguments]
    keywords = {name: _thaw(value) for name, value in operation.keywords}
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=()):
            changes = record_allocations(lambda: operation.function(*arguments, **keywords))
    except Exception:  # each operator raises its own error for zeros or a smaller batch
        return None
    held = list(accumulate(changes, initial=0))
    return max(held) - held[-1]


def _freeze(value: Any) -> Any:
    if isinstance(value, Tensor):
        return TensorLayout(tuple(value.shape), value.stride(), value.dtype)
    return tuple(map(_freeze, value)) if isinstance(value, list | tuple) else value


def _thaw(value: Any) -> Any:
    return value.make_zeros() if isinstance(value, TensorLayout) else value
