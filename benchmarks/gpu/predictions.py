"""What each question was predicted to come to before a GPU was there, and what came of it. Imports no torch."""

import math
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.gpu.questions import QUESTIONS

FILE = Path(__file__).parent / "predictions.toml"


@dataclass(frozen=True)
class Prediction:
    """An interval that holds the outcome with a probability of about 80 %, and where it comes from."""

    low: float
    high: float
    because: str

    @property
    def range(self) -> str:
        """As text."""
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"


@cache
def load_predictions(path: Path = FILE) -> dict[str, Prediction]:
    """By the names of their questions; exactly one each.

    Raises:
        ValueError: a question has none, or there is one without a question, or an interval is no interval.
    """
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    if different := tables.keys() ^ QUESTIONS.keys():
        raise ValueError(f"{path.name} and the questions differ by {', '.join(sorted(different))}")
    found = {name: Prediction(**table) for name, table in tables.items()}
    for name, each in found.items():
        if not (math.isfinite(each.low) and each.low <= each.high and each.because):
            raise ValueError(f"{path.name}: {name} requires low <= high and a reason")
    return found


def judge_prediction(prediction: Prediction, measured: float | None) -> str:
    """``as predicted``, ``below`` or ``above``; empty where nothing was measured."""
    if measured is None:
        return ""
    if measured < prediction.low:
        return "below"
    return "above" if measured > prediction.high else "as predicted"
