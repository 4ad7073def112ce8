"""One optimizer step over a window of micro batches, and one pass of evaluation."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sweep.config.sections import RegularizationSection
from sweep.measurement.clock import Lap
from sweep.measurement.gradient_noise import NoiseMeter
from sweep.training.recipe.ema import Ema
from sweep.training.recipe.precision import Precision
from sweep.training.recipe.tta import Ask, ask_once
from sweep.training.steps.cuda_graphs import GraphedMicroStep
from sweep.training.supervisor_link import LIFELINE
from sweep.training.world import SOLO, World

Batch = tuple[Tensor, Tensor]


def ignore_lap(_lap: Lap) -> None:
    """Steps are not split."""


@dataclass(frozen=True)
class Normalise:
    """uint8 (b, s, s, c) -> floating point (b, c, s, s) with mean 0 and variance 1 over the train split."""

    mean: Tensor  # (c, 1, 1)
    inverse_deviation: Tensor  # (c, 1, 1)
    channels_last: bool

    def __call__(self, images: Tensor) -> Tensor:
        if images.is_floating_point():  # a feeder had them ready
            return images
        # a batch may be a view with gaps, hence the explicit layouts
        if not self.channels_last:
            floats = images.permute(0, 3, 1, 2).to(self.mean.dtype, memory_format=torch.contiguous_format)
            return floats.sub_(self.mean).mul_(self.inverse_deviation)
        floats = images.to(self.mean.dtype, memory_format=torch.contiguous_format)
        # by whole images: the few channels of a pixel alone are too short a run for vector instructions
        pixels = images.shape[1] * images.shape[2]
        mean, inverse = (values.flatten().repeat(pixels) for values in (self.mean, self.inverse_deviation))
        floats.flatten(1).sub_(mean).mul_(inverse)
        return floats.permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Step:
    """Everything that an optimizer step needs but the data."""

    forward: Callable[[Tensor], Tensor]  # the model, compiled where that was asked for
    model: nn.Module
    optimizer: torch.optim.Optimizer
    normalise: Normalise
    precision: Precision
    regularization: RegularizationSection
    world: World = SOLO
    noise: NoiseMeter | None = None
    ema: Ema | None = None
    graphs: GraphedMicroStep | None = None  # of micro_step
    lap: Callable[[Lap], None] = ignore_lap  # hears what the time since its last call was

    def accumulate(self, micro_batches: Iterable[Batch], samples: int) -> Tensor:
        """Adds the gradient of the mean loss over a window of ``samples`` to the parameters; returns that loss.

        Each micro batch counts by its share of the window, so a smaller last one is exact. The loss stays on the
        device. With several ranks gradient and loss are those whose mean over the ranks is the window's; the mean of
        the gradients is taken here, that of the losses is the caller's to take.
        """
        total: Tensor | None = None
        for images, labels in self.world.pace(self.forward, micro_batches):
            LIFELINE.beat()
            share = self.world.size * len(labels) / samples
            if self.noise and share == 1.0:
                self.noise.see_single(images, labels, self._gradient)
            if self.graphs:
                loss = self.graphs(images, labels, self.normalise.mean.new_full((), share)).clone()
            else:
                loss = self.micro_step(images, labels, share)
            total = loss if total is None else total + loss
        assert total is not None, "a window without a micro batch"
        return total

    def micro_step(self, images: Tensor, labels: Tensor, share: Tensor | float) -> Tensor:
        """Adds the gradient of ``share`` times the mean loss of a micro batch; returns that part of the loss."""
        is_whole = isinstance(share, float) and share == 1.0
        self.lap("wait")
        with self.precision.context():
            loss = self._loss(self.forward(self.normalise(images)), labels)
            if not is_whole:  # a whole window needs no product, nor its gradient
                loss = loss * share
        self.lap("forward")
        scaler = self.precision.scaler
        scaled = scaler.scale(loss) if scaler else loss
        if self.noise is None or is_whole:
            torch.autograd.backward(scaled)
        else:
            self.noise.backward(scaled, len(labels), self._scale * share)
        self.lap("backward")
        return loss.detach()

    def _gradient(self, images: Tensor, labels: Tensor) -> list[Tensor]:
        # of the mean loss; the parameters' own gradients stay as they are
        with self.precision.context():
            loss = self._loss(self.model(self.normalise(images)), labels)
        scaler = self.precision.scaler
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(scaler.scale(loss) if scaler else loss, trained, materialize_grads=True)
        return [gradient / self._scale for gradient in gradients] if scaler else list(gradients)

    @property
    def _scale(self) -> Tensor | float:
        # what the loss was multiplied by
        scaler = self.precision.scaler
        return scaler.scale(self.normalise.mean.new_ones(())) if scaler else 1.0

    def _loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        if not len(labels):  # a rank without samples takes part with a gradient of zero
            return logits.sum()
        if labels.is_floating_point():  # mixed images; the weights of their classes keep their digits
            logits = logits.to(torch.promote_types(logits.dtype, labels.dtype))
            labels = labels.to(logits.dtype)
        return cross_entropy(logits, labels, label_smoothing=self.regularization.label_smoothing)

    def update(self) -> None:
        """Takes the step that the gradients say, clipped where that was asked for."""
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
            self.ema.update()
        self.lap("optimizer")

    def clear_gradients(self) -> None:
        """Drops the gradients; where a graph adds to them, or they lie in what travels, they become zero instead."""
        if self.graphs or self.world.size > 1:
            self.optimizer.zero_grad(set_to_none=False)
            return
        for group in self.optimizer.param_groups:  # what zero_grad does, without its detour through the profiler
            for parameter in group["params"]:
                parameter.grad = None

    def __call__(self, micro_batches: Iterable[Batch], samples: int) -> Tensor:
        """One optimizer step; returns the mean loss before it, on the device."""
        self.clear_gradients()
        loss = self.accumulate(micro_batches, samples)
        self.update()
        return loss


def set_lr(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """The same learning rate for all groups."""
    for group in optimizer.param_groups:
        group["lr"] = lr


@torch.no_grad()
def evaluate(
    model: nn.Module,
    normalise: Normalise,
    precision: Precision,
    batches: Iterable[Batch],
    world: World = SOLO,
    ask: Ask = ask_once,
) -> tuple[float, float]:
    """Mean cross entropy in nats (without label smoothing) and accuracy over ``batches``, in evaluation mode.

    ``ask`` gets the logits from the model; they are what loss and accuracy are of.

    Of several ranks each goes through its own ``batches``, all with the running statistics of the first rank; the sums
    are added, so that the result is that of one rank over all.
    """
    world.share_buffers(model)
    resting = [module for module in model.modules() if not module.training]  # frozen stages
    model.eval()
    try:
        count = 0
        loss = torch.zeros((), dtype=torch.float64, device=normalise.mean.device)
        correct = torch.zeros((), dtype=torch.int64, device=normalise.mean.device)
        for images, labels in batches:
            LIFELINE.beat()
            with precision.context():
                logits = ask(model, normalise(images))
            loss += cross_entropy(logits.to(normalise.mean.dtype), labels, reduction="sum")
            correct += (logits.argmax(1) == labels).sum()
            count += len(labels)
    finally:
        model.train()
        for module in resting:
            module.training = False
    sums = world.sum(torch.stack([loss, correct.double(), loss.new_tensor(count)])).tolist()
    return sums[0] / sums[2], sums[1] / sums[2]
