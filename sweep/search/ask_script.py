"""The guide for a script: what it takes, one training with its own values, and the study that fits into a budget."""

import math
import os
import re
import shlex
import subprocess
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from sweep.config.errors import InputError
from sweep.config.script import PLACEHOLDER, ScriptSection
from sweep.config.sections import round_up_duration
from sweep.config.study import FEWEST_CONFIGURATIONS, FEWEST_SEEDS, StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import build_config
from sweep.executors.table import device_type
from sweep.probing.cost_model import interpolate
from sweep.records.messages import ScriptCommand, TrialTask
from sweep.script.check import ScriptCheck, check_script
from sweep.script.runner import NO_REPORT, prepare_call, probe_script
from sweep.search.ask import NUM_SEEDED, ROOM, USED, Setting, choose_confirm_share, write_tables
from sweep.search.session import Options

# Names of flags and of overrides, in lower case with "_", for the keys of a study; the usual ones of argparse scripts
# and of frameworks.
_NAMES = {
    "batch.micro": ("batch_size", "per_device_train_batch_size", "train_batch_size", "micro_batch_size", "batchsize",
                    "batch", "bs"),
    "batch.accumulation": ("gradient_accumulation_steps", "accumulation_steps", "grad_accum_steps", "grad_accumulation",
                           "accumulate_grad_batches", "grad_accum", "accumulation", "accumulate"),
    "optimizer.lr": ("learning_rate", "lr", "lr0", "base_lr", "max_lr"),
    "optimizer.weight_decay": ("weight_decay", "wd"),
    "seed": ("seed", "random_seed", "manual_seed"),
    "budget.epochs": ("epochs", "num_epochs", "num_train_epochs", "max_epochs", "n_epochs"),
    "budget.steps": ("max_steps", "num_steps", "train_steps", "max_iters", "num_iters", "steps", "iters"),
}  # fmt: skip
_KEY_OF = {name: key for key, names in _NAMES.items() for name in names}
_HELPERS = re.compile(r"\b(argparse|click|typer|tyro|fire|absl|hydra|HfArgumentParser|simple_parsing|jsonargparse)\b")
_FLAG = re.compile(r"(?<![\w-])--([A-Za-z][\w.-]*)")
_OVERRIDE = re.compile(r"^( *)([A-Za-z_][\w]*):(?: +(\S.*))?$", re.MULTILINE)  # of the configuration that Hydra prints
_ASSIGNED = re.compile(r"--|[A-Za-z_][\w.]*=")  # a flag, or an override
_HELP_SECONDS = 60.0
_BASELINE_SHARE = 0.2  # of the budget, at most, for a training with the script's own values
_REPORT_SECONDS = 15.0
_FEWEST_BATCHES = 2
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the script's own batch size
_RATES = 8.0  # the learning rate is searched from its own over this to its own times this
_LEAST_STEPS = 4  # of a pass over the data
_MOST_TRIALS, _USUAL_TRIALS = 1000, 5  # of a batch size without a budget


@dataclass(frozen=True, kw_only=True)
class ScriptTask:
    """What the guide makes a study of: the ``script`` with the user's command, the seconds that all may take from
    ``began`` on (by ``time.monotonic``; None: as long as it requires) and a batch size to compare with; None: the
    script's own."""

    name: str
    file: Path  # of the study, to be written
    script: ScriptSection
    options: Options
    budget_seconds: float | None = None
    batch: int | None = None
    began: float = field(default_factory=time.monotonic)


class ScriptFacts(NamedTuple):
    """What the script takes and did: the command with a place for each value that it takes, the ``keys`` that it takes,
    and the measurements of one training with its own values, which is ``whole`` unless it was cut."""

    command: tuple[str, ...]
    keys: frozenset[str]
    measured: Mapping[str, float]
    is_whole: bool
    num_epochs: float  # of the training, 0 where no pass over the data was seen to end

    @property
    def batch(self) -> int:
        return int(self.measured["observed_batch_size"])

    @property
    def other_seconds(self) -> float:
        """Of a training, besides its steps."""
        return max(self.measured["total_seconds"] - self.measured["train_seconds"], 0.0)

    @property
    def samples(self) -> float:
        """Of the training, or of the part of it that was timed."""
        return self.measured["num_steps"] * self.batch


class _Plan(NamedTuple):
    """The size of the study: its batch sizes, the number of search trials, its seconds where there is a budget, and the
    share of the data of the script's own training that a training takes."""

    batches: tuple[int, ...]
    num_trials: int
    confirm_share: float
    seconds: float | None = None
    share: float = 1.0
    left_out: tuple[str, ...] = ()  # for lack of time
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class GuidedScript:
    """The text of the study file, what the script follows, the batch size to compare with, what was decided, and what
    was left out for lack of time."""

    text: str
    check: ScriptCheck
    batch: int
    notes: tuple[str, ...]
    left_out: tuple[str, ...]


class Places(NamedTuple):
    """The words to add to a command for each key that the script takes by a flag or an override, and the last line of
    its ``--help`` where that ``failure`` hid flags."""

    words: dict[str, tuple[str, ...]]
    failure: str = ""


def find_places(script: ScriptSection) -> Places:
    """What the command of ``script`` has no place for yet: by the flags and overrides in the command, and by those that
    its ``--help`` prints, which is run if its file imports a library that answers it."""
    printed, failure = _print_help(script)
    given = [word for word in _drop_places(script.command) if _ASSIGNED.match(word)]
    names = [word.partition("=")[0].lstrip("-") + "=" * (not word.startswith("-")) for word in given]
    names += [name.rstrip(".") for name in _FLAG.findall(printed)]
    names += _list_overrides(printed)
    words: dict[str, tuple[str, ...]] = {}
    for name in names:
        key = _KEY_OF.get(name.rpartition(".")[2].lower().replace("-", "_").rstrip("="))
        if key and key not in words and key not in script.placeholders:
            words[key] = (f"{name}{{{key}}}",) if name.endswith("=") else (f"--{name}", f"{{{key}}}")
    return Places(words, failure)


