"""A session opens a study - its folder, lock, store and executor - and runs it or forecasts what is left of it."""

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path

from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.executors.monitored import MonitoredExecutor, make_source
from sweep.executors.packed.mps import share_gpu
from sweep.executors.packed.packed_executor import PackedExecutor
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.executors.queryable import QueryableExecutor
from sweep.executors.table import device_type, make_executor
from sweep.measurement.monitor import Monitor
from sweep.records.data_summary import DataSummary
from sweep.records.source_digest import digest_plugin
from sweep.records.store.probe_book import ProbeBook
from sweep.records.store.store import Store
from sweep.records.study_inputs import StudyInputs
from sweep.records.trial_record import ReusableTrial
from sweep.search.earlier.earlier_results import EarlierResult, make_prior_records
from sweep.search.earlier.reuse_index import ReuseIndex, open_reuse_index
from sweep.search.earlier.warm_start import read_earlier
from sweep.search.forecast.prober import SoloProbes, open_shared_book
from sweep.search.loop.checkpoint_space import DiskSpace, estimate_checkpoint_bytes
from sweep.search.loop.checks import check_run
from sweep.search.loop.circuit_breaker import RepeatedCrashes, list_repeated_crashes
from sweep.search.loop.device_sharing import share_devices
from sweep.search.loop.events import Event, TrialEnded, TrialReused
from sweep.search.loop.own_records import open_for_preview, open_for_writing, study_file
from sweep.search.loop.run_options import Options
from sweep.search.loop.run_plan import RunPlan
from sweep.search.loop.shutdown import Shutdown, shutdown_on_signals
from sweep.search.loop.trial_index import KeyMaker
from sweep.search.loop.tuner import Tuner
from sweep.search.mirror.optuna_mirror import Mirror
from sweep.search.samplers import make_sampler
from sweep.search.study_forecast import Forecast, Forecaster, PlannedTrials
from sweep.training.data.folders.inspection import OnProgress
from sweep.training.data.study_data import expect_data

_PROBES_AT_ONCE = frozenset({"inline", "process"})  # executors on which a probe waits for no machine


@contextlib.contextmanager
def open_session(
    spec: StudySpec, options: Options, *, preview: bool = False, on_progress: OnProgress | None = None
) -> Iterator["Session"]:
    """Opens the study for a run: its folder locked, its store open, its executor started.

    A ``preview`` is for a forecast alone and refuses what a run would refuse, but writes nothing except probes: there
    is no folder, no lock and no record of the study, and it does not read earlier results. ``on_progress`` is called
    while the images of a folder are decoded for the first time.

    Raises:
        InputError: what is requested is not there (:func:`sweep.search.loop.checks.check_run`), the study is running
            elsewhere or has changed, or the store is not one of this program.
    """
    inputs = StudyInputs(
        data=check_run(spec, options, on_progress, may_download=not preview),
        plugin=digest_plugin(options.plugin),
        origin=options.origin,
    )
    places = () if preview else options.warm_start
    earlier = tuple(result for place in places for result in read_earlier(place, spec))
    open_records = open_for_preview if preview else open_for_writing
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(open_records(spec, options, inputs))
        reuse_index = None
        if options.reuse:
            own_file = None if preview or options.store else study_file(spec, options)
            reuse_index = open_reuse_index(store, options.root, own_file, options.reuse_from)
            stack.enter_context(contextlib.closing(reuse_index))
        executor, packed, environment = stack.enter_context(_open_executor(spec, options, None if preview else store))
        session = Session(
            spec=spec,
            options=options,
            opened_store=store,
            reuse_index=reuse_index,
            executor=executor,
            probe_book=stack.enter_context(open_shared_book(options.root)),
            earlier=earlier,
            inputs=inputs,
            is_preview=preview,
            packed=packed,
        )
        if packed:
            share_devices(spec, packed, session.forecaster, environment, options.executor)
            session.forecaster.save_probes(session.store)
        yield session


