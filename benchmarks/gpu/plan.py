"""The pieces of a day with a GPU and the questions that each of them answers. Imports no torch."""

from dataclasses import dataclass
from typing import Literal

from benchmarks.gpu.questions import QUESTIONS, Question
from sweep.config.errors import InputError, describe_unknown

PIECE_SECONDS = 480.0  # of one piece, at most
TOTAL_SECONDS = 2_400.0  # of all pieces by their estimates


@dataclass(frozen=True, kw_only=True)
class Piece:
    """One process. ``module`` holds its measure; ``seconds`` is an estimate for an H100 or H200, ``because`` of it."""

    name: str
    module: str
    seconds: float
    because: str
    differs: str  # how a rehearsal on a CPU differs

    @property
    def limit_seconds(self) -> float:
        """After which the piece is ended."""
        return min(PIECE_SECONDS, 60.0 + 1.5 * self.seconds)

    @property
    def questions(self) -> dict[str, Question]:
        """What it answers."""
        return {name: question for name, question in QUESTIONS.items() if question.piece == self.name}


def _piece(name: str, module: str, seconds: float, because: str, differs: str) -> Piece:
    return Piece(
        name=name, module=f"benchmarks.gpu.measures.{module}", seconds=seconds, because=because, differs=differs
    )


_STEP = "16 images in micro batches of 8, no compilation, no MFU (the peak of a CPU is not known)"
# In the order of their importance: what is wrong first, then what the most depends on.
_ORDERED = (
    _piece(
        "tests",
        "checks",
        300,
        "48 trainings of digits of 2.5 s, 6 of them to compile in 15 s, 80 tests of 1 to 2 s",
        "every test is skipped, so collecting them is tried",
    ),
    _piece("input", "ratios", 60, "6 pairs of 2.5 s of a DataLoader, decoding the archive 10 s", "600 images of noise"),
    _piece("step_resnet18", "steps", 150, "6 rounds of 5 s plain fp32, 3 s plain bf16 and 12 s ours to compile", _STEP),
    _piece("step_vit_small", "steps", 180, "6 rounds of 10 s plain fp32, 3 s plain bf16 and 12 s to compile", _STEP),
    _piece(
        "memory",
        "memory",
        240,
        "28 configurations of 2 trainings and a forecast, 3 s each",
        "2 configurations of micro batch 4, no edge (the allocator of a CPU has no limit)",
    ),
    _piece("harness", "ratios", 45, "10 pairs of 20 epochs of digits, 1 s each", "1 pair of 2 epochs of 200 images"),
    _piece("monitor", "ratios", 30, "22 pairs of 120 steps of 3 ms", "1 pair of 20 steps; NVML is not read"),
    _piece(
        "recipe",
        "recipe",
        220,
        "16 trainings of 2 s of the recipe and 16 of 3 s of ours, 5 s to compile each, 40 s before the first",
        "1 length, 2 seeds, 64 images, float32 instead of half weights, no compilation, no graph",
    ),
    _piece(
        "packed",
        "packed",
        240,
        "3 kinds of: 4 s to calibrate, 3 trials alone of 6 s, then 2, 4, 8 and 16 at once in 8 to 20 s",
        "1 trial of 2 steps, 2 at once; no MPS",
    ),
    _piece(
        "study",
        "study",
        340,
        "search for 3/5 of its time: trials of 2 epochs in 2 s, with 3 s around each; then fresh seeds",
        "quickstart instead of cifar10_resnet, 3 trials on 100 images, no sensor",
    ),
    _piece(
        "vit",
        "cifar",
        240,
        "150 epochs of 1 s at most, 40 s before the first step",
        "vit_micro to 1 % on 64 images of noise",
    ),
    _piece("wait", "ratios", 30, "6 trainings of 2 epochs, 2 s each", "1 training of 16 images"),
    _piece("noise", "ratios", 45, "6 pairs of 4 trainings of 0.8 s", "1 pair of 2 epochs of 200 images"),
    _piece(
        "out_of_memory",
        "checks",
        50,
        "36 trainings of 1 s",
        "4 trainings of resnet8 on 64 images; memory is not made to run out",
    ),
    _piece("pairs", "packed", 45, "20 trials alone and 20 packed, 1 s each", "2 trials of 1 epoch"),
    _piece(
        "resnet18",
        "cifar",
        130,
        "10 trainings of 16 epochs of 45,000 images at 80,000 a second, 6 s to compile and evaluate",
        "2 trainings of resnet8, 1 epoch of 64 images, no compilation",
    ),
    _piece("bounds", "bounds", 50, "4 rates at 5 counts, 1 s each, 25 s to prepare", "no captured steps; 2 counts"),
)
PIECES = {piece.name: piece for piece in _ORDERED}


def choose_pieces(only: str | None) -> list[Piece]:
    """The pieces of ``only``, names with commas between them, in their order; all without it.

    Raises:
        InputError: for an unknown name.
    """
    names = [name.strip() for name in only.split(",")] if only else list(PIECES)
    for name in names:
        if name not in PIECES:
            raise InputError(describe_unknown("piece", name, PIECES))
    return [piece for piece in PIECES.values() if piece.name in names]


State = Literal["", "done", "cut short", "failed"]


def order_pieces(chosen: list[Piece], states: dict[str, State]) -> list[Piece]:
    """What is left of ``chosen``: what was never tried or cut short in order, then what failed; not what is done."""
    left = [piece for piece in chosen if states.get(piece.name, "") in ("", "cut short")]
    return [*left, *(piece for piece in chosen if states.get(piece.name) == "failed")]
