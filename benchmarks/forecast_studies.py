"""The studies on which the forecast is calibrated and validated: of many shapes, drawn at random by a fixed seed.

Both lists are drawn from the same shapes. The constants of :mod:`sweep.search.study_forecast` are set on the
development studies; the validation studies are for :mod:`benchmarks.forecast_error` alone. An earlier validation with
seed 2 was stopped after 13 studies, because their totals contained many probes after trials that were not forecast; the
rule of these probes was changed, and the present list is a new one. Development studies were looked at twice: after the
first time more shapes were probed before a short study, and the first training of a process no longer counted as usual.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from benchmarks.forecast_images import NAME as CIFAR
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.study_sections import Confirm

NUM_DEVELOPMENT, NUM_VALIDATION = 24, 40
_SEEDS = {"development": 1, "validation": 3}
_STUDY_SECONDS = (7.0, 18.0)  # of search and confirming, roughly
_TRAIN_SECONDS = (0.15, 2.5)  # of one trial
_OTHER_SECONDS = 0.9  # of one trial before and after its training, roughly
_TRIALS = (6, 17)
_UNIFORM_STEP = 64  # samples of a step, where the budget is in steps

Choice = TypeVar("Choice")


@dataclass(frozen=True)
class _Images:
    values: dict[str, Any]
    num_train: int
    rates: dict[str, int]  # training images a second of each model on two cores, roughly


@dataclass(frozen=True)
class PlannedStudy:
    """A study, and how many trials run at a time; ``executor`` by its name."""

    spec: StudySpec
    executor: str
    per_device: int | None


_IMAGES = (
    _Images({"data.name": "digits"}, 1300, {"resnet8": 9000, "vit_micro": 6000}),
    _Images({"data.name": "digits", "data.subset": 500}, 500, {"resnet8": 9000, "vit_micro": 6000}),
    _Images(
        {"data.name": "synthetic", "data.image_size": 16, "data.subset": 800}, 800, {"resnet8": 4000, "vit_micro": 4000}
    ),
    _Images({"data.name": CIFAR, "data.subset": 1000}, 1000, {"resnet8": 1300, "vit_micro": 1500}),
)
_MODELS = (("resnet8",), ("vit_micro",), ("resnet8", "vit_micro"))
_MICRO = ((3, 6), (4, 8), (5, 9))  # powers of two
_ACCUMULATION = ((1,), (1, 2, 4))
_OPTIMIZERS = (("adamw",), ("momentum",), ("adamw", "sgd"))
_BUDGETS = ("epochs", "epochs", "epochs", "samples", "steps", "target_accuracy")
SAMPLERS = ("cost_aware", "cost_aware", "cost_aware", "tpe", "tpe", "nsga2", "gp", "qmc", "random", "grid")
PRUNERS = ("none", "front")
_CONFIRM = ((0, 0), (16, 20), (4, 5), (3, 3))  # configurations, seeds
OBJECTIVES = (
    ("val_accuracy", "train_seconds", "peak_memory_bytes"),
    ("val_accuracy", "train_seconds"),
    ("val_accuracy", "peak_memory_bytes"),
    ("val_accuracy",),
)
_EXECUTORS = (("process", None),) * 6 + (("inline", None), ("process", 2))


def plan_studies(part: str, count: int) -> list[PlannedStudy]:
    """The first ``count`` studies of ``part``: "development" or "validation"."""
    return [_draw(part, number) for number in range(count)]


def plan_tiny_study() -> PlannedStudy:
    """One study that shows that everything runs."""
    planned = _draw("development", 0)
    base = {"data.name": "digits", "data.subset": 100, "budget.steps": 2}
    changes = {"name": "tiny", "trials": 2, "base": base, "confirm": Confirm(seeds=0)}
    return PlannedStudy(planned.spec.model_copy(update=changes), "process", None)


def _draw(part: str, number: int) -> PlannedStudy:
    rng = np.random.default_rng([_SEEDS[part], number])
    images, models, unit = pick(rng, _IMAGES), pick(rng, _MODELS), pick(rng, _BUDGETS)
    trials, (configurations, seeds) = int(rng.integers(*_TRIALS)), pick(rng, _CONFIRM)
    confirming = min(configurations * seeds, Confirm().share * trials)
    trial_seconds = rng.uniform(*_STUDY_SECONDS) / (trials + confirming)
    train_seconds = float(np.clip(trial_seconds - _OTHER_SECONDS, *_TRAIN_SECONDS))
    num_images = train_seconds * float(np.mean([images.rates[model] for model in models]))
    micro, accumulation, optimizers = pick(rng, _MICRO), pick(rng, _ACCUMULATION), pick(rng, _OPTIMIZERS)
    table: dict[str, Any] = {
        "name": f"{part}_{number:02}",
        "trials": trials,
        "seed": number,
        "objectives": list(pick(rng, OBJECTIVES)),
        "sampler": pick(rng, SAMPLERS),
        "pruner": pick(rng, PRUNERS),
        "confirm": {"max_configurations": configurations, "seeds": seeds},
        "base": images.values | _budget(unit, num_images, images.num_train),
        "space": {
            "model.name": {"choice": list(models)},
            "batch.micro": {"log2": list(micro)},
            "batch.accumulation": {"choice": list(accumulation)},
            "optimizer.name": {"choice": list(optimizers)},
            "optimizer.lr": {"choice": [1e-3, 3e-3, 1e-2, 3e-2]},
            "optimizer.weight_decay": {"choice": [1e-4, 1e-3, 1e-2]},
        },
    }
    return PlannedStudy(build_study(table, table["name"]), *pick(rng, _EXECUTORS))


def _budget(unit: str, num_images: float, num_train: int) -> dict[str, float]:
    epochs = max(round(num_images / num_train), 1)
    if unit == "target_accuracy":
        return {"budget.target_accuracy": 0.8, "budget.max_epochs": float(epochs)}
    amounts = {"epochs": epochs, "samples": round(num_images), "steps": max(round(num_images / _UNIFORM_STEP), 5)}
    return {f"budget.{unit}": amounts[unit]}


def pick(rng: np.random.Generator, choices: Sequence[Choice]) -> Choice:
    return choices[int(rng.integers(len(choices)))]
