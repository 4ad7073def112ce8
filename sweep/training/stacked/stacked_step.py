"""One optimizer step of several trials by one forward and backward pass."""

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor

from sweep.training.data.feeders import Batch
from sweep.training.loop.pending_step import PendingStep
from sweep.training.stacked.stacked_layers import stack_layers
from sweep.training.steps.step import Step
from sweep.training.supervisor_link import SUPERVISOR_LINK


@final
class StackedStep:
    """Takes the steps of trials that have equal models and micro batches of equal sizes.

    Everything apart from the pass belongs to each trial: data, loss, clipping, optimizer, average of the weights.
    Before a pass the weights and the running statistics of the models are copied side by side; afterwards each model
    gets its part of the gradients and of the statistics.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = list(steps)
        models = [step.model for step in steps]
        self._stacked = stack_layers(models)
        stacked = dict(self._stacked.named_parameters())
        parts = [dict(model.named_parameters()) for model in models]
        self._parameters = [(stacked[name], [part[name] for part in parts]) for name in stacked]
        self._copies = _pair(self._parameters)
        buffers = dict(self._stacked.named_buffers())
        statistics = [dict(model.named_buffers()) for model in models]
        joined = [(buffers[name], [part[name] for part in statistics]) for name in buffers]
        self._statistics = _pair([pair for pair in joined if pair[0].ndim])
        self._counters = [pair for pair in joined if not pair[0].ndim]  # of passes; they may differ between models

    def take(self, pending: Sequence[PendingStep]) -> list[Tensor]:
        """Takes one step of each trial, in the order of the steps of this object; returns their mean losses, scalars.

        Raises:
            ValueError: the numbers of micro batches differ.
        """
        self._begin()
        totals: list[Tensor] = []
        for batches in zip(*(each.batches() for each in pending), strict=True):
            SUPERVISOR_LINK.send_heartbeat()
            losses = self._accumulate(batches, len(batches[0][1]) / pending[0].window.samples)
            totals = [total + loss for total, loss in zip(totals, losses, strict=True)] if totals else losses
        self._hand_out()
        for step in self._steps:
            step.update()
        return totals

    @torch.no_grad()
    def _begin(self) -> None:
        for step in self._steps:
            step.clear_gradients()
        for parameter, _ in self._parameters:
            parameter.grad = None
        torch._foreach_copy_(*self._copies)
        if self._statistics[0]:
            torch._foreach_copy_(*self._statistics)
        for counter, _ in self._counters:
            counter.zero_()

    def _accumulate(self, batches: Sequence[Batch], share: float) -> list[Tensor]:
        # adds the gradient of ``share`` times the mean loss of each model; returns these parts of the losses
        steps = self._steps
        with steps[0].precision.context():
            images = torch.cat([step.normalize(batch[0]) for step, batch in zip(steps, batches, strict=True)], dim=1)
            logits = self._stacked(images).view(len(images), len(steps), -1).unbind(1)
            losses = [step.compute_loss(*own) for step, own in zip(steps, _join_labels(logits, batches), strict=True)]
            if share != 1.0:
                losses = [loss * share for loss in losses]
        torch.autograd.backward(losses)
        return [loss.detach() for loss in losses]

    @torch.no_grad()
    def _hand_out(self) -> None:
        for stacked, parts in self._parameters:
            if stacked.grad is not None:
                for parameter, gradient in zip(parts, stacked.grad.chunk(len(parts)), strict=True):
                    parameter.grad = gradient
        if self._statistics[0]:
            torch._foreach_copy_(self._statistics[1], self._statistics[0])
        for counter, counters in self._counters:
            torch._foreach_add_(counters, counter)


def _join_labels(logits: Sequence[Tensor], batches: Sequence[Batch]) -> list[tuple[Tensor, Tensor]]:
    return [(own, labels) for own, (_, labels) in zip(logits, batches, strict=True)]


def _pair(joined: Sequence[tuple[Tensor, Sequence[Tensor]]]) -> tuple[list[Tensor], list[Tensor]]:
    """The parts of stacked tensors, as views, and what belongs there."""
    views = [view for stacked, parts in joined for view in stacked.detach().chunk(len(parts))]
    return views, [part.detach() for _, parts in joined for part in parts]
