"""Many trials at once on one GPU, as ``--executor packed`` runs them: trials an hour over one trial at a time."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Any

from benchmarks.gpu.found import Found, Job, Measure, Sample
from sweep.config.trial_config import build_config
from sweep.executors.packed.mps import share_gpu
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.records.messages import Ending, TrialTask

_TRIAL_SECONDS = 3.0  # of a trial that is alone
_NUM_PAIRS = 20
AT_ONCE = (2, 4, 8, 16)


@dataclass(frozen=True)
class Kind:
    """A training."""

    model: str
    micro: int


KINDS = (Kind("resnet8", 128), Kind("vit_tiny", 128), Kind("resnet18", 512))


def collect_rates(job: Job) -> Iterator[Sample]:
    """Trials an hour of each kind: alone, then more and more at once, until more at once are slower. A kind that was
    cut short begins anew."""
    device = str(job.setting.device)
    kinds = [kind for kind in KINDS if not any(_is_end(sample, kind) for sample in job.kept)]
    with share_gpu(device) as environment, ProcessExecutor([device]) as executor:
        for kind in kinds:
            task = _calibrated(executor, kind, job)
            rates: dict[int, float] = {}
            for count in (1, *AT_ONCE[: job.setting.pick(len(AT_ONCE), 1)]):
                job.require()
                if count > 1:
                    executor.divide(count, environment)
                # one alone is measured by several in turn
                rates[count] = trials_an_hour(executor, task, max(count, job.setting.pick(3, 1)))
                executor.divide(1)
                yield {"model": kind.model, "at_once": count, "rate": rates[count], "has_mps": bool(environment)}
                if rates[count] < max(rates.values()):
                    break
            yield {"model": kind.model, "is_end": True}


def answer_rates(samples: Sequence[Sample]) -> dict[str, Found]:
    """The best rate over that of one at a time."""
    rows = {}
    for kind in KINDS:
        found = [sample for sample in samples if sample["model"] == kind.model and "rate" in sample]
        rates = {sample["at_once"]: sample["rate"] for sample in found}
        if len(rates) < 2:
            rows[f"packed_{kind.model}"] = Found(n=0)
            continue
        best = max(rates, key=lambda count: rates[count])
        note = f"{best} at once, {'MPS' if found[-1]['has_mps'] else 'no MPS'}"
        rows[f"packed_{kind.model}"] = Found(
            measured=rates[best] / rates[1], note=note, facts={"trials_an_hour": rates}
        )
    return rows


def _is_end(sample: Sample, kind: Kind) -> bool:
    return bool(sample["model"] == kind.model and sample.get("is_end"))


def collect_pairs(job: Job) -> Iterator[Sample]:
    """The same seeds alone and packed."""
    count, device = job.setting.pick(_NUM_PAIRS, 2), str(job.setting.device)
    values = {"model.name": "resnet8", "data.name": "digits", "budget.epochs": job.setting.pick(8, 1)}
    tasks = [
        TrialTask(number=seed, config=build_config({**values, "seed": seed}, "benchmark")) for seed in range(count)
    ]
    with share_gpu(device) as environment, ProcessExecutor([device]) as executor:
        alone = [ending.measurements["val_accuracy"] for ending in _endings(executor, tasks)]
        job.require()
        executor.divide(4, environment)
        packed = [ending.measurements["val_accuracy"] for ending in _endings(executor, tasks)]
    yield {"alone": alone, "packed": packed}


def answer_pairs(samples: Sequence[Sample]) -> dict[str, Found]:
    """How far packed trials differ from the same alone, beside how far seeds do."""
    if not samples:
        return {"pairs_scatter": Found(n=0), "pairs_shift": Found(n=0)}
    alone, packed = samples[-1]["alone"], samples[-1]["packed"]
    differences = [one - other for one, other in zip(packed, alone, strict=True)]
    noise = stdev(alone)
    share = stdev(differences) / (2**0.5 * noise) if noise else float(any(differences))
    shift = Found(measured=fmean(differences), n=len(alone))
    return {"pairs_scatter": Found(measured=share, n=len(alone)), "pairs_shift": shift}


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


MEASURES = {"packed": Measure(collect_rates, answer_rates), "pairs": Measure(collect_pairs, answer_pairs)}
