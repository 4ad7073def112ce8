"""What other ways of sharing one GPU could give at most, as rates of steps alone: captured steps on streams of one
process, and models that are stacked under vmap (transformers alone, whose layers keep no statistics)."""

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from benchmarks.gpu.found import Found, Job, Measure, Sample
from benchmarks.gpu.measures.packed import AT_ONCE, KINDS, Kind
from sweep.config.tables.datasets import ImageShape
from sweep.config.trial_config import build_config
from sweep.training.models.table import build_model

_STEP_SECONDS = 1.0  # of a rate
_SHAPE = ImageShape(3, 32, 10)
_STACKED = Kind("vit_tiny", 128)


def collect_rates(job: Job) -> Iterator[Sample]:
    """Steps a second of all models together, by way, model and count."""
    done = {(sample["way"], sample["model"], sample["at_once"]) for sample in job.kept}
    counts = (1, *AT_ONCE)[: job.setting.pick(5, 2)]
    ways = [("stacked", _STACKED)]
    if job.setting.device.type == "cuda":
        ways += [("graphs", kind) for kind in KINDS]
    for way, kind in ways:
        for count in counts:
            if (way, kind.model, count) in done:
                continue
            job.require()
            measure = _measure_stacked if way == "stacked" else _measure_graphs
            yield {"way": way, "model": kind.model, "at_once": count, "rate": measure(kind, count, job)}


def answer(samples: Sequence[Sample]) -> dict[str, Found]:
    """The best rate over that of one model, or stream."""
    rows = {}
    for way, model in (("stacked", _STACKED.model), *(("graphs", kind.model) for kind in KINDS)):
        found = [sample for sample in samples if (sample["way"], sample["model"]) == (way, model)]
        rates = {sample["at_once"]: sample["rate"] for sample in found}
        name = "bound_stacked" if way == "stacked" else f"bound_graphs_{model}"
        best = max(rates, key=lambda count: rates[count], default=0)
        has_both = 1 in rates and len(rates) > 1
        note = f"{best} at once" if has_both else ""
        rows[name] = Found(measured=rates[best] / rates[1] if has_both else None, n=int(has_both), note=note)
    return rows


def _measure_graphs(kind: Kind, count: int, job: Job) -> float:
    device = job.setting.device
    streams = [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]
    captured = []
    for stream in streams:
        with torch.cuda.stream(stream):
            step = _eager_step(kind, job)
            for _ in range(3):
                step()
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                step()
            captured.append(graph)

    def all_of_them() -> None:
        for stream, graph in zip(streams, captured, strict=True):
            with torch.cuda.stream(stream):
                graph.replay()

    return count * _rate(all_of_them, job)


def _eager_step(kind: Kind, job: Job) -> Callable[[], None]:
    device = job.setting.device
    model = _model(kind).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = _images(kind, job)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = cross_entropy(model(images), labels)
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def _measure_stacked(kind: Kind, count: int, job: Job) -> float:
    device = job.setting.device
    models = [_model(kind).to(device) for _ in range(count)]
    parameters, buffers = stack_module_state(models)
    images, labels = _images(kind, job)

    def loss(one: dict[str, Tensor], kept: dict[str, Tensor]) -> Tensor:
        return cross_entropy(functional_call(models[0], (one, kept), (images,)), labels)

    slopes = vmap(grad(loss), randomness="different")

    def step() -> None:
        # of the attention's kernels the plain one alone can be stacked
        with torch.autocast(device.type, torch.bfloat16), sdpa_kernel(SDPBackend.MATH):
            found = slopes(parameters, buffers)
        with torch.no_grad():
            for name, slope in found.items():
                parameters[name].sub_(slope, alpha=0.01)

    return count * _rate(step, job)


def _model(kind: Kind) -> nn.Module:
    config = build_config({"model.name": kind.model}, "benchmark")
    return build_model(config.model, _SHAPE)


def _images(kind: Kind, job: Job) -> tuple[Tensor, Tensor]:
    micro, device = job.setting.pick(kind.micro, 2), job.setting.device
    shape = (micro, _SHAPE.channels, _SHAPE.side, _SHAPE.side)
    return torch.randn(shape, device=device), torch.randint(_SHAPE.num_classes, (micro,), device=device)


def _rate(step: Callable[[], None], job: Job) -> float:
    """Calls a second, for about a second, after one that warms up."""
    device, seconds = job.setting.device, 0.0 if job.setting.is_tiny else _STEP_SECONDS
    step()
    _await(device)
    began, count = time.monotonic(), 0
    while count == 0 or time.monotonic() - began < seconds:
        for _ in range(10 if seconds else 1):
            step()
            count += 1
        _await(device)
    return count / (time.monotonic() - began)


def _await(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


MEASURES = {"bounds": Measure(collect_rates, answer)}
