"""The attempts under way: started, listened to, held to their limits, asked to leave; and what their ends mean.

An attempt that is lost to the machine does not end its trial: it is tried again from the last checkpoint, a few times.
Nor does one that was asked to leave: the trial stays open on the record, for the next run of the study.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import final

from sweep.config.study import StudySpec
from sweep.executors.base import Executor
from sweep.executors.silence import listen
from sweep.measurement.quality import PACKED
from sweep.records.attempt_causes import FAULTS_OF_THE_MACHINE, LEFT, STALLED
from sweep.records.messages import Ending, Evaluation, Heartbeat, Message, Progress, TrialTask
from sweep.records.store.store import Store
from sweep.records.trial_record import TrialRecord
from sweep.search.loop.run_plan import Plan

MAX_RETRIES = 3  # of one trial, over all runs of the study
_POLL_SECONDS = 0.5  # how often a listener may redraw; news of a trial come at once
_NEVER = float("inf")


@dataclass
class Attempt:
    """One that is under way. Moments are by the plan's clock."""

    record: TrialRecord
    number: int  # from 1
    started: float
    limit_seconds: float = _NEVER
    faults: tuple[str, ...] = ()  # of the machine, that ended earlier attempts
    memory_limit_bytes: int | None = None
    last: Evaluation | None = None
    first_step: int | None = None  # that it told, when it had everything together
    has_advanced: bool = False  # by a step at least
    heard_at: float = 0.0  # in seconds of listening, of all attempts together
    marks: tuple[str, ...] = ()  # that its record bears however it ends
    asked: str = ""  # why it was asked to leave
    leave_by: float = _NEVER

    @property
    def deadline(self) -> float:
        """When its trial's limit comes."""
        return self.started + self.limit_seconds

    def hear(self, message: Message, now: float) -> None:
        """Takes news into account."""
        if isinstance(message, Heartbeat) and message.is_queued:
            self.started = now
        if isinstance(message, Evaluation):
            self.last = message
        if isinstance(message, Progress):
            self.marks = tuple(flag for flag in message.quality_flags if flag == PACKED)
            self.first_step = message.step if self.first_step is None else self.first_step
            self.has_advanced = message.step > self.first_step

    def so_far(self) -> dict[str, float | int]:
        """What its last evaluation has shown, by name of the metric table."""
        if self.last is None:
            return {}
        return {
            "val_accuracy": self.last.val_accuracy,
            "val_loss": self.last.val_loss,
            "train_seconds": self.last.train_seconds,
            "num_steps": self.last.step,
            "num_epochs": self.last.epoch,
        }


