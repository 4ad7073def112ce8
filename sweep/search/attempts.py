"""The running attempts at trials: their start, their messages, their limits, and the record of their ends.

An attempt that is lost to the machine does not end its trial, which is retried from the last checkpoint a few times.
A preempted attempt does not end it either: the trial stays open on record, for the next run of the study.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, final

from sweep.config.errors import RUN_AGAIN, InputError, StoreError
from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig
from sweep.executors.base import Executor, poll_with_silence
from sweep.probing.gate import MemoryGate
from sweep.probing.prober import SoloProbes
from sweep.records.database import describe_shortage, estimate_record_bytes, measure_free_bytes
from sweep.records.messages import (
    FAULTS_OF_THE_MACHINE,
    LEFT,
    STALLED,
    Ending,
    Evaluation,
    ExpectedData,
    Heartbeat,
    Message,
    Outcome,
    Progress,
    ScriptCommand,
    TrialTask,
)
from sweep.records.quality import PACKED
from sweep.records.records import ReusableTrial, TrialRecord
from sweep.records.store import Store
from sweep.search.sampler import Sampler
from sweep.search.samplers import make_sampler
from sweep.search.shutdown import Shutdown

_MAX_RETRIES = 3  # of one trial, over all runs of the study
_POLL_SECONDS = 0.5  # a listener may redraw this often; messages of a trial are returned at once
_NEVER = float("inf")


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """What a run requires besides the study: content keys, reusable trials, limits and folders. Deadlines are by the
    ``clock``."""

    key_of: Callable[[TrialConfig], str]
    # Called with a content key and the metrics that the trial must have.
    find_reusable: Callable[[str, frozenset[str]], ReusableTrial | None] = lambda _key, _required: None
    deadline: float = _NEVER
    search_deadline: float = _NEVER  # of the search alone
    clock: Callable[[], float] = time.monotonic  # another one where time is simulated
    make_sampler: Callable[[StudySpec, Sequence[TrialRecord]], Sampler] = make_sampler
    # The images that a trial must read.
    expect_data: Callable[[TrialConfig], ExpectedData | None] = lambda _config: None
    device: str = "auto"
    plugin: str | None = None
    checkpoint_root: Path | None = None  # each running trial gets a folder in it; None: there are no checkpoints
    checkpoint_seconds: float = 60.0
    memory_gate: MemoryGate | None = None  # refuses configurations that will not fit
    solo_probes: SoloProbes | None = None  # of the shapes of disturbed trials
    shutdown: Shutdown = field(default_factory=Shutdown)
    resumed_by: str = "the same command again"  # what resumes the study, in words or as a command
    grace_seconds: float = 30.0  # that a preempted trial has for its step and its checkpoint

    @property
    def stop_cause(self) -> str:
        """Why no trial may begin or continue; empty while there is no reason."""
        return self.shutdown.cause or ("study_timeout" if self.clock() >= self.deadline else "")

    @property
    def is_search_over(self) -> bool:
        """Whether no search trial may begin any more; those that run may end."""
        return self.clock() >= self.search_deadline

    def checkpoint_dir(self, number: int) -> str | None:
        """The folder for the checkpoints of trial ``number``; None where there are none."""
        return None if self.checkpoint_root is None else str((self.checkpoint_root / str(number)).absolute())


@dataclass(kw_only=True)
class Attempt:
    """A running attempt. Times are by the clock of the plan."""

    record: TrialRecord
    number: int  # from 1
    started: float
    limit_seconds: float = _NEVER
    faults: tuple[str, ...] = ()  # faults of the machine that ended earlier attempts
    memory_limit_bytes: int | None = None
    last_evaluation: Evaluation | None = None
    first_step: int | None = None  # the step that it reported at the end of its setup
    has_advanced: bool = False  # by one step or more
    last_message_at: float = 0.0  # in seconds of listening, of all attempts together
    quality_flags: tuple[str, ...] = ()  # of its record, whatever its end
    preempt_cause: str = ""  # empty until it is preempted
    stop_by: float = _NEVER  # when it is preempted

    def update(self, message: Message, now: float) -> None:
        if isinstance(message, Heartbeat) and message.is_queued:
            self.started = now
        if isinstance(message, Evaluation):
            self.last_evaluation = message
        if isinstance(message, Progress):
            self.quality_flags = tuple(flag for flag in message.quality_flags if flag == PACKED)
            self.first_step = message.step if self.first_step is None else self.first_step
            self.has_advanced = message.step > self.first_step

    def last_measurements(self) -> dict[str, float | int]:
        """The measurements of the last evaluation, by name of the metric table."""
        last = self.last_evaluation
        if last is None:
            return {}
        return {
            name: value
            for name, value in {
                "val_accuracy": last.val_accuracy,
                "val_loss": last.val_loss,
                "quality": math.nan if last.quality is None else last.quality,
                "train_seconds": last.train_seconds,
                "num_steps": last.step,
                "num_epochs": last.epoch,
            }.items()
            if math.isfinite(value)
        }

    def make_ending(self, outcome: Outcome, **fields: Any) -> Ending:
        """The ending of an attempt that the supervisor stops, with these ``fields`` of :class:`Ending`."""
        defaults = {"measurements": self.last_measurements(), "quality_flags": self.quality_flags}
        return Ending(outcome=outcome, **(defaults | fields))


@final
class Attempts:
    """The ``running`` attempts of one study on one executor, by trial number."""

    def __init__(self, spec: StudySpec, store: Store, executor: Executor, plan: RunPlan) -> None:
        self._spec, self._store, self._executor, self._plan = spec, store, executor, plan
        self.running: dict[int, Attempt] = {}
        self._listened_seconds = 0.0

    def start(self, record: TrialRecord, number: int, memory_limit_bytes: int | None = None) -> None:
        """Launches attempt ``number``, which is on record already."""
        earlier = self._store.attempts(self._spec.name, record.number)[:-1] if number > 1 else []
        spent = sum(busy_seconds or 0.0 for _, busy_seconds in earlier)  # the time between attempts does not count
        self.running[record.number] = Attempt(
            record=record,
            number=number,
            started=self._plan.clock(),
            limit_seconds=(self._spec.trial_timeout or _NEVER) - spent,
            faults=tuple(cause for cause, _ in earlier if cause in FAULTS_OF_THE_MACHINE),
            memory_limit_bytes=memory_limit_bytes,
            last_message_at=self._listened_seconds,
        )
        self._executor.start(self._make_task(record, memory_limit_bytes))

    def receive(self) -> list[tuple[int, Message]]:
        """Messages of the trials with their numbers, as soon as there are any; after a short wait without, none."""
        received, seconds = poll_with_silence(self._executor, self._wait_seconds())
        self._listened_seconds += seconds
        messages = [(number, message) for number, message in received if number in self.running]
        for number, message in messages:
            self.running[number].update(message, self._plan.clock())
            self.running[number].last_message_at = self._listened_seconds
        return messages

    def stop_overdue(self) -> Iterator[tuple[int, Ending]]:
        """Stops the attempts that have exceeded a limit and yields their trial numbers and endings."""
        now = self._plan.clock()
        for number, attempt in list(self.running.items()):
            if ending := self._exceeded_limit(attempt, now):
                self._executor.stop(number)
                yield number, ending

    def preempt(self, cause: str) -> int:
        """Preempts every attempt that is not preempted yet and returns their number. An attempt that has not begun to
        train has nothing to save and gets no time for it."""
        now = self._plan.clock()
        running = [attempt for attempt in self.running.values() if not attempt.preempt_cause]
        for attempt in running:
            attempt.preempt_cause, attempt.stop_by = cause, now
            if attempt.first_step is not None:
                attempt.stop_by += self._plan.grace_seconds
                self._executor.preempt(attempt.record.number)
        return len(running)

    def abandon(self, cause: str) -> None:
        """Ends everything now; the trials stay open."""
        for number, attempt in list(self.running.items()):
            self._executor.stop(number)
            self._close(attempt, attempt.preempt_cause or cause)

    def end(self, number: int, ending: Ending) -> Ending | None:
        """Closes an attempt on record, and its trial with it; None where the trial stays open for another attempt."""
        attempt = self.running[number]
        is_lost = ending.cause in FAULTS_OF_THE_MACHINE
        # An attempt that left before it was preempted got the signal before the supervisor did.
        if ending.cause == LEFT or (is_lost and (attempt.preempt_cause or len(attempt.faults) < _MAX_RETRIES)):
            self._close(attempt, attempt.preempt_cause or ending.cause)
            return None
        if is_lost:
            causes = ", ".join((*attempt.faults, ending.cause))
            ending = replace(ending, error=f"{ending.error}\nits attempts ended by {causes}".strip())
        if ending.environment:
            self._store.keep_environment(self._spec.name, ending.environment)
        with self._store.database.transaction():
            crash = ending.error.splitlines()[0][:200] if ending.outcome == "crashed" and ending.error else ""
            self._close(attempt, ending.cause or crash)
            self._store.finish_trial(self._spec.name, number, ending)
        return ending

    def _close(self, attempt: Attempt, cause: str) -> None:
        busy_seconds = self._plan.clock() - attempt.started
        self._store.end_attempt(self._spec.name, attempt.record.number, attempt.number, cause, busy_seconds)
        del self.running[attempt.record.number]

    def _exceeded_limit(self, attempt: Attempt, now: float) -> Ending | None:
        if now >= attempt.stop_by:
            return attempt.make_ending("cancelled", cause=LEFT)
        if now >= attempt.started + attempt.limit_seconds:
            error = f"stopped after trial_timeout = {self._spec.trial_timeout:g} s"
            return attempt.make_ending("timed_out", error=error, cause="trial_timeout")
        if self._listened_seconds - attempt.last_message_at >= self._spec.stall_timeout:
            error = f"no message for stall_timeout = {self._spec.stall_timeout:g} s"
            return attempt.make_ending("crashed", error=error, cause=STALLED)
        return None

    def _wait_seconds(self) -> float:
        now = self._plan.clock()
        # After the deadline of the plan each attempt has its own time limit.
        deadline = self._plan.deadline if now < self._plan.deadline else _NEVER
        limits = [min(attempt.started + attempt.limit_seconds, attempt.stop_by) for attempt in self.running.values()]
        return max(0.0, min(_POLL_SECONDS, deadline - now, *(limit - now for limit in limits)))

    def _make_task(self, record: TrialRecord, memory_limit_bytes: int | None) -> TrialTask:
        folder = self._plan.checkpoint_dir(record.number) or ""
        script = ScriptCommand(**self._spec.command(record.config, folder)) if self._spec.script else None
        return TrialTask(
            number=record.number,
            script=script,
            config=record.config,
            read_test=record.phase == "confirm",
            measure_costly=record.phase == "confirm" or not self._spec.confirm.most_trials,
            device=self._plan.device,
            plugin=self._plan.plugin,
            checkpoint_dir=self._plan.checkpoint_dir(record.number),
            checkpoint_seconds=self._plan.checkpoint_seconds,
            memory_limit_bytes=memory_limit_bytes,
            expected_data=self._plan.expect_data(record.config),
        )


# ---------------------------------------------------------------------- disk space


def check_space_before(folder: Path, num_trials: int) -> None:
    """Raises ``InputError``, with both sizes, if ``folder`` has too little space for the records of so many trials."""
    needed_bytes = estimate_record_bytes(num_trials)
    if measure_free_bytes(folder) < needed_bytes:
        shortage = describe_shortage(folder, needed_bytes)
        raise InputError(f"{shortage}Free some space, or choose another disk with --root.")


def check_space_between(folder: Path) -> None:
    """Raises ``StoreError`` if ``folder`` has too little space for the next trial."""
    if measure_free_bytes(folder) < estimate_record_bytes(0) // 2:
        shortage = describe_shortage(folder)
        raise StoreError(f"The disk is full: {shortage}Free some space and {RUN_AGAIN}; records are kept.")
