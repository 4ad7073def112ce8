"""Images a second of a trial over a loop with Hugging Face's Accelerate."""

import importlib
import time
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks import peers
from benchmarks.harness import Arms, Benchmark, Setting
from benchmarks.trials import Material
from sweep.measurement.device import make_synchronizer

accelerate: Any = importlib.import_module("accelerate")


def _loop(shared: Material, epochs: int) -> tuple[float, nn.Module]:
    # as Accelerate's own examples write it
    accelerator = accelerate.Accelerator(cpu=shared.device.type == "cpu", mixed_precision="no")
    model: Any = shared.model()
    optimizer: Any = peers.optimizer_of(model)
    schedule: Any = peers.schedule_of(shared, optimizer, epochs)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, peers.loader(shared), schedule)
    wait = make_synchronizer(shared.device)
    model.train()
    began = time.perf_counter()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            loss = cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
    wait()
    return time.perf_counter() - began, accelerator.unwrap_model(model)


def prepare(setting: Setting) -> AbstractContextManager[Arms]:
    """See :func:`benchmarks.peers.compare`."""
    return peers.compare(_loop, setting)


BENCHMARK = Benchmark(
    "accelerate",
    "images/s of a trial over a loop with Accelerate (digits, ResNet-8, batch 64, fp32)",
    "images/s",
    "higher",
    1.05,
    prepare,
)
