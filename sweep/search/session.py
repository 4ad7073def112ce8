"""A session opens a study - its folder, lock, store and executor - and runs it or forecasts what is left of it."""

import contextlib
import itertools
import logging
import math
import shlex
import sys
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from sweep.config.commands import StudyOrigin
from sweep.config.errors import InputError, hide_credentials
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.config.study_file import find_differences, load_study
from sweep.config.tables import resolve
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
from sweep.probing.cost_model import ScriptCosts
from sweep.probing.prober import SoloProbes, open_shared_book
from sweep.records.database import database_lock, study_lock
from sweep.records.files import is_export
from sweep.records.inputs import DataSummary, StudyInputs, digest_plugin, find_changed_inputs
from sweep.records.messages import Ending
from sweep.records.quality import find_time_doubts, has_undisturbed_windows
from sweep.records.records import ReusableTrial, TrialRecord
from sweep.records.store import NOTHING_LEARNED, ProbeBook, Store, open_store
from sweep.search.attempts import RunPlan, check_space_before, check_space_between
from sweep.search.breaker import RepeatedCrashes, list_repeated_crashes
from sweep.search.optuna import Mirror
from sweep.search.samplers import make_sampler
from sweep.search.sharing import check_device_sharing, share_devices
from sweep.search.shutdown import Shutdown, shutdown_on_signals
from sweep.search.study_forecast import Forecast, Forecaster, TimeLeft, list_remaining, predict_left
from sweep.search.tuner import Event, KeyMaker, TrialEnded, TrialReused, Tuner
from sweep.training.data.image_maps import OnProgress
from sweep.training.data.sources import check_device, check_inputs, expect_data


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a study is run, as opposed to what it studies: the options of ``sweep run`` and :func:`sweep.run_study`.

    Attributes:
        root: folder with a folder for each study.
        store: SQLAlchemy URL of a shared store; None is the study's own SQLite file.
        executor: what runs the trials, and on which devices.
        fresh: set the records of the study aside and start again.
        reuse: take complete trials of equal content from records under ``root`` instead of training them again.
        plugin: path of a Python file that adds models and data sets. Every process of the study loads it; this one does
            so by :func:`sweep.load_plugin`, before the study is loaded.
        timeout_seconds: of the run, instead of the study's own.
        resumed_by: what resumes the study, in words or as a command, for messages.
        origin: what the study was given by on the command line; it is recorded, so that printed commands repeat it.
    """

    root: Path = Path("runs")
    store: str | None = field(default=None, repr=False)
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)
    fresh: bool = False
    reuse: bool = True
    plugin: str | None = None
    timeout_seconds: float | None = None
    resumed_by: str = "the same command again"
    origin: StudyOrigin = field(default_factory=StudyOrigin)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))  # a text is accepted too


# ---------------------------------------------------------------------- checks before anything runs or is written


def _check_run(
    spec: StudySpec, options: Options, on_progress: OnProgress | None = None, *, may_download: bool = False
) -> DataSummary | None:
    """What the data of ``spec`` holds; None of a script's. Raises ``InputError``: an unknown executor or device, too
    few devices, an objective that cannot be measured, data or a precision that is missing, or a device that cannot be
    shared."""
    if options.store is not None and "://" not in options.store:
        known = "postgresql+psycopg://user@host/database or sqlite:////absolute/path.sqlite"
        raise InputError(f"--store {hide_credentials(options.store)}: not a database URL; give one like {known}.")
    check_devices(spec, options.executor)
    if spec.script:
        spec.script.check()
        return None
    return check_inputs(spec.corners.of("data", "model"), on_progress=on_progress, may_download=may_download)


def check_devices(spec: StudySpec, settings: ExecutorSettings) -> None:
    """Raises ``InputError`` where the executor and its devices cannot run every trial of the study."""
    check_executor(settings)
    check_ranks(settings, spec.largest_world_size)
    check_objectives(spec, settings)
    if spec.script:
        return
    if settings.is_packed:
        check_device_sharing(spec)
    for config in itertools.chain(spec.corners.of("precision"), spec.corners.of("model", "distributed")):
        check_device(config, device_type(settings))


def check_config(config: TrialConfig, executor: ExecutorSettings) -> DataSummary:
    """Checks whether ``config`` alone can run, as :func:`_check_run` does; what its data set holds."""
    check_executor(executor)
    check_ranks(executor, config.distributed.world_size)
    return check_inputs([config], device_type(executor), may_download=True)


# ---------------------------------------------------------------------- the records of a study


def study_file(spec: StudySpec, options: Options) -> Path:
    """The SQLite file of the study, which exists unless the records are in a database."""
    return options.root / spec.name / "study.sqlite"


@contextlib.contextmanager
def _open_for_preview(spec: StudySpec, options: Options, inputs: StudyInputs) -> Iterator[Store | None]:
    """The study's records, read only; None if there are none, or if ``--fresh`` would set them aside. Raises
    ``InputError``: the study, or what its trials read, has changed."""
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
    """The study's records, for this supervisor alone; a new study is recorded. Raises ``InputError`` where the folder
    cannot be written, or the study is running elsewhere or has changed."""
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
    is_trained = any(record.outcome not in NOTHING_LEARNED for record in store.trial_records(spec.name))
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
        folder.rename(folder.with_name(f"{folder.name}{_ASIDE}{stamp}"))


# ---------------------------------------------------------------------- trials of other studies

# With an equal content key, accuracy holds on any device, memory on the same device class, and time there too if its
# quality flags leave no doubt or its undisturbed windows are known. A quality flag is taken over with the trial.

_FACTS_OF_TIMES = ("driver", "cuda", "cudnn", "power_limit_watts")  # of an environment
_ASIDE = ".aside-"  # in the name of a folder that --fresh has set aside
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def _open_reused(own: Store | None, root: Path, own_file: Path | None) -> Iterator[list[Store]]:
    """Opens the records to take trials from: the study's own, and all studies under ``root`` except ``own_file``. A
    study that cannot be read is left out, with a warning."""
    with contextlib.ExitStack() as stack:
        stores = [own] if own else []
        for path in sorted(root.glob("*/study.sqlite")):
            if _ASIDE in path.parent.name or (own_file is not None and path.resolve() == own_file.resolve()):
                continue
            try:
                stores.append(stack.enter_context(contextlib.closing(open_store(path, read_only=True))))
            except InputError as error:
                _log.warning("no reuse from %s: %s", path, error)
        yield stores


def find_portable(
    stores: Sequence[Store], key: str, machine: Mapping[str, Any], required: Iterable[str]
) -> ReusableTrial | None:
    """A trial of that content key that has every ``required`` metric valid on ``machine``, or None."""
    names = set(required)
    for store in stores:
        trial = store.find_by_key(key)
        if trial is None:
            continue
        ending, evaluations = keep_portable(trial.ending, machine, is_timed=trial.is_timed), trial.evaluations
        if not _is_same_machine(trial.ending, machine):
            evaluations = tuple(replace(each, train_seconds=math.nan) for each in evaluations)
        if names <= ending.measurements.keys():
            return replace(trial, ending=ending, evaluations=evaluations)
    return None


def keep_portable(ending: Ending, machine: Mapping[str, Any], *, is_timed: bool = False) -> Ending:
    """The part of ``ending`` that holds on ``machine``, a mapping with ``device`` and the facts of its environment.

    On the device class where it was measured, with the same driver, libraries and power limit, everything holds
    except times in doubt; elsewhere, what does not depend on the device. If the budget of the trial was in seconds
    (``is_timed``), nothing else does, because a slower training takes fewer steps.
    """
    is_same = _is_same_machine(ending, machine)
    has_windows = has_undisturbed_windows(ending.quality_flags, ending.measurements)
    if is_same and (not find_time_doubts(ending.quality_flags) or (has_windows and not is_timed)):
        return ending
    kept = {
        name: value
        for name, value in ending.measurements.items()
        if (not METRICS[name].is_of_a_device and not is_timed) or (is_same and METRICS[name].is_memory)
    }
    return replace(ending, measurements=kept, bottleneck="")


def _is_same_machine(ending: Ending, machine: Mapping[str, Any]) -> bool:
    facts = ending.environment  # empty in results of other programs, which name the device alone
    known = [name for name in _FACTS_OF_TIMES if name in facts and name in machine]
    return bool(ending.device == machine["device"] and all(facts[name] == machine[name] for name in known))


# ---------------------------------------------------------------------- an opened study

_PROBES_AT_ONCE = frozenset({"inline", "process"})  # executors on which a probe waits for no machine


@contextlib.contextmanager
def open_session(
    spec: StudySpec, options: Options, *, preview: bool = False, on_progress: OnProgress | None = None
) -> Iterator["Session"]:
    """Opens the study for a run: its folder locked, its store open, its executor started.

    A ``preview`` is for a forecast alone and refuses what a run would refuse, but writes nothing except probes: there
    is no folder, no lock and no record of the study. ``on_progress`` is called while the images of a folder are decoded
    for the first time. Raises ``InputError``: what is requested is not there (:func:`_check_run`), the study is running
    elsewhere or has changed, or the store is not one of this program."""
    data = _check_run(spec, options, on_progress, may_download=not preview)
    script = digest_plugin(str(spec.script.file)) if spec.script and spec.script.file else {}
    inputs = StudyInputs(
        data=data, plugin=digest_plugin(options.plugin), script=script, origin=options.origin.locate()
    )  # fmt: skip
    with contextlib.ExitStack() as stack:
        open_records = _open_for_preview if preview else _open_for_writing
        store = stack.enter_context(open_records(spec, options, inputs))
        reused: list[Store] = []
        if options.reuse:
            own_file = None if preview or options.store else study_file(spec, options)
            reused = stack.enter_context(_open_reused(store, options.root, own_file))
        executor, packed = stack.enter_context(_open_executor(spec, options, None if preview else store))
        session = Session(
            spec=spec,
            options=options,
            opened_store=store,
            reused=reused,
            executor=executor,
            probe_book=stack.enter_context(open_shared_book(options.root)),
            inputs=inputs,
            is_preview=preview,
            packed=packed,
        )
        if packed and spec.script:
            packed.pack(options.executor.per_device or 1, session.forecaster.device_class, lambda _config: False)
        elif packed:
            share_devices(spec, packed, session.forecaster, options.executor.per_device or 1)
            session.forecaster.save_probes(session.store)
        yield session


@dataclass(frozen=True, kw_only=True)
class Session:
    """An opened study."""

    spec: StudySpec
    options: Options
    opened_store: Store | None  # None: a preview of a study that has no records
    reused: Sequence[Store]  # to take trials from, the study's own first
    executor: QueryableExecutor
    probe_book: ProbeBook | None
    inputs: StudyInputs = field(default_factory=StudyInputs)
    is_preview: bool = False
    packed: PackedExecutor | None = None  # the part of the executor that shares devices

    @property
    def data(self) -> DataSummary | None:
        """The images that the trials read, as they were counted; None where a script reads its own."""
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
        return Forecaster(
            self.spec,
            self.executor,
            self.probe_book,
            device=self.options.executor.device,
            plugin=self.options.plugin,
            data=self.data,
        )

    @cached_property
    def key_of(self) -> KeyMaker:
        if self.spec.script:
            return KeyMaker(str(self.spec.script.file or "") or None, self.spec.script.data, self.spec.script.command)
        return KeyMaker(self.options.plugin, self.data.digest if self.data else "")

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

    def predict_left(self, records: Sequence[TrialRecord], elapsed_seconds: float) -> TimeLeft | None:
        """The time that a run which began ``elapsed_seconds`` ago still takes after ``records``."""
        limit, slots = self._limit_seconds, self.forecaster.slots
        work = list_remaining(self.spec, slots, records, limit_seconds=limit, elapsed_seconds=elapsed_seconds)
        return predict_left(work, self.forecaster.cost_model, records)

    def run(self, shutdown: Shutdown | None = None) -> Generator[Event, None, None]:
        """Runs the study to its end, or until ``shutdown`` is requested (:class:`sweep.search.tuner.Tuner`)."""
        plan = self._plan_run(shutdown or Shutdown())
        with contextlib.ExitStack() as stack:
            mirror = stack.enter_context(contextlib.closing(Mirror(self.store.database.url, self.spec)))
            tuner = Tuner(self.spec, self.store, self.executor, plan)
            self.forecaster.learn(tuner.records())
            mirror.add(tuner.records())  # a killed run may have left some out
            num_trials = self.spec.trials + self.spec.confirm.count_expected(self.spec.trials)
            num_left = num_trials - len(tuner.records()) + len(self.repeated_crashes.numbers)
            check_space_before(self.folder, 0 if self.options.store else max(num_left, 0))
            for event in stack.enter_context(contextlib.closing(tuner.run())):
                yield event
                if isinstance(event, TrialEnded):
                    check_space_between(self.folder)
                if isinstance(event, TrialEnded | TrialReused):
                    self.forecaster.learn([event.record])
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
            expect_data=expect_data(self.spec, self.data) if self.data else lambda _config: None,
            deadline=now + self._limit_seconds,
            search_deadline=now + (self.spec.search_timeout or math.inf),
            device=options.executor.device,
            plugin=options.plugin,
            checkpoint_root=self.folder / "checkpoints",
            memory_gate=forecaster.memory_gate,
            solo_probes=None
            if self.spec.script
            else SoloProbes(forecaster.prober, forecaster.device_class, can_probe=can_probe),
            shutdown=shutdown,
            resumed_by=options.resumed_by,
            make_sampler=make_sampler
            if isinstance(forecaster.cost_model, ScriptCosts)  # whose trials the sampler learns from itself
            else partial(
                make_sampler,
                predict=forecaster.cost_model.predict_metric,
                chance=self.data.chance if self.data else None,
            ),
        )

    def _find_reusable(self, key: str, required: frozenset[str]) -> ReusableTrial | None:
        return find_portable(self.reused, key, self.forecaster.machine, required)

    def _is_reusable(self, config: TrialConfig) -> bool:
        return self._find_reusable(self.key_of(config), frozenset(self.spec.objectives)) is not None

    @property
    def _limit_seconds(self) -> float:
        return self.options.timeout_seconds or self.spec.timeout or math.inf


def run_study(study: StudySpec | str | Path, options: Options | None = None) -> Path:
    """Runs or resumes a study to its end and returns its folder, which :func:`sweep.load_frames` reads.

    Writes records and no report. In a notebook the cell shows the progress, in one output that is replaced; elsewhere
    nothing is printed.

    Args:
        study: a study, the path of its TOML file, or the name of a shipped one.
        options: where and how it runs; by default in processes on this machine, with records under ``runs``.

    Raises:
        InputError: the study cannot run as it is.
        KeyboardInterrupt: after Ctrl-C or the interruption of the cell, when what was trained has written a checkpoint;
            the same call resumes.
        SystemExit: likewise after SIGTERM (143) and SIGUSR1 (75). Both in the main thread only, which gets signals.
    """
    spec = study if isinstance(study, StudySpec) else load_study(study)
    options, shell = options or Options(), sys.modules.get("IPython")
    is_notebook = shell is not None and hasattr(shell.get_ipython(), "kernel")
    if is_notebook:
        options = replace(options, resumed_by="the same cell again")
    with open_session(spec, options) as session, contextlib.ExitStack() as stack:
        # by its name, because nothing imports the command line
        display = stack.enter_context(resolve("sweep.cli.display:show_in_cell")(session)) if is_notebook else None
        with shutdown_on_signals() as shutdown, contextlib.closing(session.run(shutdown)) as events:
            for event in events:
                if display:
                    display.show(event)
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
