"""Many trials at once on one GPU: what each way of sharing it gives over one trial at a time.

``processes`` is what ``--executor packed`` does, in whole trials an hour. ``graphs`` (captured steps on streams of one
process) and ``stacked`` (models under vmap) are not built: their rows are of steps alone, which is the most that
building them could give.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy

from benchmarks.gpu_part import Job, Measure
from benchmarks.gpu_sheet import Row
from sweep.config.tables.datasets import ImageShape
from sweep.config.trial_config import build_config
from sweep.executors.packed.mps import share_gpu
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.records.messages import Ending, TrialTask
from sweep.training.models.table import build_model

_TRIAL_SECONDS = 3.0  # of a trial that is alone
_STEP_SECONDS = 2.0  # of a rate of steps alone
_NUM_PAIRS = 20
_SHAPE = ImageShape(3, 32, 10)
_AT_ONCE = (2, 4, 8, 16)


@dataclass(frozen=True)
class Kind:
    """A training, and how many times the trials an hour of one at a time are wanted."""

    model: str
    micro: int
    target: float


KINDS = (Kind("resnet8", 128, 10.0), Kind("vit_tiny", 128, 3.0), Kind("resnet18", 512, 1.5))


def processes(job: Job) -> Iterator[Row]:
    """Whole trials in processes of their own, from the first start to the last end."""
    device = str(job.setting.device)
    with share_gpu(device) as environment, ProcessExecutor([device]) as executor:
        for kind in KINDS[: job.setting.pick(len(KINDS), 1)]:
            task = _calibrated(executor, kind, job)
            alone = trials_an_hour(executor, task, job.setting.pick(3, 1))
            rates = {1: alone}
            for count in _AT_ONCE[: job.setting.pick(len(_AT_ONCE), 1)]:
                executor.divide(count, environment)
                rates[count] = trials_an_hour(executor, task, count)
                executor.divide(1)
                if rates[count] < max(rates.values()):
                    break
            best = max(rates, key=lambda count: rates[count])
            how = f"{best} at once{', MPS' if environment else ''}"
            question = f"trials an hour, {kind.model} at micro batch {kind.micro}, packed over one at a time"
            yield Row(question, rates[best] / alone, kind.target, "higher", note=how, facts={"trials_an_hour": rates})


def pairs(job: Job) -> Iterator[Row]:
    """The same seeds alone and packed: how far they differ, beside how far seeds do."""
    count, device = job.setting.pick(_NUM_PAIRS, 2), str(job.setting.device)
    values = {"model.name": "resnet8", "data.name": "digits", "budget.epochs": job.setting.pick(8, 1)}
    tasks = [
        TrialTask(number=seed, config=build_config({**values, "seed": seed}, "benchmark")) for seed in range(count)
    ]
    with share_gpu(device) as environment, ProcessExecutor([device]) as executor:
        alone = [ending.measurements["val_accuracy"] for ending in _endings(executor, tasks)]
        executor.divide(4, environment)
        packed = [ending.measurements["val_accuracy"] for ending in _endings(executor, tasks)]
    differences = [one - other for one, other in zip(packed, alone, strict=True)]
    noise = stdev(alone)
    share = stdev(differences) / (2**0.5 * noise) if noise else float(any(differences))
    facts = {"alone": alone, "packed": packed}
    yield Row(
        "scatter of packed against alone, over that of seeds", share, 1.0, n=count, least_n=_NUM_PAIRS, facts=facts
    )
    yield Row("accuracy of packed trials less that of the same alone, mean", fmean(differences), n=count)


def graphs(job: Job) -> Iterator[Row]:
    """Captured steps, each on its own stream of one process."""
    for kind in KINDS:
        question = f"steps a second, {kind.model} at micro batch {kind.micro}, captured on streams over one stream"
        if job.setting.device.type != "cuda":
            yield Row(question, note="only a GPU captures steps")
            continue
        rates = {count: _graph_rate(kind, count, job.setting.device) for count in (1, *_AT_ONCE)}
        yield Row(question, max(rates.values()) / rates[1], facts={"steps_a_second": rates})


def stacked(job: Job) -> Iterator[Row]:
    """Steps of models that are stacked under vmap; transformers alone, whose layers keep no statistics."""
    kind = Kind("vit_tiny", job.setting.pick(128, 2), 3.0)
    counts = (1, *_AT_ONCE)[: job.setting.pick(5, 2)]
    rates = {count: _stacked_rate(kind, count, job) for count in counts}
    question = f"steps a second, {kind.model} at micro batch {kind.micro}, stacked over one model"
    yield Row(question, max(rates.values()) / rates[1], facts={"steps_a_second": rates})


def trials_an_hour(executor: ProcessExecutor, task: TrialTask, count: int) -> float:
    """``count`` copies of ``task``, as many at once as there are slots.

    Raises:
        RuntimeError: one did not complete.
    """
    began = time.monotonic()
    _endings(executor, [replace(task, number=number) for number in range(count)])
    return 3600.0 * count / (time.monotonic() - began)


def _endings(executor: ProcessExecutor, tasks: list[TrialTask]) -> list[Ending]:
    left, running, found = list(tasks), set[int](), dict[int, Ending]()
    while left or running:
        while left and len(running) < executor.slots:
            running.add(left[0].number)
            executor.start(left.pop(0))
        for number, said in executor.poll(1.0):
            if isinstance(said, Ending):
                running.discard(number)
                found[number] = said
    failed = [ending for ending in found.values() if ending.outcome != "complete"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(tasks)} trials ended as {failed[0].outcome}: {failed[0].error}")
    return [found[task.number] for task in tasks]


def _calibrated(executor: ProcessExecutor, kind: Kind, job: Job) -> TrialTask:
    """As many steps as one trial alone takes in ``_TRIAL_SECONDS``."""
    values: dict[str, Any] = {
        "model.name": kind.model,
        "data.name": "synthetic",
        "data.subset": job.setting.pick(8192, 100),
        "batch.micro": job.setting.pick(kind.micro, 8),
        "precision.dtype": "bf16",
        "precision.channels_last": kind.model.startswith("resnet"),
        "budget.steps": job.setting.pick(200, 2),
    }
    task = TrialTask(number=0, config=build_config(values, "benchmark"))
    if job.setting.is_tiny:
        return task
    (ending,) = _endings(executor, [task])
    steps = max(1, round(200 * _TRIAL_SECONDS / ending.measurements["train_seconds"]))
    return replace(task, config=build_config({**values, "budget.steps": steps}, "benchmark"))


def _graph_rate(kind: Kind, count: int, device: torch.device) -> float:
    streams = [torch.cuda.Stream(device) for _ in range(count)]  # type: ignore[no-untyped-call]
    captured = []
    for stream in streams:
        with torch.cuda.stream(stream):
            step = _eager_step(kind, device)
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

    return count * _rate(all_of_them, device)


def _eager_step(kind: Kind, device: torch.device) -> Callable[[], None]:
    model = _model(kind).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = _images(kind.micro, device)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device.type, torch.bfloat16):
            loss = cross_entropy(model(images), labels)
        torch.autograd.backward(loss)
        optimizer.step()

    return step


def _stacked_rate(kind: Kind, count: int, job: Job) -> float:
    device = job.setting.device
    models = [_model(kind).to(device) for _ in range(count)]
    parameters, buffers = stack_module_state(models)
    images, labels = _images(kind.micro, device)

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

    return count * _rate(step, device, 0.0 if job.setting.is_tiny else _STEP_SECONDS)


def _model(kind: Kind) -> nn.Module:
    config = build_config({"model.name": kind.model}, "benchmark")
    return build_model(config.model, _SHAPE)


def _images(micro: int, device: torch.device) -> tuple[Tensor, Tensor]:
    shape = (micro, _SHAPE.channels, _SHAPE.side, _SHAPE.side)
    return torch.randn(shape, device=device), torch.randint(_SHAPE.num_classes, (micro,), device=device)


def _rate(step: Callable[[], None], device: torch.device, seconds: float = _STEP_SECONDS) -> float:
    """Calls a second, for about ``seconds``, after one that warms up."""
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


MEASURES: dict[str, Measure] = {
    "processes": processes,
    "pairs": pairs,
    "graphs": graphs,
    "stacked": stacked,
}
