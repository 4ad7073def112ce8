"""A table of learning curves that follow simple laws with noise: what a search meets, and what is true of it."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import flatten_config
from sweep.records.messages import Evaluation
from sweep.records.records import TrialRecord

MICRO = [16, 32, 64, 128, 256]
RATES = [0.003, 0.01, 0.03, 0.1, 0.3]
DECAYS = [0.0, 0.003]
NUM_EVALUATIONS = 9
NUM_VALIDATION = 500
OBJECTIVES = ("val_accuracy", "train_seconds", "peak_memory_bytes")


def table_spec(**fields: object) -> StudySpec:
    return build_study(
        {
            "name": "curves",
            "objectives": list(OBJECTIVES),
            "base": {"budget.epochs": NUM_EVALUATIONS},
            "space": {
                "model.name": {"choice": ["resnet8", "vit_micro"]}, "batch.micro": {"log2": [4, 8]},
                "batch.accumulation": {"choice": [1, 4]}, "optimizer.lr": {"choice": RATES},
                "optimizer.weight_decay": {"choice": DECAYS},
            },
            **fields,
        },
        "test",
    )  # fmt: skip


@dataclass
class CurveTable:
    """Every point of the space, with the mean of its end and one curve for a seed.

    Large batches learn slowly and end high where the rate follows them; high rates start fast and end lower; a vision
    transformer rises late. ``difficulty`` lowers what can be reached, ``noise`` is the seeds' deviation.
    """

    spec: StudySpec
    seed: int
    difficulty: float = 0.1
    noise: float = 0.006
    points: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        keys = ("model.name", "batch.micro", "batch.accumulation", "optimizer.lr", "optimizer.weight_decay")
        for values in itertools.product(("resnet8", "vit_micro"), MICRO, (1, 4), RATES, DECAYS):
            self.points.append(dict(zip(keys, values, strict=True)))
        rng = np.random.default_rng(self.seed)
        self._quirks = rng.normal(0.0, 0.01, len(self.points))
        self._best_log_rate = rng.uniform(-2.0, -1.0)

    def costs(self, index: int) -> tuple[float, float]:
        """Seconds of the whole training, bytes."""
        point = self.points[index]
        slow = 2.5 if point["model.name"] == "vit_micro" else 1.0
        micro, accumulation = int(str(point["batch.micro"])), int(str(point["batch.accumulation"]))
        seconds = slow * (4.0 + 200.0 / micro + 30.0 / (micro * accumulation))
        return seconds, slow * (1e6 + 4e4 * micro * (1.1 if accumulation > 1 else 1.0))

    def mean_end(self, index: int) -> float:
        """The accuracy at the end, over all seeds."""
        return float(np.clip(self._curve(index)[-1], 0.0, 1.0))

    def _curve(self, index: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        point = self.points[index]
        batch = int(str(point["batch.micro"])) * int(str(point["batch.accumulation"]))
        rate = float(str(point["optimizer.lr"]))
        miss = np.log10(rate) - self._best_log_rate - 0.4 * np.log10(batch / 64)
        late = 1.6 if point["model.name"] == "vit_micro" else 1.0
        end = 1.0 - self.difficulty * late - 0.05 * max(miss, 0.0) ** 2 - 0.02 * np.log2(batch / 16) ** 2 / 16
        end += self._quirks[index] + (0.005 if point["optimizer.weight_decay"] else 0.0)
        speed = 6.0 * 10.0 ** (0.5 * min(miss, 0.5)) / late * (64 / batch) ** 0.15
        shares = np.arange(1, NUM_EVALUATIONS + 1) / NUM_EVALUATIONS
        risen = 1.0 - np.exp(-speed * shares**late)
        return np.asarray(0.1 + (end - 0.1) * risen)

    def evaluations(self, index: int, seed: int) -> Iterator[Evaluation]:
        """One training's curve, counted on the validation images."""
        rng = np.random.default_rng((self.seed, index, seed))
        lift = rng.normal(0.0, self.noise)
        seconds, _ = self.costs(index)
        for number, mean in enumerate(self._curve(index), start=1):
            early = 1.0 + 3.0 * (1.0 - number / NUM_EVALUATIONS)
            seen = np.clip(mean + lift + rng.normal(0.0, self.noise / 2 * early), 0.0, 1.0)
            accuracy = round(float(seen) * NUM_VALIDATION) / NUM_VALIDATION
            share = number / NUM_EVALUATIONS
            yield Evaluation(
                step=number * 10, epoch=number, samples=number * 640, train_seconds=seconds * share, train_loss=1.0,
                val_loss=1.0 - accuracy, val_accuracy=accuracy, learning_rate=0.1, global_batch_size=64,
            )  # fmt: skip

    def record(self, index: int, number: int, evaluation: Evaluation | None = None, **fields: object) -> TrialRecord:
        """The trial of a point: running without an evaluation, else complete with that as its last."""
        values = flatten_config(self.spec.config(self.points[index]))
        if evaluation is None:
            return TrialRecord(
                number=number, phase="search", values=values, outcome=None, measurements={}, trial_key=f"k{index}"
            )
        measured = {
            "val_accuracy": evaluation.val_accuracy,
            "val_loss": evaluation.val_loss,
            "train_seconds": evaluation.train_seconds,
            "peak_memory_bytes": self.costs(index)[1],
        }
        whole = {"outcome": "complete", "measurements": measured, **fields}
        return TrialRecord(number=number, phase="search", values=values, trial_key=f"k{index}", **whole)  # type: ignore[arg-type]

    def front(self) -> set[int]:
        """The points of the true front."""
        from sweep.analysis.statistics import non_dominated

        rows = np.array([[-self.mean_end(index), *self.costs(index)] for index in range(len(self.points))])
        return set(np.flatnonzero(non_dominated(rows)).tolist())