def _print_help(script: ScriptSection) -> tuple[str, str]:
    # what it prints, and the last line if it fails
    if script.file is None or not _HELPERS.search(script.file.read_text(errors="replace")):
        return "", ""
    arguments, environment = prepare_call(
        ScriptCommand(
            arguments=(*_drop_places(script.command), "--help"), folder=script.folder, metric=script.metric,
            environment={"COLUMNS": "200", **script.environment},
        )
    )  # fmt: skip
    try:
        ended = subprocess.run(
            arguments, cwd=script.folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True,
            text=True, errors="replace", timeout=_HELP_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return "", f"it took longer than {_HELP_SECONDS:.0f} s"
    except OSError as error:
        return "", str(error.strerror)
    return ended.stdout, (ended.stderr.strip() or "no output").splitlines()[-1][:200] if ended.returncode else ""


def _list_overrides(printed: str) -> Iterator[str]:
    # the dotted names of the values in the YAML that Hydra prints
    if "hydra" not in printed.lower():
        return
    parents: list[tuple[int, str]] = []
    for indent, name, value in _OVERRIDE.findall(printed):
        parents = [(depth, parent) for depth, parent in parents if depth < len(indent)]
        if value:
            yield ".".join([*(parent for _, parent in parents), name]) + "="
        else:
            parents.append((len(indent), name))


def _drop_places(command: Sequence[str]) -> tuple[str, ...]:
    # without the words that have a place, and the flags before them
    kept: list[str] = []
    for word in command:
        if not any(PLACEHOLDER.findall(word)):
            kept.append(word)
        elif PLACEHOLDER.fullmatch(word) and kept and kept[-1].startswith("-"):
            kept.pop()
    return tuple(kept)


def _put_places(command: Sequence[str], words: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    # a flag or an override that the command has already gets its place there
    placed = list(command)
    for of_key in words.values():
        first = of_key[0]
        name = first.partition("=")[0]
        if len(of_key) == 2 and first in placed[:-1]:
            placed[placed.index(first) + 1] = of_key[1]
            continue
        at = next((index for index, word in enumerate(placed) if word.startswith(f"{name}=")), None)
        if at is None:
            placed += of_key
        else:
            placed[at] = f"{name}={of_key[-1].rpartition('=')[2]}"
    return tuple(placed)


def look_at_script(task: ScriptTask) -> ScriptFacts:
    """Finds out what the script takes, and trains once with its own values, for at most a fifth of the budget. Raises
    ``InputError``: the script fails, or lacks something, with the lines to add."""
    script = task.script
    script.check()
    words, failure = find_places(script)
    limit = math.inf if task.budget_seconds is None else _BASELINE_SHARE * task.budget_seconds
    command = ScriptCommand(
        arguments=_drop_places(script.command), folder=script.folder, metric=script.metric,
        environment=dict(script.environment), timed_seconds=limit,
    )  # fmt: skip
    device = device_type(task.options.executor)
    probe = probe_script(TrialTask(number=0, config=build_config({}, "the script"), device=device, script=command))
    ending, measured = probe.ending, probe.ending.measurements
    is_cut = measured.get("train_seconds", 0.0) >= limit
    if "num_steps" not in measured:
        reason = ending.error or "no optimizer of torch took a step; call trial.step(samples) after each"
        raise InputError(f"{script.name}: no step of a training was seen: {reason}")
    if ending.outcome != "complete" and not ending.error.startswith(NO_REPORT):
        raise InputError(f"{script.name} failed with its own values ({ending.outcome}): {ending.error}")
    lacks, batch = list[str](), int(measured.get("observed_batch_size", 0))
    if not batch:
        lacks.append(
            f"{script.name}: its batches come from no DataLoader, so that their size was not seen. Loop over "
            "`sweep.trial().batches(LOADER)`, where LOADER gives one batch after the other."
        )
    keys = frozenset({*words, *script.placeholders, *probe.read})
    if not keys & {"batch.micro", "batch.global"}:
        hidden = f" Its --help failed: {failure}." if failure else ""
        lacks.append(
            f"{script.name} takes no batch size that is known here.{hidden} Name its flag, as in --script "
            f'"{shlex.join(script.command)} --my-batch {{batch.micro}}", or read the value in the script:\n'
            f"    trial = sweep.trial(batch_size={batch or '...'})  # then trial.batch_size\n"
            "The learning rate, the seed and the number of epochs are read in the same way: lr, seed, epochs."
        )
    if not probe.has_reported and (lacks or not is_cut):
        lacks.append(
            f"{script.name} reports no {script.metric}{f' within {limit:.0f} s' if is_cut else ''}. "
            "Add after its evaluation, with the value that it has there:\n"
            f"    import sweep\n    sweep.trial().report({script.metric}=...)"
        )
    if lacks:
        raise InputError("\n".join(lacks))
    # a place is left out if the value to put there is not known, and steps where epochs decide
    has_passes, has_rate = measured.get("num_epochs", 0.0) > 0, measured.get("observed_lr", 0.0) > 0
    keys -= {"budget.steps" if has_passes and "budget.epochs" in keys else "budget.epochs"}
    keys -= set() if has_rate else {"optimizer.lr"}
    words = {key: each for key, each in words.items() if key in keys - probe.read.keys()}
    command_words = _put_places(script.command, words)
    is_whole = probe.has_reported and not is_cut
    return ScriptFacts(command_words, keys, measured, is_whole, float(measured.get("num_epochs", 0.0)))


def make_script_study(task: ScriptTask, facts: ScriptFacts) -> GuidedScript:
    """Checks what the script follows, prices its trainings, and makes the study. Raises ``InputError``: the script does
    something else, or the budget is too short."""
    name, batches = task.script.name, _choose_batches(task, facts)
    if _is_hopeless(task, facts):  # before the check, which starts the script several times
        _choose_plan(task, facts, batches, {})
    check = check_script(_build(task, facts, _Plan(batches, 1, 1.0)), device_type(task.options.executor))
    notes = []
    if task.script.unit == "nats":
        notes.append(
            f"{task.script.metric} is taken for a cross-entropy, in nats; for another loss write "
            'unit = "number" under [script]'
        )
    for row in check.rows:
        if row.status == "FAIL" and row.setting != "seed":
            observed = f"{row.setting}: asked for {row.asked}, observed {row.observed}"
            raise InputError(f"{name} does not follow what it is asked. {observed}. To mend it: {row.remedy}.")
        if row.status == "FAIL" and "seed" in facts.keys:
            notes.append(f"{name} does not use its seed, so that fresh seeds tell nothing: {row.remedy}")
    if "optimizer.lr" not in facts.keys:
        notes.append(
            f"{name} takes no learning rate that is known here, so that no batch size is tuned; place {{optimizer.lr}} "
            "in its command, or read trial.lr"
        )
    if "seed" not in facts.keys:
        notes.append(f"{name} takes no seed; place {{seed}} in its command, or read trial.seed")
    costs = {size: cost for size, cost in check.costs.items() if "step_seconds_median" in cost}
    steps = {size: cost["step_seconds_median"] for size, cost in costs.items()}
    plan = _choose_plan(task, facts, batches, steps)
    head = ["Written by `sweep ask`. Run it with `sweep run THIS_FILE`."]
    text = write_tables(_list_settings(task, facts, plan), head)
    notes += [plan.note] * bool(plan.note)
    return GuidedScript(
        text=text, check=check, batch=task.batch or facts.batch, notes=tuple(notes), left_out=plan.left_out
    )


def _find_time_left(task: ScriptTask) -> float:
    budget = math.inf if task.budget_seconds is None else task.budget_seconds
    return budget - (time.monotonic() - task.began) - _REPORT_SECONDS


def _is_hopeless(task: ScriptTask, facts: ScriptFacts) -> bool:
    """Whether the smallest question does not fit even if its trainings have half of the steps, or one epoch of them."""
    share = 0.0 if "budget.steps" in facts.keys else 0.5
    if "budget.epochs" in facts.keys:
        share /= max(facts.num_epochs, 1.0)
    each = facts.other_seconds + share * facts.measured["train_seconds"]
    return _FEWEST_BATCHES * FEWEST_CONFIGURATIONS * each > _find_time_left(task)


def _choose_batches(task: ScriptTask, facts: ScriptFacts) -> tuple[int, ...]:
    # about the script's own, with enough steps in a pass over the data
    in_pass = facts.samples / facts.num_epochs if facts.num_epochs else facts.samples
    most = max(in_pass / _LEAST_STEPS, facts.batch)
    sizes = {max(round(factor * facts.batch), 1) for factor in _FACTORS}
    return tuple(sorted({size for size in sizes if size <= most} | ({task.batch} if task.batch else set())))


def _choose_plan(task: ScriptTask, facts: ScriptFacts, batches: tuple[int, ...], steps: Mapping[int, float]) -> _Plan:
    # by the seconds of the steps that were timed
    if task.budget_seconds is None:
        num_trials = _USUAL_TRIALS * len(batches)
        return _Plan(batches, num_trials, choose_confirm_share(num_trials))
    left, kept = _find_time_left(task), batches
    while True:
        mean = sum(_price(facts, size, steps) for size in kept) / len(kept)
        confirm_share = choose_confirm_share(max(int(left / mean) - NUM_SEEDED, 1))
        num_searched, least = left / (1.0 + USED * confirm_share) / mean, FEWEST_CONFIGURATIONS * len(kept)
        if num_searched >= least or len(kept) <= _FEWEST_BATCHES:
            break
        kept = _thin_out(kept, task.batch or facts.batch)
    absent = [str(size) for size in batches if size not in kept]
    left_out = [f"the batch size{'s' * (len(absent) > 1)} {', '.join(absent)}"] if absent else []
    # what comes besides the steps, such as the start and the evaluation, is not shortened
    affordable = left / (1.0 + USED * confirm_share) / least
    share = min(max(affordable - facts.other_seconds, 0.0) / (mean - facts.other_seconds), 1.0)
    if share < 1.0 or not facts.is_whole:
        length = _choose_length(facts, share)
        if length is None:
            needed = least * (1.0 + USED * confirm_share) * mean + task.budget_seconds - left
            has_length = bool({"budget.epochs", "budget.steps"} & facts.keys)
            shorten = "or place {budget.epochs} or {budget.steps} in the command, so that a training can be shortened."
            seconds = f"{'about' if facts.is_whole else 'more than'} {mean:,.0f} s"
            seconds += f", {facts.other_seconds:,.0f} s of it for the start and the evaluation"
            raise InputError(
                f"--budget: a training takes {seconds}, and the smallest question takes {least} trainings and fresh "
                f"seeds. Give --budget {round_up_duration(needed)} or more, "
                f"{'or make a training shorter.' if has_length else shorten}"
            )
        left_out.append(f"the script's own length: a training has {length.key} = {length.value}")
        mean, num_searched = min(mean, affordable), max(num_searched, least)
    seconds = f"about {num_searched:.0f} fit, and {USED * confirm_share * num_searched:.0f} with fresh seeds"
    num_trials = min(math.ceil(ROOM * num_searched), _MOST_TRIALS)
    note = f"a training takes about {mean:.2g} s: {seconds}"
    return _Plan(kept, num_trials, confirm_share, left, share, tuple(left_out), note)


def _choose_length(facts: ScriptFacts, share: float) -> Setting | None:
    """So much of the script's own training, in epochs where it takes these, otherwise in samples where it takes the
    number of steps, so that all batch sizes see the same data. None: it takes neither, or too
    little of it fits."""
    reason = "its own" if share == 1.0 and facts.is_whole else "the time allows so many"
    if "budget.epochs" in facts.keys:
        epochs = math.floor(share * facts.num_epochs + 0.01)
        return Setting("budget.epochs", epochs, reason) if epochs else None
    if "budget.steps" in facts.keys and share > 0.0:
        return Setting(
            "budget.samples", math.ceil(share * facts.samples), f"{reason}; steps are these over a batch size"
        )
    return None


def _price(facts: ScriptFacts, size: int, step_seconds: Mapping[int, float]) -> float:
    """The seconds of a training at a batch size: those with the script's own values, with steps as they were timed."""
    measured, per_step = facts.measured, dict(step_seconds)
    per_step.setdefault(facts.batch, measured["train_seconds"] / measured["num_steps"])
    return facts.other_seconds + facts.samples / size * interpolate(per_step, size)


def _thin_out(batches: tuple[int, ...], own: int) -> tuple[int, ...]:
    # without the one that is farthest from its own; of equally far ones without the smaller, which takes longer
    farthest = max((size for size in batches if size != own), key=lambda size: (abs(math.log(size / own)), -size))
    return tuple(size for size in batches if size != farthest)


def _build(task: ScriptTask, facts: ScriptFacts, plan: _Plan) -> StudySpec:
    table = tomllib.loads(write_tables(_list_settings(task, facts, plan)))
    table["script"]["folder"] = str(Path(task.script.folder).resolve())
    return build_study(table, f"study {task.name}")


def _list_settings(task: ScriptTask, facts: ScriptFacts, plan: _Plan) -> dict[str, list[Setting]]:
    """The keys of the study by table, "" for those before the first."""
    script, measured, keys = task.script, facts.measured, facts.keys
    rate, decay = measured.get("observed_lr", 0.0), measured.get("observed_weight_decay", 0.0)
    first: dict[str, Any] = {"batch.micro": min(plan.batches, key=lambda size: abs(size - facts.batch))}
    base, space = [], [Setting("batch.micro", {"choice": list(plan.batches)}, f"its own is {facts.batch}")]
    if "optimizer.lr" in keys:
        bounds = [float(f"{rate / _RATES:.2g}"), float(f"{rate * _RATES:.2g}")]
        space.append(Setting("optimizer.lr", {"log": bounds}, f"its own is {rate:.3g}"))
        first["optimizer.lr"] = rate
    if "optimizer.weight_decay" in keys:
        base.append(Setting("optimizer.weight_decay", decay, "its own"))
    if "batch.accumulation" in keys:
        base.append(Setting("batch.accumulation", 1, "a step is one micro batch"))
    if length := _choose_length(facts, plan.share):
        base.append(length)
    question = f"Which batch size for {script.name}, and what does it cost in {script.metric}, time and memory?"
    study = [Setting("name", task.name, "the folder of the records"), Setting("question", question, "")]
    if plan.seconds is None:
        study.append(Setting("trials", plan.num_trials, f"{_USUAL_TRIALS} for each batch size"))
    else:
        search_seconds = plan.seconds / (1.0 + USED * plan.confirm_share)
        study += [
            Setting("trials", plan.num_trials, "at most: usually search_timeout ends the search before"),
            Setting("timeout", f"{plan.seconds:.0f}s", "of a run"),
            Setting("search_timeout", f"{search_seconds:.0f}s", "the rest is for fresh seeds"),
        ]
    share = f"of the search's seconds, for {FEWEST_SEEDS} seeds or more of what is named"
    study.append(Setting("confirm.share", plan.confirm_share, share))
    study.append(Setting("first", [first], "its own values are tried in any case"))
    folder = os.path.relpath(script.folder, task.file.parent)
    table = [Setting("command", list(facts.command), "")]
    table += [Setting("folder", folder, "seen from this file")] if folder != "." else []
    table += [Setting(name, getattr(script, name), "") for name in ("metric", "unit", "direction", "sample")]
    return {"": study, "script": table, "base": base, "space": space}
