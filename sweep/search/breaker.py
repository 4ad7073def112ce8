"""The circuit breaker stops a study in which trial after trial fails in the same way: more of them teach nothing.

Trials that crashed so are tried again, under new numbers, when the study is opened again.
"""

import re
import tempfile
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple, final

from sweep.config.trial import TrialConfig, flatten_config
from sweep.records.messages import FAULTS_OF_THE_MACHINE, Ending
from sweep.records.quality import BATCH_NOT_FOLLOWED, RATE_NOT_FOLLOWED
from sweep.records.records import TrialRecord
from sweep.records.store import Store

_SAME_CRASHES = 2  # a second crash with the same message is no accident
_SAME_LOSSES = 5  # of attempts
_SAME_FAILURES = 10  # of infeasible trials: the first points of a wide range may all be too large by chance
_MOST_REFUSED = 50  # proposals
_NEVER_ENDED = frozenset({None, "not_fitting", "cancelled"})  # these outcomes tell nothing about a trial
_MAX_LINES = 8  # of a message that is quoted
_FRAME = re.compile(r'Traceback| *File ".*", line \d+, in ')  # the beginning of a traceback may have been cut off
# What differs between two crashes of one reason: paths of temporary files, addresses and digests, numbers.
_TEMPORARY = "|".join(map(re.escape, dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm"))))
_CHANGING = re.compile(rf"(?:{_TEMPORARY})/[^\s'\":,;)]+|0x[0-9a-fA-F]+|\b(?=[a-f]*\d)[0-9a-f]{{8,}}\b|\d+")


# Of outcomes that are due to the configuration: the key of which smaller values help, what happened, and the remedy.
_INFEASIBLE = {
    "out_of_memory": (
        "batch.micro",
        "ran out of memory",
        "lower batch.micro in the space, add precision.checkpointing = true, or see `sweep cost --measure`",
    ),
    "diverged": (
        "optimizer.lr",
        "diverged",
        "lower optimizer.lr in the space, lengthen schedule.warmup, or set regularization.grad_clip",
    ),
}


@final
class CircuitBreaker:
    """Counts consecutive endings of one kind. An outcome that is due to the configuration stops a study only while no
    trial is complete: with a complete one there is something to learn from."""

    def __init__(self, *, has_complete: bool) -> None:
        self._has_complete = has_complete
        self._kind = ""  # the kind of the latest failures, all alike
        self._error = ""  # the message of the latest crash
        self._deviation = ""  # what a script did instead of what it was asked
        self._failed: list[TrialConfig] = []
        self._refused: list[str] = []

    def record_ending(self, config: TrialConfig, ending: Ending) -> None:
        """Counts the ending of a launched trial, or of an attempt that was lost before its first step."""
        if ending.outcome == "complete":
            self._has_complete = True
            self._refused.clear()
        deviation = _describe_deviation(config, ending)
        kind = _failure_kind(ending) or _CHANGING.sub("#", deviation)
        if kind != self._kind:
            self._kind, self._failed = kind, []
        if kind:
            self._failed.append(config)
            self._deviation, self._error = deviation, deviation or _find_message(ending.error)

    def record_refusal(self, reason: str) -> None:
        self._refused.append(reason)

    @property
    def reason(self) -> str:
        """Why the study should stop and what to change; empty while it should continue."""
        if len(self._refused) >= _MOST_REFUSED:
            _, _, remedy = _INFEASIBLE["out_of_memory"]
            return f"{len(self._refused)} proposals in a row do not fit ({self._refused[-1]}): {remedy}"
        if self._kind in _INFEASIBLE:
            return "" if self._has_complete or len(self._failed) < _SAME_FAILURES else self._explain_infeasible()
        if self._kind in FAULTS_OF_THE_MACHINE:
            count = f"{len(self._failed)} attempts in a row were lost in the same way"
            return f"{count}: {self._kind}. Fix that" if len(self._failed) >= _SAME_LOSSES else ""
        if len(self._failed) < _SAME_CRASHES:
            return ""
        lines = self._error.splitlines() or ["without a message"]
        shown = lines if len(lines) <= _MAX_LINES else [*lines[: _MAX_LINES - 2], "  ...", lines[-1]]
        how = "did something else than asked" if self._deviation else "crashed in the same way"
        count, message = f"{len(self._failed)} trials in a row {how}", "\n".join(shown).rstrip(".")
        return f"{count}: {message}. To have them tried again, fix that"

    def _explain_infeasible(self) -> str:
        key, verb, remedy = _INFEASIBLE[self._kind]
        values = [flatten_config(config)[key] for config in self._failed]
        numbers = [value for value in values if isinstance(value, int | float)]
        span = f", {key} from {min(numbers):g} to {max(numbers):g}" if numbers else ""
        return f"{len(values)} trials in a row {verb}{span}, and none is complete: {remedy}"


class RepeatedCrashes(NamedTuple):
    """Trials that crashed in a row in the same way, so that the study stopped."""

    numbers: frozenset[int] = frozenset()  # of all of them; they do not count toward the trials of the study
    to_repeat: tuple[TrialRecord, ...] = ()  # one for each configuration that was not tried again yet


def list_repeated_crashes(store: Store, study: str, records: Sequence[TrialRecord]) -> RepeatedCrashes:
    """Two or more crashes alike at the end of the ``records``, which the next run of the study tries again; and those
    that were at the end once and were tried again: a later trial of the same phase has their configuration."""

    def crash_kind(record: TrialRecord) -> str:
        return _failure_kind(record.ending) if record.outcome == "crashed" else ""

    def is_lost(record: TrialRecord) -> bool:
        last_cause, _ = next(reversed(store.attempts(study, record.number)), ("", None))
        return last_cause in FAULTS_OF_THE_MACHINE

    def identify(record: TrialRecord) -> str:
        return repr((record.phase, sorted(record.values.items())))

    launched = [each for each in records if each.outcome not in _NEVER_ENDED and not each.reused_from]
    rows = [list(row) for kind, row in groupby(launched, key=crash_kind) if kind]
    rows = [row for row in rows if len(row) >= _SAME_CRASHES and not any(map(is_lost, row))]
    if not rows:
        return RepeatedCrashes()
    latest = {identify(each): each.number for each in records}  # only now, because it takes long for many trials
    alike = [
        each
        for row in rows
        if row[-1] is launched[-1] or any(latest[identify(member)] > row[-1].number for member in row)
        for each in row
    ]
    return RepeatedCrashes(
        numbers=frozenset(each.number for each in alike),
        to_repeat=tuple(each for each in alike if latest[identify(each)] == each.number),
    )


def _failure_kind(ending: Ending) -> str:
    """Equal for failures alike; empty for an ending that is not counted."""
    if ending.outcome != "crashed":
        return ending.outcome if ending.outcome in _INFEASIBLE else ""
    if ending.cause in FAULTS_OF_THE_MACHINE:
        return ending.cause
    lines = _find_message(ending.error).splitlines() or [""]
    return _CHANGING.sub("#", f"crashed: {lines[0]} {lines[-1]}")


def _describe_deviation(config: TrialConfig, ending: Ending) -> str:
    """What a script did instead of what it was asked, and how to mend it; empty where it did that."""
    measured = ending.measurements
    if BATCH_NOT_FOLLOWED in ending.quality_flags:
        return (
            f"the script stepped every {measured['observed_batch_size']:,} samples, {config.global_batch_size:,} were "
            "asked: let its data loader take {batch.micro} samples, and let it step after {batch.accumulation} of these"
        )
    if RATE_NOT_FOLLOWED in ending.quality_flags:
        return (
            f"the highest learning rate was {measured['observed_lr']:g}, {config.optimizer.lr:g} was asked: give "
            "{optimizer.lr} to its optimizer, and scale it nowhere else"
        )
    return ""


def _find_message(error: str) -> str:
    """The class and message of the exception at the end of a traceback; all of an ``error`` that has none."""
    lines = error.strip().splitlines()
    first = max((index + 1 for index, line in enumerate(lines) if _FRAME.match(line)), default=0)
    while first < len(lines) and first > 0 and lines[first].startswith(" "):
        first += 1  # the source line of the last frame
    return "\n".join(lines[first:] or lines)
