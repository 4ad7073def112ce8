"""The supervisor's loop: propose or reuse, train in a child, record, learn; then confirm.

It is the only writer of the store. Everything that it knows it can read back from there, so the same command after
any kill goes on where the records end.
"""

import shutil
from collections.abc import Generator, Iterator
from dataclasses import replace
from typing import Any, final

from sweep.config.metrics import SHARPNESS
from sweep.config.space import grid_size, random_point
from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig, flatten
from sweep.executors.base import Executor
from sweep.records.messages import Ending, Evaluation, Heartbeat, Phase, Progress
from sweep.records.store.store import Store
from sweep.records.trial_record import ReusableTrial, TrialRecord
from sweep.search.forecast.memory_gate import Refusal
from sweep.search.loop.attempts import Attempt, Attempts
from sweep.search.loop.circuit_breaker import CircuitBreaker
from sweep.search.loop.events import (
    AttemptEnded,
    Event,
    Leaving,
    Stopped,
    TrialAdvanced,
    TrialEnded,
    TrialReused,
    TrialStarted,
    Waiting,
)
from sweep.search.loop.run_plan import Plan
from sweep.search.loop.trial_index import TrialIndex
from sweep.search.mirror.optuna_mirror import Mirror
from sweep.search.pruners.front_pruner import make_pruner
from sweep.search.seed_allocation.confirmation import confirmations

__all__ = ["Plan", "Tuner"]


