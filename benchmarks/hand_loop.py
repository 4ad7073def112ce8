"""What a trial costs beyond a loop that its user could have written for this one case."""

import math
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Setting
from benchmarks.trials import Material, accuracy, material, train
from sweep.measurement.device import make_synchronizer

_BATCH = 64
_LR = 0.05
# Relative, of an epoch's mean training loss. A GPU adds in another order each time, which grows from step to step, so
# there the first epoch alone is compared.
_TOLERANCES = {"cpu": 1e-5, "cuda": 1e-2}


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Both arms train the same model on the same images in the same order, and evaluate off the clock."""
    epochs = setting.pick(20, 2)
    values: dict[str, Any] = {
        "model.name": "resnet8",
        "data.name": "digits",
        "batch.micro": _BATCH,
        "optimizer.lr": _LR,
        "budget.epochs": epochs,
    }
    if setting.is_tiny:
        values["data.subset"] = 200
    shared = material(values, setting.device)
    losses: dict[str, list[float]] = {}

    def ours(_pair: int) -> float:
        trained = train(values, setting.device)
        losses["ours"] = [evaluation.train_loss for evaluation in trained.evaluations]
        return trained.seconds

    def theirs(_pair: int) -> float:
        seconds, losses["theirs"] = hand_loop(shared, epochs)
        return seconds

    def check() -> dict[str, Any]:
        apart = losses_apart(losses["ours"], losses["theirs"], setting.device)
        if not apart <= _TOLERANCES[setting.device.type]:
            raise ArmsDifferError(f"training losses differ by {apart:.2g}: {losses}")
        return {"losses_differ_by": apart, "last_loss": losses["ours"][-1]}

    yield Arms(ours, theirs, check, {"epochs": epochs, "batch": _BATCH, "images": len(shared.labels)})


def losses_apart(ours: list[float], theirs: list[float], device: torch.device) -> float:
    """Largest relative difference between the epochs' mean losses, of those that can be compared on ``device``."""
    pairs = list(zip(ours, theirs, strict=True))
    compared = pairs if device.type == "cpu" else pairs[:1]
    return max(abs(one - other) / other for one, other in compared)


def hand_loop(shared: Material, epochs: int) -> tuple[float, list[float]]:
    """Seconds of training without evaluation, and the mean loss of each epoch.

    Eager, channels first, in the configuration's number format (by autocast), on images that were normalised before.
    """
    model, count = shared.model(), len(shared.labels)
    batch, lr = int(shared.config.batch.micro), shared.config.optimizer.lr
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum=0.9, fused=True)
    num_steps = epochs * math.ceil(count / batch)
    wait, seconds, means, step = make_synchronizer(shared.device), 0.0, [], 0
    _first_step(shared)
    wait()
    for epoch in range(epochs):
        began = time.perf_counter()
        drawn = np.random.default_rng((shared.config.seed, epoch)).permutation(count)  # the trial's, too
        order = torch.from_numpy(drawn).to(shared.device)
        total = torch.zeros((), dtype=torch.float64, device=shared.device)
        for start in range(0, count, batch):
            rows = order[start : start + batch]
            for group in optimizer.param_groups:
                group["lr"] = lr * _factor(step, num_steps)
            optimizer.zero_grad(set_to_none=True)
            with _format(shared):
                loss = cross_entropy(model(shared.images[rows]), shared.labels[rows])
            torch.autograd.backward(loss)
            optimizer.step()
            total += loss.detach() * len(rows)
            step += 1
        means.append(float(total) / count)
        wait()
        seconds += time.perf_counter() - began
        accuracy(model, *shared.validation)
    return seconds, means


def _first_step(shared: Material) -> None:
    # on a model that is thrown away: what a first step costs is not training
    model, batch = shared.model(), int(shared.config.batch.micro)
    for size in (batch, len(shared.labels) % batch or batch):
        with _format(shared):
            loss = cross_entropy(model(shared.images[:size]), shared.labels[:size])
        torch.autograd.backward(loss)
    accuracy(model, *shared.validation)


def _format(shared: Material) -> AbstractContextManager[object]:
    is_half = shared.config.precision.dtype == "bf16"
    return torch.autocast(shared.device.type, torch.bfloat16) if is_half else nullcontext()


def _factor(step: int, num_steps: int) -> float:
    # the trial's defaults: a linear rise over a twentieth of the steps, then half a cosine
    rise = round(0.05 * num_steps)
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / (num_steps - rise)))


BENCHMARK = Benchmark(
    "harness",
    "seconds of a trial over a hand-written loop with the same step (digits, ResNet-8, micro batch 64)",
    "seconds",
    "lower",
    1.02,
    prepare,
    num_pairs=21,  # a machine's pace drifts by more than what is asked for
)
