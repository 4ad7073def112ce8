"""The questions of the guide, which are put on a terminal one after another or answered by options."""

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import typer

from sweep.cli.arguments import parse_duration
from sweep.cli.output import print_lines
from sweep.config.errors import InputError, describe_unknown
from sweep.config.tables.datasets import DATASETS
from sweep.config.tables.models import MODELS
from sweep.search.ask import TARGETS, Answers, check_budget

T = TypeVar("T")


class Question(NamedTuple):
    """One question: the option that answers it, its text, and the answer that is taken without one."""

    option: str
    text: str
    default: str = ""


DATA = Question("--data", "Which data set, or which folder of images with a folder for each class?", "digits")
_TARGET = Question(
    "--target", f"What counts most: {', '.join(f'{name} ({text})' for name, text in TARGETS.items())}?", "balanced"
)
_WEIGHTS = Question("--weights", "Fine-tuning from a file of weights? (empty: training from scratch)")
_MODEL = Question("--model", "Which model are the weights of?")
_DEVICES = Question("--devices", "How many devices train one model together?", "1")
_BATCH = Question("--batch", "An effective batch size that must be compared, as from a paper? (empty: none)")
_BUDGET = Question("--budget", "How long may it take, such as 30m? (empty: only the file is written)")
QUESTIONS = (DATA, _TARGET, _WEIGHTS, _DEVICES, _BATCH, _BUDGET)


@dataclass(frozen=True)
class Replies:
    """The answers with the seconds that the study may take; None where it is not to be run."""

    answers: Answers
    budget_seconds: float | None


def check_terminal(*, takes_defaults: bool) -> None:
    """Raises ``InputError`` with the options where questions cannot be put."""
    if takes_defaults or sys.stdin.isatty():
        return
    options = "\n".join(f"  {each.option:10} {each.text} [{each.default or 'none'}]" for each in QUESTIONS)
    raise InputError(
        "standard input is not a terminal, so that no question can be put. Run `sweep ask FILE.toml --yes`, and give "
        f"what differs from the defaults by its options:\n{options}"
    )


def put_question(question: Question, given: str | None, parse: Callable[[str], T], *, takes_defaults: bool) -> T:
    """The parsed answer to ``question``: the one ``given`` by its option, the default, or what is typed. What is typed
    and not valid is followed by the reason and the same question.

    Raises:
        InputError: what was given by the option is not valid.
    """
    if given is not None or takes_defaults:
        return parse(question.default if given is None else given.strip())
    while True:
        text = str(typer.prompt(question.text, default=question.default, show_default=bool(question.default))).strip()
        try:
            return parse(text)
        except InputError as error:
            print_lines([str(error)], err=True)


def collect_replies(
    data: str, given: Mapping[str, str | None], models: tuple[str, ...], *, num_devices: int, takes_defaults: bool
) -> Replies:
    """All answers, of which that on the ``data`` is known; ``given`` are the others by option. The number of
    devices is a question only where there are several, the model only where there are weights.

    Raises:
        InputError: an answer that was given by an option is not valid.
    """

    def reply(question: Question, parse: Callable[[str], T]) -> T:
        is_known = takes_defaults or (question is _DEVICES and num_devices == 1)
        return put_question(question, given.get(question.option), parse, takes_defaults=is_known)

    models = tuple(map(_parse_model, models))
    target, weights = reply(_TARGET, _parse_target), reply(_WEIGHTS, _parse_weights)
    if weights is not None and not models:
        models = (reply(_MODEL, _parse_model),)
    if weights is not None and len(models) != 1:
        raise InputError("--weights fit one model: name it with --model.")
    devices = reply(_DEVICES, partial(_parse_devices, num_devices))
    batch = reply(_BATCH, partial(_parse_batch, devices))
    budget = reply(_BUDGET, _parse_budget)
    name, root = find_data(data)
    answers = Answers(
        data=name, data_root=root, models=models, target=target, weights=weights, num_devices=devices, batch=batch
    )
    return Replies(answers, budget)


def find_data(text: str) -> tuple[str, str | None]:
    """The data set and its root that ``text`` names: a data set, or a folder of images.

    Raises:
        InputError: it is neither.
    """
    if text in DATASETS:
        return text, None
    if Path(text).is_dir():
        return "imagefolder", text
    if "/" in text or os.sep in text:
        raise InputError(f"--data {text}: there is no such folder; give the path of a folder of images.")
    raise InputError(f"--data: {describe_unknown('data set', text, DATASETS)} Or give the path of a folder of images.")


def _parse_count(question: Question, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"{question.option} {text}: give a whole number from 1 on.")
    return int(text)


def _parse_devices(present: int, text: str) -> int:
    count = _parse_count(_DEVICES, text)
    if count > present:
        here = "no GPU or a single one" if present == 1 else f"{present} GPUs"
        raise InputError(
            f"--devices {count}: this machine has {here}; give at most {present}. Several ranks on one processor show "
            f"that the trainings run, not what they cost: for that give --set distributed.world_size={count}."
        )
    return count


def _parse_target(text: str) -> str:
    if text not in TARGETS:
        raise InputError(f"--target: {describe_unknown('target', text, TARGETS)}")
    return text


def _parse_weights(text: str) -> str | None:
    if text and not Path(text).is_file():
        raise InputError(f"--weights {text}: no such file; give a .safetensors or torch file.")
    return text or None


def _parse_model(text: str) -> str:
    if not text:
        raise InputError("--weights fit one model: name it with --model.")
    if text not in MODELS:
        raise InputError(f"--model: {describe_unknown('model', text, MODELS)}")
    return text


def _parse_budget(text: str) -> float | None:
    seconds = parse_duration(text or None, "--budget")
    if seconds is not None:
        check_budget(seconds)
    return seconds


def _parse_batch(devices: int, text: str) -> int | None:
    size = _parse_count(_BATCH, text) if text else None
    if size is not None and size % devices:
        raise InputError(f"--batch {size}: {devices} devices cannot share it evenly; give a multiple of {devices}.")
    return size
