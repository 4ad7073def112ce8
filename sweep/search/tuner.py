"""The supervisor's loop: propose or reuse, train in a child process, record, learn; then confirm.

It is the only writer of the store and can read its whole state back from there, so after any interruption the same
command resumes where the records end.
"""

import shutil
import uuid
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import numpy as np

from sweep.analysis.candidates import Candidates
from sweep.config.metrics import SHARPNESS
from sweep.config.space import count_grid_points, draw_point
from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig
from sweep.executors.base import Executor
from sweep.probing.prober import estimate_record_times, is_disturbed
from sweep.probing.shape import digest_trial_shape
from sweep.records.inputs import digest_code, list_library_versions, trial_key
from sweep.records.loading import read_frames
from sweep.records.messages import NOT_COUNTED, Ending, Evaluation, Phase, Progress
from sweep.records.quality import BATCH_NOT_FOLLOWED, RATE_NOT_FOLLOWED, SEED_NOT_FOLLOWED
from sweep.records.records import ProbeRecord, TrialRecord, decode_correct
from sweep.records.store import EnqueuedPoint, Store, list_waiting, take_point
from sweep.search.attempts import Attempts, RunPlan
from sweep.search.breaker import CircuitBreaker, list_repeated_crashes
from sweep.search.pruner import make_pruner
from sweep.search.seeds import SearchEnd, find_candidates, may_search_on, rank_confirmations
from sweep.training.data.sources import make_inputs_digest

# What happens while a study runs: the command line prints these events, the Python API ignores them.


@dataclass(frozen=True, kw_only=True)
class TrialStarted:
    """An attempt at a trial was launched; ``attempt`` counts from 1."""

    number: int
    phase: Phase
    config: TrialConfig
    attempt: int


@dataclass(frozen=True)
class TrialAdvanced:
    """A message of a running trial."""

    number: int
    message: Progress | Evaluation


@dataclass(frozen=True)
class AttemptEnded:
    """An attempt ended and its trial did not: it resumes from its last checkpoint, in this run or in the next."""

    number: int
    cause: str
    error: str = ""


@dataclass(frozen=True)
class Stopping:
    """No trial begins any more, and ``num_trials`` were preempted."""

    cause: str
    num_trials: int


@dataclass(frozen=True)
class TrialEnded:
    """The record of a trial is complete and durable."""

    record: TrialRecord
    error: str = ""


@dataclass(frozen=True)
class TrialReused:
    """A trial was taken from earlier records instead of being trained."""

    record: TrialRecord
    saved_seconds: float


@dataclass(frozen=True)
class Waiting:
    """Nothing happened for a moment; a listener may redraw."""


@dataclass(frozen=True)
class Stopped:
    """The study ends before all its trials are trained; the last event of its run."""

    reason: str
    is_failure: bool = False


Event = TrialStarted | TrialAdvanced | AttemptEnded | TrialEnded | TrialReused | Stopping | Waiting | Stopped


@final
class TrialIndex:
    """The trials of a study by number and by content key, with the counts that a proposal requires. Trials of the
    numbers ``not_counted`` are on record and nothing else: they are tried again, and neither the search nor its
    confirmation depends on them."""

    def __init__(self, records: Iterable[TrialRecord], not_counted: frozenset[int] = frozenset()) -> None:
        self._not_counted = not_counted
        self._records: dict[int, TrialRecord] = {}
        self.keys: set[str] = set()
        self.search_keys: set[str] = set()  # of the configurations that the search has had
        self.next_number = 0
        self.num_changes = 0  # what was derived from the records is valid as long as this is the same
        self.num_counted = 0  # search trials that are running, or that were trained or reused
        self.num_proposed = 0  # search trials; a configuration that was tried again counts once
        self.num_enqueued = 0  # proposed trials that were made by hand
        for record in records:
            self.put(record)

    def __getitem__(self, number: int) -> TrialRecord:
        return self._records[number]

    def records(self) -> list[TrialRecord]:
        return [self._records[number] for number in sorted(self._records)]

    def counted_records(self) -> list[TrialRecord]:
        return [record for record in self.records() if record.number not in self._not_counted]

    def put(self, record: TrialRecord) -> None:
        """Adds a new trial, or replaces the one of the same number."""
        previous = self._records.get(record.number)
        self._records[record.number] = record
        self.num_changes += 1
        self.next_number = max(self.next_number, record.number + 1)
        self.keys.add(record.trial_key)
        if record.phase != "search":
            return
        self.search_keys.add(record.trial_key)
        if record.number not in self._not_counted:
            self.num_proposed += previous is None
            self.num_enqueued += previous is None and record.is_enqueued
            was_counted = previous is not None and previous.outcome not in NOT_COUNTED
            self.num_counted += (record.outcome not in NOT_COUNTED) - was_counted


