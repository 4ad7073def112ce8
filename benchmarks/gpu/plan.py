"""The pieces of a day with a GPU and the questions that each of them answers, from ``plan.toml``. Imports no torch."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sweep.config.errors import InputError, describe_unknown

PIECE_SECONDS = 480.0  # of one piece, at most
TOTAL_SECONDS = 2_400.0  # of all pieces by their estimates
State = Literal["", "running", "done", "cut short", "failed"]


@dataclass(frozen=True, kw_only=True)
class Question:
    """``at_least`` or ``at_most`` is its goal, if it has one. The outcome was predicted to be from ``low`` to ``high``,
    ``because`` of what it was computed from."""

    piece: str
    text: str
    low: float
    high: float
    because: str
    at_least: float | None = None
    at_most: float | None = None
    least_n: int = 1
    needs_gpu: str = ""

    def is_met(self, measured: float | None, n: int) -> bool | None:
        """Whether ``measured`` from ``n`` measurements meets the goal; None where there is no goal."""
        if self.at_least is None and self.at_most is None:
            return None
        if measured is None or n < self.least_n:
            return False
        return measured >= self.at_least if self.at_least is not None else measured <= (self.at_most or 0.0)

    @property
    def goal(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g}"
        return "" if self.at_most is None else f"≤ {self.at_most:g}"

    @property
    def predicted(self) -> str:
        return f"{self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"

    def judge(self, measured: float | None) -> str:
        """``as predicted``, ``below`` or ``above``; empty where nothing was measured."""
        if measured is None:
            return ""
        return "below" if measured < self.low else "above" if measured > self.high else "as predicted"


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One process."""

    name: str
    seconds: float
    because: str
    differs: str

    @property
    def limit_seconds(self) -> float:
        return min(PIECE_SECONDS, 60.0 + 1.5 * self.seconds)

    @property
    def questions(self) -> dict[str, Question]:
        return {name: question for name, question in QUESTIONS.items() if question.piece == self.name}


_PLAN = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
PIECES = {name: Piece(name=name, **about) for name, about in _PLAN["pieces"].items()}
QUESTIONS = {name: Question(**about) for name, about in _PLAN["questions"].items()}


def choose_pieces(only: str | None) -> list[Piece]:
    """The pieces of ``only``, names with commas between them, in their order; all without it."""
    names = [name.strip() for name in only.split(",")] if only else list(PIECES)
    for name in names:
        if name not in PIECES:
            raise InputError(describe_unknown("piece", name, PIECES))
    return [piece for piece in PIECES.values() if piece.name in names]


def order_pieces(chosen: list[Piece], states: Mapping[str, str]) -> list[Piece]:
    """What is left of ``chosen``: what was never tried or cut short in order, then what failed; not what is done."""
    left = [piece for piece in chosen if states.get(piece.name, "") in ("", "cut short")]
    return [*left, *(piece for piece in chosen if states.get(piece.name) == "failed")]
