"""Ways to take the forward and backward passes of several models together on a CPU, in processor time of one thread."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Setting
from sweep.config.tables.datasets import ImageShape
from sweep.config.trial_config import build_config
from sweep.training.models.table import build_model
from sweep.training.stacked.stacked_layers import find_unstackable, stack_layers

_SHAPE = ImageShape(1, 8, 10)
_NUM_MODELS = 8
# the first is that of the ratio; the others are facts
_CASES = (("resnet8", 16), ("resnet8", 8), ("resnet8", 32), ("resnet8", 128), ("vit_micro", 8), ("vit_micro", 32))
Pass = Callable[[], list[Tensor]]  # the losses of all models


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Theirs is ``vmap`` over ``grad``; one model at a time is a fact."""
    count = setting.pick(_NUM_MODELS, 2)
    cases = _CASES[: setting.pick(len(_CASES), 1)]
    ways = {case: _ways(*case, count) for case in cases}
    rates: dict[tuple[str, str, int], list[float]] = {}

    def run(way: str) -> float:
        for name, micro in cases:
            if way in ways[name, micro]:
                rates.setdefault((way, name, micro), []).append(_rate(ways[name, micro][way], setting.pick(5, 1)))
        return rates[way, *cases[0]][-1]

    def theirs(_pair: int) -> float:
        run("alone")
        return run("vmap")

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield Arms(lambda _pair: run("side_by_side"), theirs, lambda: _describe(rates, ways), {"models": count})
    finally:
        torch.set_num_threads(threads)


def _ways(name: str, micro: int, count: int) -> dict[str, Pass]:
    torch.manual_seed(0)
    section = build_config({"model.name": name, "data.name": "digits"}, "benchmark").model
    models = [build_model(section, _SHAPE) for _ in range(count)]
    images = torch.randn(count, micro, _SHAPE.channels, _SHAPE.side, _SHAPE.side)
    labels = torch.randint(_SHAPE.num_classes, (count, micro))
    ways = {"alone": lambda: _pass_alone(models, images, labels), "vmap": _make_vmap(models, images, labels)}
    if not find_unstackable(models[0]):
        ways["side_by_side"] = _make_side_by_side(models, images, labels)
    return ways


def _pass_alone(models: list[nn.Module], images: Tensor, labels: Tensor) -> list[Tensor]:
    losses = []
    for model, own_images, own_labels in zip(models, images, labels, strict=True):
        model.zero_grad()
        loss = cross_entropy(model(own_images), own_labels)
        torch.autograd.backward(loss)
        losses.append(loss.detach())
    return losses


def _make_vmap(models: list[nn.Module], images: Tensor, labels: Tensor) -> Pass:
    parameters, buffers = stack_module_state(models)

    def loss(own: dict[str, Tensor], kept: dict[str, Tensor], pixels: Tensor, classes: Tensor) -> Tensor:
        return cross_entropy(functional_call(models[0], (own, kept), (pixels,)), classes)

    passes = vmap(grad_and_value(loss), randomness="error")

    def take() -> list[Tensor]:
        with sdpa_kernel(SDPBackend.MATH):  # of the attention's kernels the plain one alone can be stacked
            _, losses = passes(parameters, buffers, images, labels)
        return list(losses)

    return take


def _make_side_by_side(models: list[nn.Module], images: Tensor, labels: Tensor) -> Pass:
    stacked = stack_layers(models)
    beside = torch.cat(list(images), dim=1)

    def take() -> list[Tensor]:
        stacked.zero_grad()
        logits = stacked(beside).view(len(beside), len(models), -1).unbind(1)
        losses = [cross_entropy(own, classes) for own, classes in zip(logits, labels, strict=True)]
        torch.autograd.backward(losses)
        return [loss.detach() for loss in losses]

    return take


def _rate(take: Pass, num_calls: int) -> float:
    take()
    began = time.process_time()
    for _ in range(num_calls):
        take()
    return num_calls / (time.process_time() - began)


def _describe(
    rates: dict[tuple[str, str, int], list[float]], ways: dict[tuple[str, int], dict[str, Pass]]
) -> dict[str, Any]:
    """The rates over those of one model at a time; all ways must find the same losses."""
    for (name, micro), takes in ways.items():
        alone, *others = [torch.stack(take()) for take in takes.values()]
        if not all(torch.allclose(alone, losses, rtol=1e-3) for losses in others):
            raise ArmsDifferError(f"the losses of {name} at {micro} differ")
    return {
        f"{way}_over_alone_{name}_at_{micro}": median(
            one / other for one, other in list(zip(found, rates["alone", name, micro], strict=True))[1:]
        )
        for (way, name, micro), found in rates.items()
        if way != "alone"
    }


BENCHMARK = Benchmark(
    "stacked_passes",
    f"forward and backward passes of {_NUM_MODELS} ResNet-8 on digits, micro batch {_CASES[0][1]}, one thread: layers "
    "side by side over vmap",
    "passes/s of processor time",
    "higher",
    1.0,
    prepare,
)
