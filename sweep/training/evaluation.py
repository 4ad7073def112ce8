"""Evaluation: the weights, the predictions, how many images at once, and one pass over them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from sweep.training.data.feeders import Batch
from sweep.training.models.resnets import find_batch_norms, override_attributes
from sweep.training.optimizers import ScheduleFree
from sweep.training.processes import SUPERVISOR_LINK
from sweep.training.step import Step

_MOST_PIXELS = 2**23  # of a batch, from which larger ones are not faster
_MOST_IMAGES = 1024


@dataclass
class EvalBatch:
    """The largest number of images in a batch of an evaluation, so few that it requires no more memory than a training
    step. The result depends on it only by rounding."""

    size: int


class EvalFit(NamedTuple):
    size: int
    peak_bytes: int


def count_most_images(num_validation: int, side: int) -> int:
    """The largest batch of an evaluation of ``num_validation`` square images of ``side`` pixels; memory aside."""
    return max(1, min(_MOST_IMAGES, _MOST_PIXELS // side**2, num_validation))


def fit_eval_batch(
    measure: Callable[[int], int], micro: int, most: int, resting_bytes: int, limit_bytes: int
) -> EvalFit:
    """The largest size up to ``most`` whose measured peak is at most ``limit_bytes``, the peak of a training step.

    ``measure`` gives the peak of a size. A training step holds the activations of all layers and an evaluation those of
    one, so the ``micro`` batch fits nearly always, and is halved where it does not. From what it requires above
    ``resting_bytes``, which are held in any case, a larger size is predicted, and measured too. Where not even one
    image fits, the size is 1.
    """
    fit = EvalFit(min(micro, most), measure(min(micro, most)))
    while fit.peak_bytes > limit_bytes and fit.size > 1:
        fit = EvalFit(fit.size // 2, measure(fit.size // 2))
    size = min(most, fit.size * ((limit_bytes - resting_bytes) // max(fit.peak_bytes - resting_bytes, 1)))
    while size > fit.size:
        if (peak_bytes := measure(size)) <= limit_bytes:
            return EvalFit(size, peak_bytes)
        size //= 2
    return fit


def predict(model: nn.Module, images: Tensor, tta: Literal["none", "flip"]) -> Tensor:
    """The logits (b, classes) of normalized ``images`` (b, c, s, s); with ``flip`` the mean
    over images and mirror images, at least in fp32."""
    plain: Tensor = model(images)
    if tta == "none":
        return plain
    dtype = torch.promote_types(plain.dtype, torch.float32)
    mean: Tensor = (plain.to(dtype) + model(images.flip(-1)).to(dtype)) / 2
    return mean


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards each module has the mode it had, which is not the same for all with frozen stages."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@torch.no_grad()
def evaluate_model(
    model: nn.Module,
    step: Step,
    batches: Iterable[Batch],
    tta: Literal["none", "flip"] = "none",
    correct: list[Tensor] | None = None,
) -> tuple[float, float]:
    """Mean cross entropy in nats (without label smoothing) and accuracy over ``batches``, in evaluation mode, with the
    normalization and the precision of ``step``.

    With several ranks each evaluates its own ``batches``, all with the running statistics of the first rank; the sums
    are added up, so that the result is that of one rank over all batches. ``correct`` receives for each batch which
    of its images this rank got right, on the device.
    """
    step.world.broadcast_buffers(model)
    normalize, precision, count = step.normalize, step.precision, 0
    loss = torch.zeros((), dtype=torch.float64, device=normalize.mean.device)
    num_correct = torch.zeros((), dtype=torch.int64, device=normalize.mean.device)
    with evaluation_mode(model):
        for images, labels in batches:
            SUPERVISOR_LINK.send_heartbeat()
            with precision.context():
                logits = predict(model, normalize(images), tta)
            loss += cross_entropy(logits.to(normalize.mean.dtype), labels, reduction="sum")
            hits = logits.argmax(1) == labels
            num_correct += hits.sum()
            if correct is not None:
                correct.append(hits)
            count += len(labels)
    sums = step.world.sum(torch.stack([loss, num_correct.double(), loss.new_tensor(count)])).tolist()
    return sums[0] / sums[2], sums[1] / sums[2]


@contextmanager
def averaged_model(step: Step, statistics_batches: Callable[[], Iterable[Batch]]) -> Iterator[nn.Module]:
    """The model to evaluate or save: the moving average, a schedule-free optimizer's average, or the model itself.

    The model has never run with a schedule-free optimizer's average while it was trained, so the statistics of batch
    norm are measured over ``statistics_batches``, as its authors require: training images without augmentation, in
    batches as large as while it was trained. The model is the same afterwards.
    """
    optimizer = step.optimizer
    if step.ema is not None or not isinstance(optimizer, ScheduleFree):
        yield step.ema.model if step.ema else step.model
        return
    tensors = [*step.model.parameters(), *step.model.buffers()]
    before = [tensor.detach().clone(memory_format=torch.preserve_format) for tensor in tensors]
    try:
        with torch.no_grad():
            for parameter in step.model.parameters():
                parameter.copy_(optimizer.average(parameter))
            _measure_statistics(step, statistics_batches)
        yield step.model
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, before, strict=True):
                tensor.copy_(value)


def _measure_statistics(step: Step, statistics_batches: Callable[[], Iterable[Batch]]) -> None:
    norms = [norm for norm in find_batch_norms(step.model) if norm.training]
    if not norms:
        return
    for norm in norms:
        norm.reset_running_stats()
    # these norms alone in training mode, and the plain mean over all batches
    with evaluation_mode(step.model), override_attributes(norms, momentum=None, training=True):
        for images, _ in statistics_batches():
            with step.precision.context():
                step.model(step.normalize(images))
    for statistic in (statistic for norm in norms for statistic in (norm.running_mean, norm.running_var)):
        if statistic is not None:
            statistic.copy_(step.world.mean(statistic))  # each rank has measured its part of the images