@final
class Tuner:
    """Runs one study over one executor. :meth:`run` yields events and ends when the study is complete, its space is
    exhausted, the deadline has come or it was asked to leave."""

    def __init__(self, spec: StudySpec, store: Store, executor: Executor, mirror: Mirror, plan: Plan) -> None:
        self._spec, self._store, self._executor, self._mirror, self._plan = spec, store, executor, mirror, plan
        self._roster = TrialIndex(store.trial_records(spec.name))
        self._attempts = Attempts(spec, store, executor, plan)
        known = self._roster.records()
        self._breaker = CircuitBreaker(spec, has_complete=any(record.outcome == "complete" for record in known))
        self._to_confirm: list[TrialConfig] = []
        self._confirmed_at = -1  # the roster's number of changes by which that list was made
        # to be attempted again, with the memory that they may take at most
        self._open: list[tuple[TrialRecord, int | None]] = [(each, None) for each in known if each.outcome is None]
        searched = [record for record in known if record.phase == "search" and record.outcome is not None]
        own = [record for record in searched if record.outcome != "cancelled"]
        self._pruner = make_pruner(spec, store, own)
        self._sampler = plan.make_sampler(spec, [*plan.prior, *map(self._pruner.completed, own)])
        mirror.expect(searched)

    def records(self) -> list[TrialRecord]:
        """All trials so far, by number."""
        return self._roster.records()

    def run(self) -> Generator[Event, None, None]:
        """Trains until nothing is left to do. Closing the iterator early ends what is running; its trials stay open."""
        try:
            while True:
                yield from self._fill()
                if not self._attempts:
                    break
                yield from self._listen()
            yield from self._last_words()
        finally:
            self._attempts.abandon(self._plan.departure.cause or "interrupted")

    # ------------------------------------------------------------------ what to do next

    def _fill(self) -> Iterator[Event]:
        while len(self._attempts) < self._executor.slots and not self._must_stop():
            if self._open:
                record, limit_bytes = self._open.pop(0)
                yield self._launch(record, self._store.start_attempt(self._spec.name, record.number), limit_bytes)
                continue
            chosen = self._choose()
            if chosen is None:
                return
            yield self._reuse_or_launch(*chosen)

    def _must_stop(self) -> bool:
        return bool(self._plan.why_leave or self._breaker.reason)

    def _last_words(self) -> Iterator[Event]:
        if reason := self._breaker.reason:
            yield Stopped(f"{reason}, then run the same command again.", is_failure=True)
        elif self._plan.departure.cause:
            yield Stopped(f"{self._plan.departure.cause}; the same command goes on from here.")
        elif self._plan.why_leave:
            yield Stopped("its timeout has come; the same command goes on from here.")
        elif self._roster.num_counted < self._spec.trials:
            num = self._roster.num_counted
            yield Stopped(f"every point of its space has been tried: {num} instead of {self._spec.trials}.")

    def _choose(self) -> tuple[Phase, TrialConfig] | None:
        # earlier versions cancelled what they cut off: that is trained again first, so that no point is missed
        again = self._roster.take_cancelled("search")
        config = again.config if again else self._propose()
        if config is not None:
            return "search", config
        if any(run.record.phase == "search" for run in self._attempts):
            return None  # the front is not known before every search trial has ended
        if self._confirmed_at != self._roster.num_changes:  # devices that wait ask again and again
            self._confirmed_at = self._roster.num_changes
            self._to_confirm = confirmations(self.records(), self._spec)
        pending = [run.record.config for run in self._attempts]
        left = [config for config in self._to_confirm if config not in pending]
        return ("confirm", left[0]) if left else None

    def _propose(self) -> TrialConfig | None:
        if self._roster.num_counted >= self._spec.trials:
            return None
        index = self._roster.num_proposed
        values = self._sampler.propose(index)
        return None if values is None else self._fresh(values, index)

    def _fresh(self, values: dict[str, Any], index: int) -> TrialConfig | None:
        """The configuration at ``values``, or another where this study has that one already."""
        size = grid_size(self._spec.space)
        for attempt in range(50):
            config = self._spec.config(values)
            if not self._roster.has_key(self._plan.key_of(config)):
                return config
            values = random_point(self._spec.space, self._spec.seed, index * 50 + attempt)
        if size is not None and self._roster.num_points >= size:
            return None
        return config

    # ------------------------------------------------------------------ doing it

    def _reuse_or_launch(self, phase: Phase, config: TrialConfig) -> Event:
        key = self._plan.key_of(config)
        number = self._roster.next_number
        known = self._plan.find(key, self._needed(phase, config))
        origin = known.origin if known else ""
        record = TrialRecord(number=number, phase=phase, values=flatten(config), trial_key=key, reused_from=origin)
        gate = None if known else self._plan.gate
        refusal = gate.check(config) if gate else None
        is_refused = bool(gate and refusal and not gate.is_launched_to_check(number))
        with self._store.together():
            self._store.add_trial(self._spec.name, number, phase, config, key, origin)
            attempt = 0 if known or is_refused else self._store.start_attempt(self._spec.name, number)
        self._roster.put(record)
        if known:
            return self._take(record, known)
        if refusal and is_refused:
            return self._refuse(record, refusal)
        return self._launch(record, attempt, refusal.limit_bytes if refusal else None)

    def _refuse(self, record: TrialRecord, refusal: Refusal) -> Event:
        self._breaker.hear_refused(refusal.reason)
        ended = self._finish(record.number, Ending(outcome="not_fitting", error=refusal.reason))
        return TrialEnded(ended, refusal.reason)

    def _needed(self, phase: Phase, config: TrialConfig) -> frozenset[str]:
        # what a trial from elsewhere must have to take the place of this one
        if phase == "search":
            return frozenset(self._spec.objectives)
        sharpness = SHARPNESS if config.diagnostics.sharpness else ()
        return frozenset((*self._spec.objectives, "test_accuracy", *sharpness))

    def _take(self, record: TrialRecord, known: ReusableTrial) -> Event:
        for evaluation in known.evaluations:
            self._store.add_evaluation(self._spec.name, record.number, 0, evaluation)
        ended = self._finish(record.number, known.ending)
        return TrialReused(ended, float(known.ending.measurements.get("total_seconds", 0.0)))

    def _launch(self, record: TrialRecord, attempt: int, memory_limit_bytes: int | None = None) -> Event:
        self._attempts.start(record, attempt, memory_limit_bytes)
        return TrialStarted(record.number, record.phase, record.config, attempt)

    # ------------------------------------------------------------------ what comes back

    def _listen(self) -> Iterator[Event]:
        self._mirror.push_next()  # while the child trains
        news = self._attempts.listen()
        for number, message in news:
            if number in self._attempts and not isinstance(message, Heartbeat):
                yield self._hear(number, message)
        if (cause := self._plan.why_leave) and (num_asked := self._attempts.ask_to_leave(cause)):
            yield Leaving(cause, num_asked)
        for number, ending in self._attempts.overdue():
            yield self._end(number, ending)
        if not news:
            yield Waiting()

    def _hear(self, number: int, message: Progress | Evaluation | Ending) -> Event:
        if isinstance(message, Ending):
            return self._end(number, message)
        run = self._attempts[number]
        if isinstance(message, Evaluation):
            self._store.add_evaluation(self._spec.name, number, run.number, message)
        if run.record.phase == "search" and self._pruner.hear(self._roster[number], message):
            self._attempts.stop(number)
            known = self._pruner.known(number) | run.so_far()
            return self._end(
                number, Ending(outcome="pruned", measurements=known, quality_flags=run.marks, cause="pruned")
            )
        return TrialAdvanced(number, message)

    def _end(self, number: int, ending: Ending) -> Event:
        run = self._attempts[number]
        final = self._attempts.end(number, ending)
        if final is None:
            return self._reopen(run, ending)
        self._breaker.hear(run.record.config, final)
        if self._plan.gate:
            self._plan.gate.learn(run.record.config, final)
        return TrialEnded(self._learn(number, final), final.error)

    def _reopen(self, run: Attempt, ending: Ending) -> Event:
        if ending.outcome == "crashed" and not (run.asked or run.has_advanced):
            self._breaker.hear(run.record.config, ending)  # what dies at once may do so for ever
        self._open.insert(0, (run.record, run.memory_limit_bytes))
        return AttemptEnded(run.record.number, run.asked or ending.cause, ending.error)

    def _finish(self, number: int, ending: Ending) -> TrialRecord:
        self._store.finish_trial(self._spec.name, number, ending)
        return self._learn(number, ending)

    def _learn(self, number: int, ending: Ending) -> TrialRecord:
        if folder := self._plan.checkpoint_dir(number):
            shutil.rmtree(folder, ignore_errors=True)  # an ended trial has nothing to go on with
        record = replace(
            self._roster[number],
            outcome=ending.outcome,
            measurements=dict(ending.measurements),
            device=ending.device,
            quality_flags=ending.quality_flags,
        )
        self._roster.put(record)
        if record.phase == "search":
            self._mirror.expect([record])
            self._pruner.learn(record)
            self._sampler.learn(self._pruner.completed(record))
        return record
