"""Forward and backward of a micro batch as one CUDA graph: one launch instead of hundreds."""

from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

from sweep.measurement.device import snapshot_pass
from sweep.measurement.memory import read_reserved_bytes, release_memory

_CUDA: Any = torch.cuda  # torch leaves streams untyped
_WARM_UP_CALLS = 3  # in which libraries choose algorithms and allocate workspaces
MicroStep = Callable[[Tensor, Tensor, Tensor], Tensor]


class _Capture(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, Tensor, Tensor]
    loss: Tensor


@final
class GraphedMicroStep:
    """``call`` (images, labels, share of the window) -> loss, which adds to the gradients; captured once per shape.

    A graph uses the memory that it was captured with: gradients must be set to zero, never dropped. The returned loss,
    a scalar, is overwritten by the next call. All shapes share one pool of memory, because no graph reads what another
    one has left there. ``pool_bytes`` is its size: the allocator keeps it for the graphs, and does not count it as
    allocated.
    """

    def __init__(self, call: MicroStep, model: nn.Module) -> None:
        self._call = call
        self._model = model
        self._captures: dict[tuple[object, ...], _Capture] = {}
        self._pool: Any = None
        self.pool_bytes = 0

    def __call__(self, images: Tensor, labels: Tensor, share: Tensor) -> Tensor:
        key = (images.shape, labels.shape, labels.dtype)
        if key not in self._captures:
            self._captures[key] = self._capture((images, labels, share))
        capture = self._captures[key]
        for target, value in zip(capture.inputs, (images, labels, share), strict=True):
            target.copy_(value, non_blocking=True)
        capture.graph.replay()
        return capture.loss

    def _capture(self, inputs: tuple[Tensor, Tensor, Tensor]) -> _Capture:
        images, labels, share = (tensor.clone() for tensor in inputs)
        restore = self._snapshot(images.device)
        side = _CUDA.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_CALLS):
                self._call(images, labels, share)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        self._pool = self._pool or _CUDA.graph_pool_handle()
        release_memory(images.device)  # so that what is reserved next is the pool's
        reserved_before = read_reserved_bytes(images.device)
        # Not in global mode, which a call of another thread would end: that of a data loader allocates pinned memory.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            loss = self._call(images, labels, share)
        self.pool_bytes += read_reserved_bytes(images.device) - reserved_before
        restore()
        return _Capture(graph, (images, labels, share), loss)

    def _snapshot(self, device: torch.device) -> Callable[[], None]:
        # of what the calls before a capture change: gradients, running statistics, random generator
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = (parameter.grad for parameter in trained if parameter.grad is not None)
        return snapshot_pass((*self._model.buffers(), *gradients), device)