@dataclass(frozen=True, kw_only=True)
class Session:
    """An opened study."""

    spec: StudySpec
    options: Options
    opened_store: Store | None  # None: a preview of a study that has no records
    reuse_index: ReuseIndex | None
    executor: QueryableExecutor
    probe_book: ProbeBook | None
    earlier: tuple[EarlierResult, ...] = ()  # what the sampler learns from beforehand
    inputs: StudyInputs = field(default_factory=StudyInputs)
    is_preview: bool = False
    packed: PackedExecutor | None = None  # the part of the executor that shares devices

    @property
    def data(self) -> DataSummary:
        """The images that the trials read, as they were counted."""
        assert self.inputs.data is not None
        return self.inputs.data

    @property
    def folder(self) -> Path:
        return self.options.root / self.spec.name

    @property
    def store(self) -> Store:
        assert self.opened_store is not None, "a preview of a study that has no records"
        return self.opened_store

    @property
    def records_place(self) -> str:
        """The argument of ``load_frames`` that reads this study."""
        return f"{self.options.store}#{self.spec.name}" if self.options.store else str(self.folder)

    @cached_property
    def forecaster(self) -> Forecaster:
        """Predicts the cost of configurations on the machine of the executor."""
        device, plugin = self.options.executor.device, self.options.plugin
        held_out = (self.inputs.data.num_val or 0) + (self.inputs.data.num_test or 0) if self.inputs.data else 0
        return Forecaster(
            self.spec, self.executor, self.probe_book, device=device, plugin=plugin, num_held_out=held_out
        )

    @cached_property
    def key_of(self) -> KeyMaker:
        return KeyMaker(self.options.plugin, self.data.digest)

    @cached_property
    def repeated_crashes(self) -> RepeatedCrashes:
        """The trials that had crashed in the same way when the study was opened; a run tries them again."""
        if self.opened_store is None:
            return RepeatedCrashes()
        return list_repeated_crashes(self.store, self.spec.name, self.store.trial_records(self.spec.name))

    def forecast(self) -> Forecast:
        """The forecast of the rest of the study. Probes a few shapes and, except in a preview, records those used."""
        records = self.opened_store.trial_records(self.spec.name) if self.opened_store else []
        records = [each for each in records if each.number not in self.repeated_crashes.numbers]
        forecast = self.forecaster.forecast(PlannedTrials(records, self._is_reusable, self._limit_seconds))
        if not self.is_preview:
            self.forecaster.save_probes(self.store)
        return forecast

    def run(self, shutdown: Shutdown | None = None) -> Generator[Event, None, None]:
        """Runs the study to its end, or until ``shutdown`` is requested; see
        :class:`sweep.search.loop.tuner.Tuner`."""
        plan = self._plan_run(shutdown or Shutdown())
        with contextlib.ExitStack() as stack:
            mirror = stack.enter_context(contextlib.closing(Mirror(self.store.database.url, self.spec)))
            tuner = Tuner(self.spec, self.store, self.executor, plan)
            mirror.add(tuner.records())  # a killed run may have left some out
            disk_space = self._disk_space(len(tuner.records()) - len(self.repeated_crashes.numbers))
            disk_space.check_before()
            for event in stack.enter_context(contextlib.closing(tuner.run())):
                yield event
                if isinstance(event, TrialEnded):
                    disk_space.check_between()
                if isinstance(event, TrialEnded | TrialReused):
                    mirror.add([event.record])
                else:  # the children train
                    mirror.write_next()
            mirror.write_all()
            self.forecaster.save_probes(self.store)

    def _plan_run(self, shutdown: Shutdown) -> RunPlan:
        now = time.monotonic()
        forecaster = self.forecaster
        return RunPlan(
            key_of=self.key_of,
            find_reusable=self._find_reusable,
            expect_data=expect_data(self.spec, self.data),
            deadline=now + self._limit_seconds,
            search_deadline=now + (self.spec.search_timeout or math.inf),
            device=self.options.executor.device,
            plugin=self.options.plugin,
            checkpoint_root=self.folder / "checkpoints",
            memory_gate=forecaster.memory_gate,
            solo_probes=SoloProbes(
                forecaster.prober, forecaster.device_class, can_probe=self.options.executor.name in _PROBES_AT_ONCE
            ),
            shutdown=shutdown,
            resumed_by=self.options.resumed_by,
            make_sampler=partial(make_sampler, predict=forecaster.cost_model.predict_metric),
            prior=make_prior_records(self.earlier, self.spec, forecaster.device_class) if self.earlier else (),
        )

    def _find_reusable(self, key: str, required: frozenset[str]) -> ReusableTrial | None:
        return self.reuse_index.find(key, self.forecaster.machine, required) if self.reuse_index else None

    def _is_reusable(self, config: TrialConfig) -> bool:
        return self._find_reusable(self.key_of(config), frozenset(self.spec.objectives)) is not None

    @property
    def _limit_seconds(self) -> float:
        return self.options.timeout_seconds or self.spec.timeout or math.inf

    def _disk_space(self, num_recorded: int) -> DiskSpace:
        num_trials = self.spec.trials + self.spec.confirm.count_expected(self.spec.trials)
        num_left = 0 if self.options.store else max(num_trials - num_recorded, 0)
        checkpoint_bytes = partial(estimate_checkpoint_bytes, self.spec, self.forecaster.prober)
        return DiskSpace(self.folder, num_left, self.executor.slots, checkpoint_bytes)


Watch = Callable[["Session"], contextlib.AbstractContextManager[Callable[[Event], None]]]


def run_study(spec: StudySpec, options: Options | None = None, watch: Watch | None = None) -> Path:
    """Runs or resumes ``spec`` to its end and returns its folder. Writes records and no report; ``watch`` opens what is
    called with each event.

    Raises:
        KeyboardInterrupt: after Ctrl-C, when what was trained has written a checkpoint.
        SystemExit: likewise after SIGTERM (143) and SIGUSR1 (75). Both in the main thread only, which gets signals.
    """
    with open_session(spec, options or Options()) as session, contextlib.ExitStack() as stack:
        show = stack.enter_context(watch(session)) if watch else None
        with shutdown_on_signals() as shutdown, contextlib.closing(session.run(shutdown)) as events:
            for event in events:
                if show:
                    show(event)
        shutdown.raise_if_requested()
        return session.folder


@contextlib.contextmanager
def _open_executor(
    spec: StudySpec, options: Options, store: Store | None
) -> Iterator[tuple[QueryableExecutor, PackedExecutor | None, dict[str, str]]]:
    """The executor; where trials can share a device, its packed part and the environment for them. Without a ``store``
    for probes and estimates alone."""
    log_dir = options.root / spec.name / "logs" if store else None
    is_packed = options.executor.is_packed and store is not None
    with share_gpu(device_type(options.executor) if is_packed else "cpu") as environment:
        trainer = make_executor(options.executor, log_dir, spec.largest_world_size, options.root)
        if store is None:
            with QueryableExecutor(trainer) as executor:
                yield executor, None, environment
            return
        monitor, references = Monitor(make_source), _reference_seconds(store, spec.name)
        monitored = MonitoredExecutor(trainer, monitor, references)
        packed: PackedExecutor | None = None
        if is_packed and isinstance(trainer, ProcessExecutor):
            packed = PackedExecutor(monitored, trainer)
        with QueryableExecutor(packed or monitored, spec.stall_timeout) as executor:
            yield executor, packed, environment


def _reference_seconds(store: Store, study: str) -> dict[str, list[float]]:
    """How long the reference work took before the trials on record, by device class."""
    found: dict[str, list[float]] = {}
    for record in store.trial_records(study):
        seconds = record.measurements.get("reference_seconds")
        if seconds is not None and not record.reused_from:
            found.setdefault(record.device, []).append(seconds)
    return found