@final
class KeyMaker:
    """Makes content keys of configurations. All of them read the images of ``data_digest``; if it is not known (""),
    no key equals an earlier one. Each file of initial weights is read once. A script, run by ``command``, takes the
    place of the ``plugin``."""

    def __init__(self, plugin: str | None = None, data_digest: str = "", command: Sequence[str] = ()) -> None:
        self._code = digest_code(plugin) + "".join(command)
        self._versions = list_library_versions()
        self._data = data_digest or uuid.uuid4().hex
        self._digests: dict[str | None, str] = {}

    def __call__(self, config: TrialConfig) -> str:
        weights = config.model.weights
        if weights not in self._digests:
            self._digests[weights] = make_inputs_digest(config, self._data)
        return trial_key(config, self._digests[weights], self._code, self._versions)


_NUM_COMPARED = 1000  # the latest trials, by which the time of a disturbed one is estimated
_MISTAKES = 10  # of all evaluations, from which on equal results of two seeds are no chance
_MAX_RANDOM_DRAWS = 50  # in search of a point that the study does not have yet


class _Proposal(NamedTuple):
    """The next trial; ``position`` is its place in the queue of hand-made ones, 0 if it is none of these."""

    phase: Phase
    config: TrialConfig
    position: int = 0


@final
class Tuner:
    """Runs one study over one executor. :meth:`run` yields events and ends when the study is complete, its space is
    exhausted, the deadline has passed or a shutdown was requested."""

    def __init__(self, spec: StudySpec, store: Store, executor: Executor, plan: RunPlan) -> None:
        self._spec, self._store, self._executor, self._plan = spec, store, executor, plan
        recorded = store.trial_records(spec.name)
        crashes = list_repeated_crashes(store, spec.name, recorded)
        self._trials = TrialIndex(recorded, crashes.numbers)
        self._attempts = Attempts(spec, store, executor, plan)
        self._circuit_breaker = CircuitBreaker(has_complete=any(each.outcome == "complete" for each in recorded))
        self._search_end = SearchEnd(spec)
        # Trials to be attempted again, each with the memory limit of its attempt.
        self._open: list[tuple[TrialRecord, int | None]] = [(each, None) for each in recorded if each.outcome is None]
        # Crashed search trials to repeat. Crashed confirmations are simply missing, so the rule lists them again.
        self._to_repeat = [_Proposal("search", each.config) for each in crashes.to_repeat if each.phase == "search"]
        # What follows from the trials, each with the number of changes of the index that it was made from.
        self._candidates: tuple[int, Candidates | None] | None = None
        self._confirmations: list[TrialConfig] = []
        self._confirmations_of = -1
        searched = [each for each in recorded if each.phase == "search" and each.outcome is not None]
        timed = estimate_record_times(searched, spec, self._list_probes())
        self._pruner = make_pruner(spec, store, timed)
        self._sampler = plan.make_sampler(spec, list(map(self._extrapolate, timed)))

    def records(self) -> list[TrialRecord]:
        return self._trials.records()

    def run(self) -> Generator[Event, None, None]:
        """Trains until nothing is left to do. Closing the iterator early ends what is running; its trials stay open."""
        try:
            while True:
                yield from self._fill_slots()
                if not self._attempts.running:
                    break
                yield from self._receive_messages()
            if stopped := self._explain_stop():
                yield stopped
        finally:
            self._attempts.abandon(self._plan.shutdown.cause or "interrupted")

    def _fill_slots(self) -> Iterator[Event]:
        while len(self._attempts.running) < self._executor.slots and not self._must_stop():
            if self._open:
                record, limit_bytes = self._open.pop(0)
                yield self._launch(record, self._store.start_attempt(self._spec.name, record.number), limit_bytes)
            elif proposal := self._propose() or self._confirm() or self._search_on():
                yield self._begin(proposal)
            else:
                return

    def _receive_messages(self) -> Iterator[Event]:
        messages = self._attempts.receive()
        for number, message in messages:
            if number in self._attempts.running and isinstance(message, Progress | Evaluation | Ending):
                yield self._handle(number, message)
        if (cause := self._plan.stop_cause) and (num_preempted := self._attempts.preempt(cause)):
            yield Stopping(cause, num_preempted)
        for number, ending in self._attempts.stop_overdue():
            yield self._end_attempt(number, ending)
        if not messages:
            yield Waiting()

    def _must_stop(self) -> bool:
        return bool(self._plan.stop_cause or self._circuit_breaker.reason)

    def _explain_stop(self) -> Stopped | None:
        """Why the study ends before all its trials are trained; None if it does not."""
        again, num_counted, num_planned = self._plan.resumed_by, self._trials.num_counted, self._spec.trials
        if reason := self._circuit_breaker.reason:
            return Stopped(f"{reason}, then run {again}.", is_failure=True)
        if cause := self._plan.shutdown.cause:
            return Stopped(f"{cause}; run {again} to resume.")
        if self._plan.stop_cause:
            return Stopped(f"the study's timeout has passed; run {again} to resume.")
        ended = f"the search ended after {num_counted} of {num_planned} trials"
        if reason := self._search_end.reason:
            return Stopped(f"{ended}: {reason}.")
        if num_counted >= num_planned:
            return None
        if self._plan.is_search_over:
            return Stopped(f"{ended}: its search_timeout has passed; run {again} to continue.")
        return Stopped(f"every point of the space has been tried: {num_counted} instead of {num_planned}.")

    # ------------------------------------------------------------------ choice of the next trial

    def _propose(self, *, is_forced: bool = False) -> _Proposal | None:
        """The next search trial; None if the search is over, or unless it ``is_forced`` ended early."""
        if self._trials.num_counted >= self._spec.trials:
            return None
        if self._to_repeat:
            return self._to_repeat.pop(0)
        index, first = self._trials.num_proposed - self._trials.num_enqueued, self._spec.first
        if waiting := list_waiting(self._store.database, self._spec.name):
            return self._complete(waiting[0], index)
        if self._plan.is_search_over or (not is_forced and self._has_ended()):
            return None
        values = first[index] if index < len(first) else self._sampler.propose(index - len(first))
        config = None if values is None else self._make_distinct(values, index)
        return None if config is None else _Proposal("search", config)

    def _complete(self, waiting: EnqueuedPoint, index: int) -> _Proposal:
        """A hand-made trial; the sampler chooses the values that its maker left open."""
        open_keys = self._spec.space.keys() - waiting.point.keys()
        values = self._sampler.propose(max(index - len(self._spec.first), 0)) if open_keys else None
        if open_keys and values is None:
            values = draw_point(self._spec.space, self._spec.seed, index * _MAX_RANDOM_DRAWS)
        return _Proposal("search", self._spec.config((values or {}) | waiting.point), waiting.position)

    def _has_ended(self) -> bool:
        if self._search_end.is_due(self._trials.counted_records()):
            self._search_end.decide(self._find_candidates())
            self._sampler.require(self._search_end.lacking)
        return bool(self._search_end.reason)

    def _search_on(self) -> _Proposal | None:
        """The next trial of a search that ended early, once no seed is worth anything."""
        end = self._search_end
        if self._attempts.running or not end.reason or end.is_settled:
            return None
        is_possible = may_search_on(self._trials.counted_records(), self._spec)
        return self._propose(is_forced=True) if is_possible else None

    def _make_distinct(self, values: dict[str, Any], index: int) -> TrialConfig | None:
        """The configuration at ``values``, or a random one if this study has that one already."""
        for draw in range(_MAX_RANDOM_DRAWS):
            config = self._spec.config(values)
            if self._plan.key_of(config) not in self._trials.keys:
                return config
            values = draw_point(self._spec.space, self._spec.seed, index * _MAX_RANDOM_DRAWS + draw)
        points = self._spec.list_points()  # those that train alike are one
        size = count_grid_points(self._spec.space) if points is None else len(points)
        return None if size is not None and len(self._trials.search_keys) >= size else config

    def _confirm(self) -> _Proposal | None:
        """The next confirming trial, once every search trial has ended: the candidates are not known before."""
        if any(attempt.record.phase == "search" for attempt in self._attempts.running.values()):
            return None
        if self._confirmations_of != self._trials.num_changes:  # idle slots ask again and again
            self._confirmations_of = self._trials.num_changes
            candidates = self._find_candidates() if self._spec.confirm.most_trials else None
            self._confirmations = rank_confirmations(candidates, self._trials.counted_records(), self._spec)
        running = [attempt.record.config for attempt in self._attempts.running.values()]
        return next((_Proposal("confirm", config) for config in self._confirmations if config not in running), None)

    def _find_candidates(self) -> Candidates | None:
        if self._candidates is None or self._candidates[0] != self._trials.num_changes:
            frames = read_frames(self._store.database, self._spec.name)
            self._candidates = self._trials.num_changes, find_candidates(frames)
        return self._candidates[1]

    # ------------------------------------------------------------------ start of a trial

    def _begin(self, proposal: _Proposal) -> Event:
        """Records a new trial, then takes an earlier result for it, refuses it, or launches it.

        A configuration that is predicted not to fit is refused. A few such trials are launched all the same, with the
        memory limit of the prediction, to check it (:meth:`MemoryGate.is_launched_to_check`).
        """
        phase, config, position = proposal
        name, number, gate = self._spec.name, self._trials.next_number, self._plan.memory_gate
        key, limit_bytes = self._plan.key_of(config), None
        reusable = self._plan.find_reusable(key, self._required_metrics(phase, config))
        refusal = gate.check(config) if gate and not reusable else None
        if gate and refusal and gate.is_launched_to_check(number):
            limit_bytes, refusal = refusal.limit_bytes, None
        with self._store.database.transaction():
            origin = reusable.origin if reusable else ""
            record = self._store.add_trial(self._spec, number, phase, config, key, origin)
            if self._spec.script is None:
                record = self._store.note_shape(name, record, digest_trial_shape(config))
            if position:
                record = take_point(self._store.database, name, position, record)
            attempt = 0 if reusable or refusal else self._store.start_attempt(name, number)
        self._trials.put(record)
        if reusable:
            for evaluation in reusable.evaluations:
                self._store.add_evaluation(name, number, 0, evaluation)
            saved_seconds = float(reusable.ending.measurements.get("total_seconds", 0.0))
            return TrialReused(self._finish(number, reusable.ending), saved_seconds)
        if refusal:
            self._circuit_breaker.record_refusal(refusal.reason)
            return TrialEnded(self._finish(number, Ending(outcome="not_fitting", error=refusal.reason)), refusal.reason)
        return self._launch(record, attempt, limit_bytes)

    def _required_metrics(self, phase: Phase, config: TrialConfig) -> frozenset[str]:
        """What a recorded trial must have measured to be taken instead of a training."""
        is_last = phase == "confirm" or not self._spec.confirm.most_trials
        sharpness = SHARPNESS if config.diagnostics.sharpness and is_last else ()
        test = ("test_accuracy",) if phase == "confirm" else ()
        return frozenset((*self._spec.objectives, *test, *sharpness))

    def _launch(self, record: TrialRecord, attempt: int, limit_bytes: int | None) -> Event:
        self._attempts.start(record, attempt, limit_bytes)
        return TrialStarted(number=record.number, phase=record.phase, config=record.config, attempt=attempt)

    # ------------------------------------------------------------------ messages and endings

    def _handle(self, number: int, message: Progress | Evaluation | Ending) -> Event:
        if isinstance(message, Ending):
            return self._end_attempt(number, message)
        attempt = self._attempts.running[number]
        if isinstance(message, Evaluation):
            self._store.add_evaluation(self._spec.name, number, attempt.number, message)
        pruner = self._pruner if attempt.record.phase == "search" else None
        if pruner and pruner.should_prune(self._trials[number], message):
            self._executor.stop(number)
            measured = pruner.partial_measurements(number) | attempt.last_measurements()
            return self._end_attempt(number, attempt.make_ending("pruned", measurements=measured, cause="pruned"))
        return TrialAdvanced(number, message)

    def _end_attempt(self, number: int, ending: Ending) -> Event:
        """Closes an attempt, and its trial with it unless the trial stays open for another attempt."""
        attempt = self._attempts.running[number]
        if self._plan.solo_probes and not attempt.preempt_cause:
            is_idle = len(self._attempts.running) == 1 and not self._must_stop()
            self._plan.solo_probes.note(attempt.record.with_ending(ending), is_idle=is_idle)
        if self._spec.script and ending.outcome == "complete":
            ending = self._flag_equal_seed(attempt.record, ending)
        final_ending = self._attempts.end(number, ending)
        if final_ending is None:
            if ending.outcome == "crashed" and not (attempt.preempt_cause or attempt.has_advanced):
                # An attempt that dies at once may do so every time.
                self._circuit_breaker.record_ending(attempt.record.config, ending)
            self._open.insert(0, (attempt.record, attempt.memory_limit_bytes))
            return AttemptEnded(number, attempt.preempt_cause or ending.cause, ending.error)
        self._circuit_breaker.record_ending(attempt.record.config, final_ending)
        if self._plan.memory_gate:
            self._plan.memory_gate.learn(attempt.record.config, final_ending)
        return TrialEnded(self._learn(number, final_ending), final_ending.error)

    def _flag_equal_seed(self, record: TrialRecord, ending: Ending) -> Ending:
        """``ending`` with a flag where a script gave the same results for another seed, to the last digit, at every
        evaluation. A share may be equal by chance, so that it has to be so sample by sample, for enough mistakes."""
        quality = self._spec.quality
        others = [
            other.number for other in self._trials.records()
            if other.outcome == "complete" and other.values["seed"] != record.values["seed"]
            and {**other.values, "seed": 0} == {**record.values, "seed": 0}
            and other.measurements.get(quality.column) == ending.measurements.get(quality.column)
        ]  # fmt: skip
        course = self._list_course(record.number) if others else []
        others = [number for number in others if self._list_course(number) == course]
        if others and quality.unit == "fraction":
            texts, scores = self._store.correct_texts(self._spec.name, others), ending.correct_images
            is_right = decode_correct(scores) if scores else np.empty(0)
            num_rare = min(int((is_right == 1).sum()), int((is_right != 1).sum()))
            is_telling = len(course) * num_rare >= _MISTAKES
            others = [number for number in others if is_telling and texts.get(number) == scores]
        flags = (*ending.quality_flags, SEED_NOT_FOLLOWED) if others else ending.quality_flags
        return replace(ending, quality_flags=flags)

    def _list_course(self, number: int) -> list[float | None]:
        # the quality at each evaluation of a trial
        evaluations = self._store.evaluations(self._spec.name, number)
        return [getattr(each, self._spec.quality.column) for each in evaluations]

    def _finish(self, number: int, ending: Ending) -> TrialRecord:
        self._store.finish_trial(self._spec.name, number, ending)
        return self._learn(number, ending)

    def _learn(self, number: int, ending: Ending) -> TrialRecord:
        if folder := self._plan.checkpoint_dir(number):
            shutil.rmtree(folder, ignore_errors=True)  # an ended trial is never resumed
        record = self._trials[number].with_ending(ending)
        self._trials.put(record)
        if record.phase == "search":
            timed = self._estimate_time(record) if is_disturbed(record) else record
            if self._pruner:
                self._pruner.learn(timed)
            # what a script did instead of what it was asked tells nothing about what was asked
            if not {BATCH_NOT_FOLLOWED, RATE_NOT_FOLLOWED}.intersection(record.quality_flags):
                self._sampler.learn(self._extrapolate(timed))
        return record

    def _estimate_time(self, record: TrialRecord) -> TrialRecord:
        searched = [each for each in self._trials.records() if each.phase == "search" and each.number != record.number]
        return estimate_record_times([*searched[-_NUM_COMPARED:], record], self._spec, self._list_probes())[-1]

    def _list_probes(self) -> list[ProbeRecord]:
        return self._plan.solo_probes.list_used() if self._plan.solo_probes else []

    def _extrapolate(self, record: TrialRecord) -> TrialRecord:
        return self._pruner.extrapolate_record(record) if self._pruner else record
