"""One optimizer step over a window of micro batches, whose forward and backward may be a CUDA graph."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sweep.config.sections import RegularizationSection
from sweep.measurement.device import snapshot_pass
from sweep.measurement.gradient_noise import NoiseMeter
from sweep.measurement.memory import read_reserved_bytes, release_memory
from sweep.training.data.feeders import Batch
from sweep.training.precision import Ema, Precision
from sweep.training.processes import SUPERVISOR_LINK
from sweep.training.world import SOLO, World

_CUDA: Any = torch.cuda  # torch leaves streams untyped
_WARM_UP_CALLS = 3  # in which libraries choose algorithms and allocate workspaces
_MicroStep = Callable[[Tensor, Tensor, Tensor], Tensor]


class _Capture(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, Tensor, Tensor]
    loss: Tensor


@final
class GraphedMicroStep:
    """Forward and backward of a micro batch as one CUDA graph: one launch instead of hundreds.

    ``call`` (images, labels, share of the window) -> loss adds to the gradients; it is captured once per shape. A graph
    uses the memory that it was captured with: gradients must be set to zero, never dropped. The returned loss, a
    scalar, is overwritten by the next call. All shapes share one pool of memory, because no graph reads what another
    one has left there. ``pool_bytes`` is its size: the allocator keeps it for the graphs, and does not count it as
    allocated.
    """

    def __init__(self, call: _MicroStep, model: nn.Module) -> None:
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
        # Not in global mode, which a call of another thread would end: a data loader's thread allocates pinned memory.
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


@dataclass(frozen=True)
class Normalize:
    """uint8 (b, s, s, c) -> floating point (b, c, s, s) with mean 0 and variance 1 over the train split."""

    mean: Tensor  # (c, 1, 1)
    inverse_deviation: Tensor  # (c, 1, 1)
    channels_last: bool

    def __call__(self, images: Tensor) -> Tensor:
        if images.is_floating_point():  # the feeder has normalized them
            return images
        # a batch may be a view with gaps, therefore the explicit memory formats
        if not self.channels_last:
            floats = images.permute(0, 3, 1, 2).to(self.mean.dtype, memory_format=torch.contiguous_format)
            return floats.sub_(self.mean).mul_(self.inverse_deviation)
        floats = images.to(self.mean.dtype, memory_format=torch.contiguous_format)
        # by whole images: the few channels of a pixel are too few values for vector instructions
        pixels = images.shape[1] * images.shape[2]
        mean, inverse = (values.flatten().repeat(pixels) for values in (self.mean, self.inverse_deviation))
        floats.flatten(1).sub_(mean).mul_(inverse)
        return floats.permute(0, 3, 1, 2)


@dataclass(frozen=True, kw_only=True)
class Step:
    """Everything that an optimizer step requires, except the data."""

    forward: Callable[[Tensor], Tensor]  # the model, compiled if configured
    model: nn.Module
    optimizer: torch.optim.Optimizer
    normalize: Normalize
    precision: Precision
    regularization: RegularizationSection
    world: World = SOLO
    noise: NoiseMeter | None = None
    ema: Ema | None = None
    graphs: GraphedMicroStep | None = None  # of micro_step

    def accumulate(self, micro_batches: Iterable[Batch], samples: int) -> Tensor:
        """Adds the gradient of the mean loss over a window of ``samples`` to the parameters; returns that loss.

        ``micro_batches`` are uint8 images (b, s, s, c), or normalized (b, c, s, s), with labels (b,) or class weights
        (b, classes). Each is weighted by its share of the window, so a smaller last one is exact. The loss is a scalar
        on the device. With several ranks the gradients are averaged over the ranks here; the loss is the rank's own,
        and its mean over the ranks is the loss of the window.
        """
        total: Tensor | None = None
        if self.noise:
            self.noise.drop_window()  # of an attempt that ran out of memory
        for images, labels in self.world.iterate_micro_batches(self.forward, micro_batches):
            SUPERVISOR_LINK.send_heartbeat()
            share = self.world.size * len(labels) / samples
            if self.noise and share == 1.0:
                self.noise.measure_halves(images, labels, self._gradient)
            if self.graphs:
                loss = self.graphs(images, labels, self.normalize.mean.new_full((), share)).clone()
            else:
                loss = self.micro_step(images, labels, share)
            total = loss if total is None else total + loss
        assert total is not None, "a window without a micro batch"
        return total

    def micro_step(self, images: Tensor, labels: Tensor, share: Tensor | float) -> Tensor:
        """Adds the gradient of ``share`` times the mean loss of a micro batch (shapes as for :meth:`accumulate`);
        returns that part of the loss, a scalar."""
        is_whole = isinstance(share, float) and share == 1.0
        with self.precision.context():
            loss = self.compute_loss(self.forward(self.normalize(images)), labels)
            if not is_whole:  # saves the product and its gradient
                loss = loss * share
        scaled = self.precision.scale(loss)
        if self.noise is None or is_whole:
            torch.autograd.backward(scaled)
        else:
            self.noise.backward(scaled, len(labels), self._scale * share)
        return loss.detach()

    def _gradient(self, images: Tensor, labels: Tensor) -> list[Tensor]:
        # of the mean loss; ``parameter.grad`` is unchanged
        with self.precision.context():
            loss = self.compute_loss(self.model(self.normalize(images)), labels)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(self.precision.scale(loss), trained, materialize_grads=True)
        return [gradient / self._scale for gradient in gradients] if self.precision.scaler else list(gradients)

    @property
    def _scale(self) -> Tensor | float:
        # of the loss scaler
        return self.precision.scale(self.normalize.mean.new_ones(())) if self.precision.scaler else 1.0

    def compute_loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The mean loss of ``logits`` (b, classes) for labels (b,) or class weights (b, classes), a scalar."""
        if not len(labels):  # a rank without samples contributes a gradient of zero
            return logits.sum()
        if labels.is_floating_point():  # class weights of mixed images; in the wider of both dtypes
            logits = logits.to(torch.promote_types(logits.dtype, labels.dtype))
            labels = labels.to(logits.dtype)
        return cross_entropy(logits, labels, label_smoothing=self.regularization.label_smoothing)

    def update(self) -> None:
        """Updates the parameters from their gradients, clipped if configured, and the moving average."""
        scaler, optimizer = self.precision.scaler, self.optimizer
        if self.noise:
            self.noise.close_window(self._scale)
        if self.regularization.grad_clip is not None:
            if scaler:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.regularization.grad_clip)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()
        if self.ema:
            self.ema.update(scaler.is_taken if scaler else None)

    def clear_gradients(self) -> None:
        """Drops the gradients; where a CUDA graph or DistributedDataParallel holds their memory, sets them to zero."""
        if self.graphs or self.world.size > 1:
            self.optimizer.zero_grad(set_to_none=False)
            return
        for group in self.optimizer.param_groups:  # as zero_grad does, without the overhead of its profiler hook
            for parameter in group["params"]:
                parameter.grad = None

    def __call__(self, micro_batches: Iterable[Batch], samples: int) -> Tensor:
        """One optimizer step; returns the mean loss before it, on the device."""
        self.clear_gradients()
        loss = self.accumulate(micro_batches, samples)
        self.update()
        return loss


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr
