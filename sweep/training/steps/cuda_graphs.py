"""Forward and backward of a micro batch as one CUDA graph: one launch instead of hundreds."""

from collections.abc import Callable
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn

_CUDA: Any = torch.cuda  # torch leaves streams untyped
_WARM_UP_CALLS = 3  # libraries choose their algorithms and workspaces before a capture
MicroStep = Callable[[Tensor, Tensor, Tensor], Tensor]


class _Recording(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, Tensor, Tensor]
    loss: Tensor


@final
class GraphedMicroStep:
    """``call`` (images, labels, share of the window) -> loss, which adds to the gradients; recorded once per shape.

    A graph replays with the memory it was recorded with: gradients must be set to zero, never dropped. The returned
    loss is overwritten by the next call.
    """

    def __init__(self, call: MicroStep, model: nn.Module) -> None:
        self._call = call
        self._model = model
        self._recordings: dict[tuple[object, ...], _Recording] = {}

    def __call__(self, images: Tensor, labels: Tensor, share: Tensor) -> Tensor:
        key = (images.shape, labels.shape, labels.dtype)
        if key not in self._recordings:
            self._recordings[key] = self._record((images, labels, share))
        recording = self._recordings[key]
        for place, value in zip(recording.inputs, (images, labels, share), strict=True):
            place.copy_(value, non_blocking=True)
        recording.graph.replay()
        return recording.loss

    def clear(self) -> None:
        """Drops the recordings and their memory; after this gradients may be dropped too."""
        self._recordings.clear()

    def _record(self, inputs: tuple[Tensor, Tensor, Tensor]) -> _Recording:
        images, labels, share = (tensor.clone() for tensor in inputs)
        restore = self._snapshot()
        side = _CUDA.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(_WARM_UP_CALLS):
                self._call(images, labels, share)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self._call(images, labels, share)
        restore()
        return _Recording(graph, (images, labels, share), loss)

    def _snapshot(self) -> Callable[[], None]:
        # the calls before a recording leave no trace: gradients, running statistics, random numbers
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        for parameter in trained:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        tensors = [*self._model.buffers(), *(parameter.grad for parameter in trained if parameter.grad is not None)]
        before = [tensor.clone() for tensor in tensors]
        random_state = torch.cuda.get_rng_state()

        def restore() -> None:
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)
            torch.cuda.set_rng_state(random_state)

        return restore
