"""A study on a made-up truth: searched by the product's sampler, confirmed by its rule, answered from its records."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtri

from benchmarks.truths import BATCHES, Truth, memory_of, seconds_of
from sweep.config.commands import StudyCommands, StudyOrigin, find_study_commands
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial_config import TrialConfig, config_keys, flatten_config
from sweep.records.correct_images import Correct
from sweep.records.data_summary import DataSummary
from sweep.records.study_inputs import StudyInputs
from sweep.records.trial_record import TrialRecord
from sweep.search.samplers import make_sampler
from sweep.search.seeds import list_confirmations

_TIME_NOISE = 0.02
# Of the variance of whether an image is misclassified: what all configurations have in common, and each of its own.
_COMMON, _OWN = 0.5, 0.2


@dataclass(frozen=True)
class MadeFrames:
    """What the answer reads of a study's frames."""

    spec: StudySpec
    trials: pd.DataFrame
    correct: dict[int, Correct]
    num_images: int
    place: str = ""
    plugin: str = ""
    origin: StudyOrigin | None = None
    probes: pd.DataFrame = field(default_factory=pd.DataFrame)
    evaluations: pd.DataFrame = field(default_factory=pd.DataFrame)

    @property
    def data(self) -> DataSummary:
        """The images of the study."""
        return DataSummary(name="digits", num_train=1000, num_val=self.num_images, num_test=0, digest="made")

    @property
    def inputs(self) -> dict[str, StudyInputs]:
        """Those of the one study."""
        return {self.spec.name: StudyInputs(data=self.data)}

    def find_commands(self, name: str) -> StudyCommands:
        """Commands about the study ``name``, as those of real frames."""
        return find_study_commands(name, self.spec, self.place, self.origin, self.plugin)

    def find_correct(self, _study: str, numbers: Sequence[int]) -> dict[int, Correct]:
        """Which images trials got right."""
        return {number: self.correct[number] for number in numbers}


def make_spec(truth: Truth, num_trials: int, seed: int, **changes: Any) -> StudySpec:
    """The study over batch size, learning rate and the truth's models."""
    space: dict[str, Any] = {
        "batch.micro": {"choice": list(BATCHES)},
        "optimizer.lr": {"log": [1e-3, 1e-1]},
    }
    if len(truth.models) > 1:
        space["model.name"] = {"choice": list(truth.models)}
    base = {"data.name": "digits"} | ({} if len(truth.models) > 1 else {"model.name": truth.models[0]})
    table = {"name": "made", "trials": num_trials, "seed": seed, "sampler": "cost_aware", "space": space, "base": base}
    return build_study(table | changes, "made")


class MadeStudy:
    """Runs one study on ``truth``; ``num_images`` validation images are drawn once for all its trials."""

    def __init__(self, truth: Truth, spec: StudySpec, num_images: int, seed: int) -> None:
        self.truth, self._spec = truth, spec
        self._rng = np.random.default_rng(seed)
        self._difficulty = self._rng.standard_normal(num_images)
        self._own: dict[str, np.ndarray[Any, np.dtype[np.float64]]] = {}
        self._correct: dict[int, Correct] = {}
        self._rows: list[dict[str, Any]] = []
        self.records: list[TrialRecord] = []

    def run(self) -> MadeFrames:
        """Searches and confirms to the end."""
        sampler = make_sampler(self._spec, [])
        for index in range(self._spec.trials):
            values = sampler.propose(index)
            if values is None:
                break
            self._train(self._spec.config(values), "search")
            sampler.learn(self.records[-1])
        while due := list_confirmations(self.frames, self.records, self._spec):  # type: ignore[arg-type]
            self._train(due[0], "confirm")
        return self.frames

    @property
    def frames(self) -> MadeFrames:
        """The records so far."""
        trials = pd.DataFrame(self._rows, columns=_COLUMNS)
        for name in METRICS:
            trials[name] = pd.to_numeric(trials[name]).astype("Float64")
        return MadeFrames(self._spec, trials, self._correct, len(self._difficulty))

    def _train(self, config: TrialConfig, phase: Any) -> None:
        number, model, batch = len(self.records), config.model.name, config.global_batch_size
        accuracy = self.truth.accuracy(model, batch, config.optimizer.lr)
        accuracy += self.truth.noise(model, batch) * self._rng.standard_normal()
        correct = self._evaluate(config, float(np.clip(accuracy, 0.01, 0.999)))
        seconds = seconds_of(model, batch) * float(np.exp(_TIME_NOISE * self._rng.standard_normal()))
        measured: dict[str, float | int] = {
            "val_accuracy": float(correct.mean()),
            "train_seconds": seconds,
            "total_seconds": seconds + 1.0,
            "peak_memory_bytes": memory_of(model, batch),
        }
        values = flatten_config(config)
        self._correct[number] = correct
        self.records.append(
            TrialRecord(
                number=number, phase=phase, values=values, outcome="complete", measurements=measured, device="made"
            )
        )
        row = {f"config.{key}": value for key, value in values.items()} | measured
        row |= {"study": self._spec.name, "number": number, "phase": phase, "outcome": "complete", "device": "made"}
        row |= {"seed": config.seed, "global_batch_size": batch, "quality_flags": "", "error": "", "reused_from": ""}
        self._rows.append(row)

    def _evaluate(self, config: TrialConfig, accuracy: float) -> Correct:
        # an image is right where its latent difficulty is below the accuracy's quantile
        key, size = config.model_copy(update={"seed": 0}).model_dump_json(), len(self._difficulty)
        if key not in self._own:
            self._own[key] = self._rng.standard_normal(size)
        latent = np.sqrt(_COMMON) * self._difficulty + np.sqrt(_OWN) * self._own[key]
        latent += np.sqrt(1.0 - _COMMON - _OWN) * self._rng.standard_normal(size)
        return np.asarray(latent < ndtri(accuracy))


_COLUMNS = [
    "study", "number", "phase", "outcome", "seed", *(f"config.{key}" for key in config_keys()), "global_batch_size",
    *METRICS, "device", "quality_flags", "error", "reused_from",
]  # fmt: skip
