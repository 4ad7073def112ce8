"""A session opens a study - its folder, lock, store and executor - and runs it or forecasts what is left of it."""

import contextlib
import math
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path

from sweep.config.commands import StudyOrigin
from sweep.config.errors import InputError, hide_credentials
from sweep.config.study import StudySpec
from sweep.config.study_file import find_differences
from sweep.config.trial import TrialConfig
from sweep.executors.base import QueryableExecutor
from sweep.executors.monitored import MonitoredExecutor, make_source
from sweep.executors.packed import PackedExecutor
from sweep.executors.process import ProcessExecutor
from sweep.executors.table import (
    ExecutorSettings,
    check_executor,
    check_objectives,
    check_ranks,
    device_type,
    make_executor,
)
from sweep.foreign.imported import is_imported
from sweep.measurement.monitor import Monitor
from sweep.probing.prober import SoloProbes, open_shared_book
from sweep.records.database import database_lock, study_lock
from sweep.records.files import is_export
from sweep.records.inputs import DataSummary, StudyInputs, digest_plugin, find_changed_inputs
from sweep.records.records import ReusableTrial
from sweep.records.store import ProbeBook, Store, open_store
from sweep.search.attempts import DiskSpace, RunPlan, estimate_checkpoint_bytes
from sweep.search.breaker import RepeatedCrashes, list_repeated_crashes
from sweep.search.optuna import Mirror
from sweep.search.reuse import (
    ASIDE,
    EarlierResult,
    ReuseIndex,
    list_reuse_files,
    make_prior_records,
    open_reuse_index,
    read_earlier,
)
from sweep.search.samplers import make_sampler
from sweep.search.sharing import check_device_sharing, share_devices
from sweep.search.shutdown import Shutdown, shutdown_on_signals
from sweep.search.study_forecast import Forecast, Forecaster
from sweep.search.tuner import Event, KeyMaker, TrialEnded, TrialReused, Tuner
from sweep.training.data.folders import OnProgress
from sweep.training.data.sources import check_data, check_norm, check_precision, expect_data


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a study is run, as opposed to what it studies: the options of ``sweep run`` and :func:`sweep.run_study`.

    Attributes:
        root: folder with a folder for each study.
        store: SQLAlchemy URL of a shared store; None is the study's own SQLite file.
        executor: what runs the trials, and on which devices.
        fresh: set the records of the study aside and start again.
        reuse: take complete trials of equal content from records under ``root`` instead of training them again.
        reuse_from: further folders to take them from.
        plugin: path of a Python file that adds models and data sets. Every process of the study loads it; this one does
            so by :func:`sweep.load_plugin`, before the study is loaded.
        timeout_seconds: of the run, instead of the study's own.
        warm_start: paths or URLs of earlier results that the sampler learns from.
        resumed_by: what resumes the study, in words or as a command, for messages.
        origin: what the study was given by on the command line; it is recorded, so that printed commands repeat it.
    """

    root: Path = Path("runs")
    store: str | None = field(default=None, repr=False)
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)
    fresh: bool = False
    reuse: bool = True
    reuse_from: Sequence[Path] = ()
    plugin: str | None = None
    timeout_seconds: float | None = None
    warm_start: Sequence[str] = ()
    resumed_by: str = "the same command again"
    origin: StudyOrigin = field(default_factory=StudyOrigin)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))  # a text is accepted too


# ---------------------------------------------------------------------- checks before anything runs or is written


def _check_run(
    spec: StudySpec, options: Options, on_progress: OnProgress | None = None, *, may_download: bool = False
) -> DataSummary:
    """Checks whether ``spec`` can run with ``options``, in the same order for every kind of run; what its data holds.

    Raises:
        InputError: an unknown executor or device, too few devices, no study at a path to reuse from, an objective that
            cannot be measured, data or a precision that is missing, or a device that cannot be shared.
    """
    if options.store is not None and "://" not in options.store:
        known = "postgresql+psycopg://user@host/database or sqlite:////absolute/path.sqlite"
        raise InputError(f"--store {hide_credentials(options.store)}: not a database URL; give one like {known}.")
    if options.reuse_from and not options.reuse:
        raise InputError("--reuse none and another --reuse exclude each other; leave one out.")
    check_executor(options.executor)
    list_reuse_files(options.reuse_from)
    check_ranks(options.executor, spec.largest_world_size)
    check_objectives(spec, options.executor)
    if options.executor.is_packed:
        check_device_sharing(spec)
    return check_inputs(spec, device_type(options.executor), on_progress, may_download=may_download)


def check_inputs(
    spec: StudySpec, device_type: str, on_progress: OnProgress | None = None, *, may_download: bool = False
) -> DataSummary:
    """Checks every precision and the data set of the study on a ``device_type`` (cpu, cuda); what the set holds.

    Raises:
        InputError: data is missing or empty, or the device type does not have a precision or a norm.
    """
    for config in spec.corners.of("precision"):
        check_precision(config.precision, device_type)
    checked: dict[object, DataSummary] = {}
    for config in spec.corners.of("data", "model", "distributed"):
        check_norm(config, device_type)
        inputs = (config.data, config.model.weights)
        if inputs not in checked:
            checked[inputs] = check_data(config, on_progress=on_progress, may_download=may_download)
    return next(iter(checked.values()))  # the images are the same for all configurations of a study


def check_config(config: TrialConfig, executor: ExecutorSettings) -> DataSummary:
    """Checks whether ``config`` alone can run, as :func:`_check_run` does; what its data set holds."""
    check_executor(executor)
    check_ranks(executor, config.distributed.world_size)
    check_precision(config.precision, device_type(executor))
    check_norm(config, device_type(executor))
    return check_data(config, may_download=True)


# ---------------------------------------------------------------------- the records of a study

_NOTHING_LEARNED = frozenset({"crashed", "cancelled", "not_fitting"})  # outcomes without a result of the images


def study_file(spec: StudySpec, options: Options) -> Path:
    """The SQLite file of the study, which exists unless the records are in a database."""
    return options.root / spec.name / "study.sqlite"


@contextlib.contextmanager
def _open_for_preview(spec: StudySpec, options: Options, inputs: StudyInputs) -> Iterator[Store | None]:
    """The study's records, read only; None if there are none, or if ``--fresh`` would set them aside.

    Raises:
        InputError: the study, or what its trials read, has changed.
    """
    file = study_file(spec, options)
    _refuse_export(file, options)
    if options.fresh or (options.store is None and not file.exists()):
        yield None
        return
    with contextlib.closing(open_store(options.store or file, read_only=True)) as store:
        if (recorded := store.load_spec(spec.name)) is not None:
            _refuse_changes(store, recorded, spec, inputs, file.parent)
        yield store


@contextlib.contextmanager
def _open_for_writing(spec: StudySpec, options: Options, inputs: StudyInputs) -> Iterator[Store]:
    """The study's records, for this supervisor alone; a new study is recorded.

    Raises:
        InputError: the folder cannot be written, the study is running elsewhere, or it, or what its trials read, has
            changed.
    """
    file = study_file(spec, options)
    folder = file.parent
    _refuse_export(file, options)
    with contextlib.ExitStack() as stack:
        try:
            if options.fresh:
                _set_aside(folder, options)
            stack.enter_context(study_lock(folder))
        except OSError as error:
            reason = f"cannot be written: {error.strerror}"
            raise InputError(f"{folder}: {reason}; choose another folder with --root.") from None
        store = stack.enter_context(contextlib.closing(open_store(options.store or file, create=True)))
        stack.enter_context(database_lock(store.database, spec.name))
        if (recorded := store.load_spec(spec.name)) is not None:
            _refuse_changes(store, recorded, spec, inputs, folder)
            store.update_spec(spec)
        elif options.store is None and (others := store.study_names()):  # some file systems ignore case
            raise InputError(f"{folder}: it holds the study {others[0]!r}, not {spec.name!r}; choose another name.")
        else:
            store.create_study(spec)
        store.record_inputs(spec.name, inputs)
        yield store


def _refuse_export(file: Path, options: Options) -> None:
    # A store beside the exported records would hide them.
    folder = file.parent
    if options.store is None and not options.fresh and not file.exists() and is_export(folder):
        raise InputError(
            f"{folder}: it holds exported records, which a run beside them would hide; import them first with "
            f"`sweep import {shlex.quote(str(folder))} --root OTHER` and run with --root OTHER, or give another --root."
        )
    if options.store is None and is_imported(folder):
        raise InputError(f"{folder}: it holds records of another program; give the study another name.")


def _refuse_changes(store: Store, recorded: StudySpec, spec: StudySpec, inputs: StudyInputs, folder: Path) -> None:
    """Raises ``InputError`` with each difference if the records were made by another study, or from other inputs."""
    if changed := find_differences(recorded, spec):
        raise InputError(
            f"study {spec.name!r}: its records in {folder} were made with another study:\n  "
            + "\n  ".join(changed)
            + "\nGive the study a new name, or set the old records aside with --fresh."
        )
    # While every trial has failed, a repair is welcome.
    is_trained = any(record.outcome not in _NOTHING_LEARNED for record in store.trial_records(spec.name))
    if is_trained and (changed := find_changed_inputs(store.load_inputs(spec.name), inputs)):
        raise InputError(
            f"study {spec.name!r}: what its trials read has changed since its records in {folder} were made:\n  "
            + "\n  ".join(changed)
            + "\nRestore it, give the study a new name, or set the old records aside with --fresh."
        )


def _set_aside(folder: Path, options: Options) -> None:
    if options.store is not None:
        raise InputError("--fresh: records in a database stay where they are; give the study a new name instead.")
    if not folder.exists():
        return
    with study_lock(folder):  # a study that is running keeps its folder
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        folder.rename(folder.with_name(f"{folder.name}{ASIDE}{stamp}"))


# ---------------------------------------------------------------------- an opened study

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
        InputError: what is requested is not there (:func:`_check_run`), the study is running elsewhere or has changed,
            or the store is not one of this program.
    """
    data = _check_run(spec, options, on_progress, may_download=not preview)
    inputs = StudyInputs(data=data, plugin=digest_plugin(options.plugin), origin=options.origin)
    sources = () if preview else options.warm_start
    earlier = tuple(result for source in sources for result in read_earlier(source, spec))
    with contextlib.ExitStack() as stack:
        open_records = _open_for_preview if preview else _open_for_writing
        store = stack.enter_context(open_records(spec, options, inputs))
        reuse_index = None
        if options.reuse:
            own_file = None if preview or options.store else study_file(spec, options)
            reuse_index = open_reuse_index(store, options.root, own_file, options.reuse_from)
            stack.enter_context(contextlib.closing(reuse_index))
        executor, packed = stack.enter_context(_open_executor(spec, options, None if preview else store))
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
            share_devices(spec, packed, session.forecaster, options.executor.per_device or 1)
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
        data = self.inputs.data
        return Forecaster(
            self.spec,
            self.executor,
            self.probe_book,
            device=self.options.executor.device,
            plugin=self.options.plugin,
            num_held_out=(data.num_val or 0) + (data.num_test or 0) if data else 0,
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
        forecast = self.forecaster.forecast(records, self._is_reusable, self._limit_seconds)
        if not self.is_preview:
            self.forecaster.save_probes(self.store)
        return forecast

    def run(self, shutdown: Shutdown | None = None) -> Generator[Event, None, None]:
        """Runs the study to its end, or until ``shutdown`` is requested (:class:`sweep.search.tuner.Tuner`)."""
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
        now, options, forecaster = time.monotonic(), self.options, self.forecaster
        can_probe = options.executor.name in _PROBES_AT_ONCE
        return RunPlan(
            key_of=self.key_of,
            find_reusable=self._find_reusable,
            expect_data=expect_data(self.spec, self.data),
            deadline=now + self._limit_seconds,
            search_deadline=now + (self.spec.search_timeout or math.inf),
            device=options.executor.device,
            plugin=options.plugin,
            checkpoint_root=self.folder / "checkpoints",
            memory_gate=forecaster.memory_gate,
            solo_probes=SoloProbes(forecaster.prober, forecaster.device_class, can_probe=can_probe),
            shutdown=shutdown,
            resumed_by=options.resumed_by,
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
) -> Iterator[tuple[QueryableExecutor, PackedExecutor | None]]:
    """The executor, and its packed part if trials share a device. Without a ``store`` it is for probes and estimates
    alone."""
    log_dir = options.root / spec.name / "logs" if store else None
    trainer = make_executor(options.executor, log_dir, spec.largest_world_size, options.root)
    if store is None:
        with QueryableExecutor(trainer) as executor:
            yield executor, None
        return
    monitored = MonitoredExecutor(trainer, Monitor(make_source), _reference_seconds(store, spec.name))
    packed = None
    if options.executor.is_packed and isinstance(trainer, ProcessExecutor):
        packed = PackedExecutor(monitored, trainer)
    with QueryableExecutor(packed or monitored, spec.stall_timeout) as executor:
        yield executor, packed


def _reference_seconds(store: Store, study: str) -> dict[str, list[float]]:
    """How long the reference work took before the trials on record, by device class."""
    by_device: dict[str, list[float]] = {}
    for record in store.trial_records(study):
        seconds = record.measurements.get("reference_seconds")
        if seconds is not None and not record.reused_from:
            by_device.setdefault(record.device, []).append(seconds)
    return by_device