@final
class Attempts:
    """Those of one study on one executor, by number of their trials.

    News cost the same however many run: a limit is looked at when the first of all may have come.
    """

    def __init__(self, spec: StudySpec, store: Store, executor: Executor, plan: Plan) -> None:
        self._spec, self._store, self._executor, self._plan = spec, store, executor, plan
        self._running: dict[int, Attempt] = {}
        self._listened_seconds = 0.0
        # no limit comes before: by the plan's clock, and in seconds of listening
        self._first_limit, self._first_stall = _NEVER, _NEVER

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, number: int) -> bool:
        return number in self._running

    def __getitem__(self, number: int) -> Attempt:
        return self._running[number]

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._running.values())

    def start(self, record: TrialRecord, attempt: int, memory_limit_bytes: int | None = None) -> None:
        """Launches an attempt that is on the record already."""
        earlier = self._store.attempts(self._spec.name, record.number)[:-1] if attempt > 1 else []
        spent = sum(busy_seconds or 0.0 for _, busy_seconds in earlier)  # the time between them counts nowhere
        run = self._running[record.number] = Attempt(
            record,
            attempt,
            started=self._plan.clock(),
            limit_seconds=(self._spec.trial_timeout or _NEVER) - spent,
            faults=tuple(cause for cause, _ in earlier if cause in FAULTS_OF_THE_MACHINE),
            memory_limit_bytes=memory_limit_bytes,
            heard_at=self._listened_seconds,
        )
        self._expect_limits_of(run)
        self._executor.start(self._task(record, memory_limit_bytes))

    def listen(self) -> list[tuple[int, Message]]:
        """News of the trials, the first at once; after a moment without any, none."""
        news, seconds = listen(self._executor, self._wait_seconds())
        self._listened_seconds += seconds
        news = [(number, message) for number, message in news if number in self._running]
        for number, message in news:
            self._running[number].hear(message, self._plan.clock())
            self._running[number].heard_at = self._listened_seconds
        return news

    def overdue(self) -> Iterator[tuple[int, Ending]]:
        """Ends what is over a limit, and says how."""
        now = self._plan.clock()
        if now < self._first_limit and self._listened_seconds < self._first_stall:
            return
        self._first_limit, self._first_stall = _NEVER, _NEVER
        for number, run in list(self._running.items()):
            self._expect_limits_of(run)
            if ending := self._limit(run, now):
                self._executor.stop(number)
                yield number, ending

    def ask_to_leave(self, cause: str) -> int:
        """Asks whoever was not asked; says how many. One that has not trained has nothing to save, and no time."""
        now = self._plan.clock()
        unasked = [run for run in self if not run.asked]
        for run in unasked:
            run.asked, run.leave_by = cause, now
            if run.first_step is not None:
                run.leave_by += self._plan.leave_seconds
                self._executor.ask_to_leave(run.record.number)
            self._expect_limits_of(run)
        return len(unasked)

    def stop(self, number: int) -> None:
        """Ends what trains now."""
        self._executor.stop(number)

    def abandon(self, cause: str) -> None:
        """Ends everything now; the trials stay open."""
        for number, run in list(self._running.items()):
            self._executor.stop(number)
            self._close(run, run.asked or cause)

    def end(self, number: int, ending: Ending) -> Ending | None:
        """Closes an attempt on the record, and its trial with it; None where that stays open for another attempt."""
        run = self._running[number]
        is_lost = ending.cause in FAULTS_OF_THE_MACHINE
        # one that left unasked was reached by the signal before the supervisor was
        if ending.cause == LEFT or (is_lost and (run.asked or len(run.faults) < MAX_RETRIES)):
            self._close(run, run.asked or ending.cause)
            return None
        if is_lost:
            causes = ", ".join((*run.faults, ending.cause))
            ending = replace(ending, error=f"{ending.error}\nits attempts ended by {causes}".strip())
        if ending.environment:
            self._store.keep_environment(self._spec.name, ending.environment)
        with self._store.together():
            self._close(run, ending.cause or _cause(ending))
            self._store.finish_trial(self._spec.name, number, ending)
        return ending

    def _close(self, run: Attempt, cause: str) -> None:
        busy_seconds = self._plan.clock() - run.started
        self._store.end_attempt(self._spec.name, run.record.number, run.number, cause, busy_seconds)
        del self._running[run.record.number]

    def _limit(self, run: Attempt, now: float) -> Ending | None:
        if now >= run.leave_by:
            return Ending(outcome="cancelled", measurements=run.so_far(), cause=LEFT)
        if now >= run.deadline:
            error = f"stopped after trial_timeout = {self._spec.trial_timeout:g} s"
            return Ending(
                outcome="timed_out",
                measurements=run.so_far(),
                quality_flags=run.marks,
                error=error,
                cause="trial_timeout",
            )
        if self._listened_seconds - run.heard_at >= self._spec.stall_timeout:
            error = f"nothing was heard of it for stall_timeout = {self._spec.stall_timeout:g} s"
            return Ending(
                outcome="crashed", measurements=run.so_far(), quality_flags=run.marks, error=error, cause=STALLED
            )
        return None

    def _expect_limits_of(self, run: Attempt) -> None:
        self._first_limit = min(self._first_limit, run.deadline, run.leave_by)
        self._first_stall = min(self._first_stall, run.heard_at + self._spec.stall_timeout)

    def _wait_seconds(self) -> float:
        now = self._plan.clock()
        moments = [self._first_limit]
        if now < self._plan.deadline:  # afterwards each has a limit of its own to leave by
            moments.append(self._plan.deadline)
        return max(0.0, min([_POLL_SECONDS, *(moment - now for moment in moments)]))

    def _task(self, record: TrialRecord, memory_limit_bytes: int | None) -> TrialTask:
        return TrialTask(
            number=record.number,
            config=record.config,
            read_test=record.phase == "confirm",
            measure_sharpness=record.phase == "confirm",
            device=self._plan.device,
            plugin=self._plan.plugin,
            checkpoint_dir=self._plan.checkpoint_dir(record.number),
            checkpoint_seconds=self._plan.checkpoint_seconds,
            memory_limit_bytes=memory_limit_bytes,
        )


def _cause(ending: Ending) -> str:
    return ending.error.splitlines()[0][:200] if ending.outcome == "crashed" and ending.error else ""
