"""A GPU for machines without one. Its tensors lie in the memory of the host and are computed by the processor, but they
are told apart: ``tensor.device`` is ``cuda:0``, an operation on tensors of both devices raises, memory and the host's
waits for the device are counted, and a CUDA graph repeats the operations that were captured.

What it cannot show: real times, the choice of algorithms, the memory inside libraries, and several GPUs.
"""

import contextlib
import functools
import importlib
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch._dynamo  # before anything is replaced, because it lists the functions of torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda", 0)
CPU = torch.device("cpu")
UUID = "12345678-9abc-def0-1234-56789abcdef0"
NAME = "Made-up GPU"
_SEGMENT = 2 << 20  # the allocator takes memory from the device in such pieces
_GET_DEVICE = torch.Tensor.device.__get__  # type: ignore[attr-defined]
_GET_IS_CUDA = torch.Tensor.is_cuda.__get__  # type: ignore[attr-defined]
_GET_IS_CPU = torch.Tensor.is_cpu.__get__  # type: ignore[attr-defined]
_COPIES = {"aten::copy_", "aten::_to_copy", "aten::_foreach_copy_", "aten::set_.source_Storage_storage_offset"}
# These take indices from the host; a mask from there is read on the host.
_BY_INDEX = {"aten::index.Tensor", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_"}
_WAITING = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal", "aten::is_nonzero"}


@dataclass
class FakeCuda:
    """The device: what it holds, and what was asked of it."""

    total_bytes: int = 8 << 30
    context_bytes: int = 300 << 20  # of each process
    others_bytes: int = 0  # of other programs
    seconds_per_operation: float = 0.0  # of the device; the host only launches
    fraction: float = 1.0
    retries: int = 0
    num_waits: int = 0  # of the host for the device
    num_operations: int = 0
    captures: list[dict[str, Any]] = field(default_factory=list)  # the keywords of each
    placed: dict[int, int] = field(default_factory=dict)  # bytes of each storage on the device
    pools: dict[Any, int] = field(default_factory=dict)  # bytes of the pools of graphs
    held_bytes: int = 0
    peak_bytes: int = 0
    cached_bytes: int = 0  # taken from the device by the allocator, outside of pools
    peak_reserved_bytes: int = 0
    busy_until: float = 0.0
    tape: list[tuple[Any, Any, Any, Any]] | None = None  # of the capture under way
    pool: Any = None
    context_error: Exception | None = None  # what the first call that makes a context raises

    def place(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.placed:
            return
        num_bytes = -(-storage.nbytes() // 512) * 512
        if self.tape is not None:
            self.placed[key] = 0
            self.pools[self.pool] = self.pools.get(self.pool, 0) + num_bytes
        else:
            self.placed[key] = num_bytes
            self.held_bytes += num_bytes
        weakref.finalize(storage, self.free, key)
        self.peak_bytes = max(self.peak_bytes, self.held_bytes)
        self.cached_bytes = max(self.cached_bytes, -(-self.held_bytes // _SEGMENT) * _SEGMENT)
        self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.reserved_bytes)
        limit = min(self.fraction * self.total_bytes, self.total_bytes - self.others_bytes - self.context_bytes)
        if self.reserved_bytes > limit:
            self.empty_cache()
            if self.reserved_bytes > limit:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num_bytes} bytes")
            self.retries += 1

    def place_all(self, result: Any) -> None:
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self.place(leaf)

    def is_placed(self, tensor: Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.untyped_storage()._cdata in self.placed

    @property
    def reserved_bytes(self) -> int:
        return self.cached_bytes + sum(self.pools.values())

    def empty_cache(self) -> None:
        self.cached_bytes = -(-self.held_bytes // _SEGMENT) * _SEGMENT

    def reset_peak(self) -> None:
        self.peak_bytes, self.peak_reserved_bytes = self.held_bytes, self.reserved_bytes

    def launch(self) -> None:
        self.num_operations += 1
        self.busy_until = max(self.busy_until, time.perf_counter()) + self.seconds_per_operation

    def now(self) -> float:
        """When the device reaches what was launched last."""
        return max(self.busy_until, time.perf_counter())

    def wait(self) -> None:
        self.num_waits += 1
        if (left := self.busy_until - time.perf_counter()) > 0:
            time.sleep(left)

    def free(self, key: int) -> None:
        self.held_bytes -= self.placed.pop(key, 0)


class _Calls(TorchFunctionMode):
    """Translates devices: what is made on the GPU is made on the host, and marked."""

    def __init__(self, gpu: FakeCuda) -> None:
        super().__init__()
        self.gpu = gpu
        self._replaced = {
            _GET_DEVICE: lambda tensor: self._device_of(tensor), _GET_IS_CUDA: gpu.is_placed,
            _GET_IS_CPU: lambda tensor: not gpu.is_placed(tensor),
            torch.Tensor.get_device: lambda tensor: 0 if gpu.is_placed(tensor) else -1,
            torch.Tensor.cuda: lambda tensor: self._move(tensor, CUDA, (), {}),
            torch.Tensor.cpu: lambda tensor: self._move(tensor, CPU, (), {}), torch.Tensor.to: self._to,
            torch.Tensor.pin_memory: lambda tensor: tensor,
        }  # fmt: skip

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in self._replaced:
            return self._replaced[func](*args, **kwargs)
        if func in (torch.Tensor.tolist, torch.Tensor.numpy) and self.gpu.is_placed(args[0]):
            if func is torch.Tensor.numpy:
                raise TypeError("can't convert cuda:0 device type tensor to numpy")
            self.gpu.wait()
        if func is torch.nn.functional.one_hot and self.gpu.is_placed(args[0]):
            return self._make_one_hot(*args)
        device = kwargs.get("device")
        if device is None or func is torch._C._nn._parse_to or torch.device(device).type != "cuda":
            return func(*args, **kwargs)
        result = func(*args, **{**kwargs, "device": CPU})
        if func in (torch.tensor, torch.as_tensor, torch.Tensor.new_tensor):
            self.gpu.wait()  # until the values are copied
        self.gpu.place_all(result)
        return result

    def _make_one_hot(self, labels: Tensor, num_classes: int) -> Tensor:
        # on the processor it looks for the largest label, for which it would wait
        classes = torch.arange(num_classes)
        self.gpu.place(classes)
        return (labels[..., None] == classes).long()

    def _to(self, tensor: Tensor, *others: Any, **kwargs: Any) -> Tensor:
        target = self._device_of(tensor)
        for value in (*others, *kwargs.values()):
            if isinstance(value, torch.device | str):
                target = torch.device(value)
            elif isinstance(value, Tensor):
                target = self._device_of(value)
        translated = [CPU if isinstance(value, torch.device | str) else value for value in others]
        kwargs = {name: CPU if isinstance(value, torch.device | str) else value for name, value in kwargs.items()}
        return self._move(tensor, target, translated, kwargs)

    def _device_of(self, tensor: Tensor) -> torch.device:
        return CUDA if self.gpu.is_placed(tensor) else CPU

    def _move(self, tensor: Tensor, target: torch.device, rest: Any, kwargs: Any) -> Tensor:
        is_here = self.gpu.is_placed(tensor)
        moved = tensor.to(*rest, **kwargs) if rest or kwargs else tensor
        if (target.type == "cuda") == is_here:
            return moved
        if moved.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
            moved = moved.clone(memory_format=torch.preserve_format)
        if not kwargs.get("non_blocking") and not any(value is True for value in rest):
            self.gpu.wait()
        if target.type == "cuda":
            self.gpu.place(moved)
        else:
            self.gpu.free(moved.untyped_storage()._cdata)
        return moved


class _Kernels(TorchDispatchMode):
    """Sees every operation, also those of a backward pass."""

    def __init__(self, gpu: FakeCuda) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        gpu, kwargs = self.gpu, kwargs or {}
        name = func.name()
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        is_here = [gpu.is_placed(tensor) for tensor in tensors]
        if any(is_here):
            away = [each for each, here in zip(tensors, is_here, strict=True) if not here and each.dim()]
            if away and name not in _COPIES | _BY_INDEX:
                shapes = [tuple(each.shape) for each in away]
                raise RuntimeError(f"Expected all tensors to be on the same device: {name} got {shapes} on the host")
            if away and name == "aten::copy_" and not (len(args) > 2 and args[2]):
                gpu.wait()
            if name in _WAITING:
                if gpu.tape is not None:
                    raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
                gpu.wait()
            gpu.launch()
        result = func(*args, **kwargs)
        if any(is_here):
            gpu.place_all(result)
            if gpu.tape is not None:
                gpu.tape.append((func, args, kwargs, result))
        return result


class FakeGraph:
    """Repeats the captured operations on the same memory."""

    def __init__(self, gpu: FakeCuda) -> None:
        self._gpu, self._tape = gpu, []

    def capture(self, tape: Any) -> None:
        self._tape = tape

    def replay(self) -> None:
        self._gpu.launch()
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction(), torch.no_grad():
            for func, args, kwargs, before in self._tape:
                after = func(*args, **kwargs)
                for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True):
                    if isinstance(old, Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class _Event:
    def __init__(self, gpu: FakeCuda) -> None:
        self._gpu, self.at = gpu, 0.0

    def record(self) -> None:
        self.at = self._gpu.now()

    def elapsed_time(self, end: "_Event") -> float:
        return 1e3 * (end.at - self.at)


@contextlib.contextmanager
def _capture(gpu: FakeCuda, graph: FakeGraph, **options: Any) -> Iterator[None]:
    assert gpu.tape is None
    gpu.captures.append(options)
    is_disturbed = any("_pin_memory_loop" in thread.name for thread in threading.enumerate())
    if is_disturbed and options.get("capture_error_mode", "global") == "global":
        raise RuntimeError("CUDA error: operation failed due to a previous error during capture")
    gpu.pool = options.get("pool") or object()
    gpu.empty_cache()
    gpu.tape = []
    try:
        yield
    finally:
        tape, gpu.tape = gpu.tape, None
        graph.capture(tape)


def _memory_stats(gpu: FakeCuda) -> dict[str, int]:
    return {
        "allocated_bytes.all.peak": gpu.peak_bytes, "allocated_bytes.all.current": gpu.held_bytes,
        "reserved_bytes.all.peak": gpu.peak_reserved_bytes, "reserved_bytes.all.current": gpu.reserved_bytes,
        "num_alloc_retries": gpu.retries,
    }  # fmt: skip


def _list_replacements(gpu: FakeCuda) -> dict[str, Any]:
    stream = SimpleNamespace(wait_stream=lambda _other: None, synchronize=gpu.wait)
    facts = SimpleNamespace(name=NAME, total_memory=gpu.total_bytes, uuid=UUID, major=9, minor=0)
    context = gpu.total_bytes - gpu.context_bytes - gpu.others_bytes

    def touch(*_: Any) -> None:
        if gpu.context_error:
            raise gpu.context_error

    return {
        "is_available": lambda: True, "device_count": lambda: 1, "init": touch, "set_device": touch,
        "current_device": lambda: 0, "get_device_name": lambda *_: NAME, "get_device_properties": lambda *_: facts,
        "get_device_capability": lambda *_: (9, 0), "synchronize": lambda *_: (touch(), gpu.wait())[1],
        "is_bf16_supported": lambda *_, **__: True,
        "mem_get_info": lambda *_: (context - gpu.reserved_bytes, gpu.total_bytes),
        "memory_stats": lambda *_: _memory_stats(gpu), "memory_allocated": lambda *_: gpu.held_bytes,
        "max_memory_allocated": lambda *_: gpu.peak_bytes, "memory_reserved": lambda *_: gpu.reserved_bytes,
        "max_memory_reserved": lambda *_: gpu.peak_reserved_bytes,
        "reset_peak_memory_stats": lambda *_: gpu.reset_peak(), "empty_cache": gpu.empty_cache,
        "get_per_process_memory_fraction": lambda *_: gpu.fraction,
        "set_per_process_memory_fraction": lambda fraction, *_: setattr(gpu, "fraction", fraction),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state), "manual_seed_all": lambda _seed: None,
        "Event": lambda **_: _Event(gpu), "Stream": lambda *_, **__: stream, "current_stream": lambda *_: stream,
        "stream": lambda _stream: contextlib.nullcontext(), "CUDAGraph": lambda: FakeGraph(gpu),
        "graph": lambda graph, **options: _capture(gpu, graph, **options), "graph_pool_handle": object,
    }  # fmt: skip


def _autocast(device_type: str, dtype: torch.dtype | None = None, **kwargs: Any) -> Any:
    if device_type != "cuda":
        return _AUTOCAST(device_type, dtype, **kwargs)
    # most processors are far too slow for fp16
    return _AUTOCAST("cpu", torch.bfloat16, enabled=dtype != torch.float16, **kwargs)


_AUTOCAST = torch.autocast


def _group_by_device(gpu: FakeCuda, lists: Any, *args: Any, **kwargs: Any) -> Any:
    # written in C++, which sees where the tensors really are
    groups = _GROUP_BY_DEVICE(lists, *args, **kwargs)
    first = {key: next(each for each in found[0][0] if each is not None) for key, found in groups.items()}
    return {(CUDA if gpu.is_placed(first[key]) else key[0], key[1]): found for key, found in groups.items()}


_GROUP_BY_DEVICE = torch.utils._foreach_utils._group_tensors_by_device_and_dtype


@contextlib.contextmanager
def use_fake_cuda(**facts: Any) -> Iterator[FakeCuda]:
    """Within the block this thread has a GPU."""
    gpu = FakeCuda(**facts)
    accelerator = {
        "is_available": lambda: True, "current_accelerator": lambda *_, **__: torch.device("cuda"),
        "current_device_index": lambda: 0, "set_device_index": lambda _index: None,
        "current_stream": lambda *_: SimpleNamespace(is_capturing=lambda: gpu.tape is not None),
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, value in _list_replacements(gpu).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        for name, value in accelerator.items():
            stack.enter_context(mock.patch.object(torch.accelerator, name, value))
        stack.enter_context(mock.patch.object(torch, "autocast", _autocast))
        for module in ("torch.optim.optimizer", "torch.nn.utils.clip_grad"):
            name, group = "_group_tensors_by_device_and_dtype", functools.partial(_group_by_device, gpu)
            stack.enter_context(mock.patch.object(importlib.import_module(module), name, group))
        # of data loaders' threads, in which the modes are not active
        stack.enter_context(mock.patch.object(torch.Tensor, "pin_memory", lambda tensor, *_: tensor))
        make_empty = torch.empty
        stack.enter_context(mock.patch.object(
            torch, "empty", lambda *args, **more: make_empty(*args, **{**more, "pin_memory": False})
        ))  # fmt: skip
        stack.enter_context(_Calls(gpu))
        stack.enter_context(_Kernels(gpu))
        yield gpu
