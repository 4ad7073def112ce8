"""One optimizer step over a window of micro batches."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sweep.config.recipe_sections import RegularizationSection
from sweep.measurement.clock import Lap
from sweep.measurement.gradient_noise import NoiseMeter
from sweep.training.data.feeders import Batch
from sweep.training.recipe.ema import Ema
from sweep.training.recipe.precision import Precision
from sweep.training.steps.cuda_graphs import GraphedMicroStep
from sweep.training.supervisor_link import SUPERVISOR_LINK
from sweep.training.world import SOLO, World


def ignore_lap(_lap: Lap) -> None:
    """For steps whose time is not split."""


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
    lap: Callable[[Lap], None] = ignore_lap  # called with what the time since its last call was spent on

    def accumulate(self, micro_batches: Iterable[Batch], samples: int) -> Tensor:
        """Adds the gradient of the mean loss over a window of ``samples`` to the parameters; returns that loss.

        ``micro_batches`` are uint8 images (b, s, s, c), or normalized (b, c, s, s), with labels (b,) or class weights
        (b, classes). Each is weighted by its share of the window, so a smaller last one is exact. The loss is a scalar
        on the device. With several ranks the gradients are averaged over the ranks here; the loss is the rank's own,
        and its mean over the ranks is that of the window.
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
        self.lap("wait")
        with self.precision.context():
            loss = self.compute_loss(self.forward(self.normalize(images)), labels)
            if not is_whole:  # saves the product and its gradient
                loss = loss * share
        self.lap("forward")
        scaled = self.precision.scale(loss)
        if self.noise is None or is_whole:
            torch.autograd.backward(scaled)
        else:
            self.noise.backward(scaled, len(labels), self._scale * share)
        self.lap("backward")
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
        self.lap("optimizer")

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
