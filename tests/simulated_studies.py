"""Simulated studies whose truth is known: what every configuration is truly worth, and trials that scatter around it
as seeds do."""

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from frames_factory import MadeFrames, frames_of, make_spec
from records_factory import make_record

from sweep.analysis.statistics import non_dominated
from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig, flatten_config
from sweep.records.records import TrialRecord
from sweep.search.seeds import list_confirmations

OBJECTIVES = ("val_accuracy", "train_seconds", "peak_memory_bytes")
SIGNS = (-1.0, 1.0, 1.0)
Noise = npt.NDArray[np.float64]  # of each configuration


@dataclass(frozen=True)
class Simulated:
    """``truth`` by the number of a configuration's search trial, shape ``[3]`` in the order of ``OBJECTIVES``; and of
    the whole space, shape ``[points, 3]``."""

    frames: MadeFrames
    truth: dict[int, npt.NDArray[np.float64]]
    space: npt.NDArray[np.float64]

    def is_on_front(self, number: int) -> bool:
        """Whether a configuration is truly on the front of all that were tried."""
        numbers = list(self.truth)
        mask = non_dominated(np.array([self.truth[each] for each in numbers]), SIGNS)
        return bool(mask[numbers.index(number)])


def simulate(seed: int, num_search: int = 40, noise: float | Noise = 0.004, seeds: int = 3) -> Simulated:
    """A random search and the confirmation of its front, by the product's own rule; accuracy scatters by ``noise``,
    time by 3 %, memory not at all. Many configurations cost exactly the same: the rate costs nothing."""
    space = {"batch.micro": {"log2": [4, 8]}, "optimizer.lr": {"log": [1e-3, 1.0]}}
    base = {"model.name": "resnet8"}
    study = make_spec(confirm={"max_configurations": 4, "seeds": seeds, "share": 10.0}, space=space, base=base)
    rng = np.random.default_rng(seed)
    configs = [
        study.config({path: item.at(float(rng.random())) for path, item in study.space.items()})
        for _ in range(num_search)
    ]
    truth = {number: true_values(config) for number, config in enumerate(configs)}
    points = itertools.product((2**power for power in range(4, 9)), np.geomspace(1e-3, 1.0, 301).tolist())
    every = [study.config({"batch.micro": micro, "optimizer.lr": rate}) for micro, rate in points]
    whole = np.array([true_values(config) for config in every])
    return Simulated(_train(study, configs, truth, rng, np.broadcast_to(noise, num_search)), truth, whole)


def simulate_unequal(seed: int, noise: float = 0.0015) -> Simulated:
    """As :func:`simulate`, but the noise of one configuration is up to five times that of another: what learns badly
    scatters more, as at rates that are too large."""
    equal = simulate(seed, noise=0.0)
    accuracies = np.array([values[0] for values in equal.truth.values()])
    return simulate(seed, noise=noise * np.exp(np.clip(20.0 * (accuracies.max() - accuracies) - 0.8, -0.8, 0.8)))


def simulate_scattered(seed: int, num_search: int = 40, noise: float = 0.003) -> Simulated:
    """The same of configurations whose values have nothing to do with each other, save that accuracy costs time."""
    confirm = {"max_configurations": 4, "seeds": 3, "share": 10.0}
    study = make_spec(confirm=confirm, space={"batch.micro": {"int": [1, num_search]}})
    rng = np.random.default_rng(seed)
    configs = [study.config({"batch.micro": number + 1}) for number in range(num_search)]
    accuracy = rng.uniform(0.85, 0.95, num_search)
    seconds = np.exp(rng.normal(3.0, 0.7, num_search) + 8 * (accuracy - 0.9))
    memory = np.exp(rng.normal(18.0, 0.7, num_search))
    whole = np.stack([accuracy, seconds, memory], axis=1)
    truth = dict(enumerate(whole))
    return Simulated(_train(study, configs, truth, rng, np.full(num_search, noise)), truth, whole)


def _train(
    study: StudySpec, configs: list[TrialConfig], truth: dict[int, npt.NDArray[np.float64]], rng: np.random.Generator,
    noise: Noise,
) -> MadeFrames:  # fmt: skip
    rows = [_row(config, truth[number], rng, noise[number], number, "search") for number, config in enumerate(configs)]
    records = [_record(config, row) for row, config in zip(rows, configs, strict=True)]
    numbers = {_without_seed(config): number for number, config in enumerate(configs)}
    while due := list_confirmations(frames_of(study, rows), records, study):
        number = numbers[_without_seed(due[0])]
        rows.append(_row(due[0], truth[number], rng, noise[number], len(rows), "confirm"))
        records.append(_record(due[0], rows[-1]))
    return frames_of(study, rows)


def _without_seed(config: TrialConfig) -> str:
    return config.model_copy(update={"seed": 0}).model_dump_json()


def true_values(config: TrialConfig) -> npt.NDArray[np.float64]:
    """Accuracy likes lr / global batch near 1e-3 and falls off above 256 samples; time falls with the micro batch."""
    batch, micro = config.global_batch_size, config.batch.micro
    assert isinstance(micro, int)
    miss = abs(math.log10(config.optimizer.lr / batch) + 3.0)
    accuracy = 0.95 - 0.04 * min(miss, 3.0) ** 2 - 0.004 * max(0.0, math.log2(batch / 256))
    accuracy -= 0.01 * (config.model.name == "resnet8")
    seconds = (6.0 + 400.0 / micro + 10.0 / batch) * (1.4 if config.model.name == "vit_micro" else 1.0)
    accumulates = config.num_accumulation > 1
    return np.array([accuracy, seconds, (8 + 0.35 * micro + 2 * accumulates) * 2.0**20])


def _row(
    config: TrialConfig, truth: npt.NDArray[np.float64], rng: np.random.Generator, noise: float, number: int, phase: str
) -> dict[str, Any]:
    row: dict[str, Any] = {f"config.{key}": value for key, value in flatten_config(config).items()}
    row |= {"number": number, "phase": phase, "seed": config.seed, "global_batch_size": config.global_batch_size}
    accuracy, seconds, memory = truth
    row |= {"val_accuracy": float(np.clip(accuracy + noise * rng.normal(), 0.0, 1.0))}
    return row | {"train_seconds": float(seconds * np.exp(0.03 * rng.normal())), "peak_memory_bytes": float(memory)}


def _record(config: TrialConfig, row: dict[str, Any]) -> TrialRecord:
    return make_record(config, {name: row[name] for name in OBJECTIVES}, row["number"], phase=row["phase"])
