"""The weights that count: what is evaluated and saved is not always what the gradient is taken at."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from sweep.training.recipe.schedule_free import ScheduleFree
from sweep.training.steps.step import Batch, Step

_Norm = nn.modules.batchnorm._BatchNorm


@contextmanager
def evaluated_model(step: Step, train_batches: Callable[[], Iterable[Batch]]) -> Iterator[nn.Module]:
    """The model to evaluate or save: the moving average, a schedule-free optimizer's average, or the model itself.

    The average of a schedule-free optimizer was never trained in, so its batch norm statistics are measured on
    ``train_batches`` (not augmented), as its authors ask. Afterwards the model is as it was, to the last bit.
    """
    if step.ema is not None:
        yield step.ema.model
    elif isinstance(step.optimizer, ScheduleFree):
        with _average_in_place(step, step.optimizer, train_batches):
            yield step.model
    else:
        yield step.model


@contextmanager
@torch.no_grad()
def _average_in_place(
    step: Step, optimizer: ScheduleFree, train_batches: Callable[[], Iterable[Batch]]
) -> Iterator[None]:
    model = step.model
    tensors = [*model.parameters(), *model.buffers()]
    before = [tensor.detach().clone(memory_format=torch.preserve_format) for tensor in tensors]
    try:
        for parameter in model.parameters():
            parameter.copy_(optimizer.average(parameter))
        _measure_statistics(step, train_batches)
        yield
    finally:
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)


def _measure_statistics(step: Step, train_batches: Callable[[], Iterable[Batch]]) -> None:
    norms = [module for module in step.model.modules() if isinstance(module, _Norm) and module.training]
    if not norms:
        return
    modes = [(module, module.training) for module in step.model.modules()]
    momenta = [norm.momentum for norm in norms]
    step.model.eval()  # dropout rests, batch norm alone learns
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum, norm.training = None, True  # the plain mean over all batches
    try:
        for images, _ in train_batches():
            with step.precision.context():
                step.model(step.normalise(images))
        for norm in norms:
            for statistic in (norm.running_mean, norm.running_var):
                if statistic is not None:
                    statistic.copy_(step.world.mean(statistic))  # each rank saw its part of the images
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        for module, mode in modes:
            module.training = mode
