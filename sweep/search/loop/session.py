"""Opens a study's folder and runs it: the lock, the store, the check that the study is still the same, the tuner."""

import contextlib
import math
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import final

from sweep.config.errors import InputError, shown
from sweep.config.study import StudySpec, differences
from sweep.config.trial_config import TrialConfig
from sweep.executors.monitored import MonitoredExecutor, source_of
from sweep.executors.packed.mps import mps
from sweep.executors.packed.packed_executor import PackedExecutor
from sweep.executors.process.process_executor import ProcessExecutor
from sweep.executors.queryable import QueryableExecutor
from sweep.executors.table import ExecutorSettings, check_executor, check_ranks, device_type, make_executor
from sweep.measurement.monitor import Monitor
from sweep.records.content_key import code_digest, trial_key
from sweep.records.probe_records import ProbeBook
from sweep.records.store.lock import database_lock, study_lock
from sweep.records.store.store import Store, open_store
from sweep.records.trial_record import ReusableTrial
from sweep.search.earlier.earlier_results import Earlier, prior_records
from sweep.search.earlier.reuse_index import ASIDE, ReuseIndex, open_library, reuse_files
from sweep.search.earlier.warm_start import read_earlier
from sweep.search.forecast.forecaster import Forecaster
from sweep.search.forecast.prober import shared_book
from sweep.search.forecast.remaining_work import PlannedTrials
from sweep.search.forecast.study_forecast import Forecast
from sweep.search.loop.checkpoint_space import Room, largest_checkpoint_bytes
from sweep.search.loop.device_sharing import check_packing, pack
from sweep.search.loop.events import Event, TrialEnded
from sweep.search.loop.shutdown import Shutdown, departure_on_signals
from sweep.search.loop.tuner import Plan, Tuner
from sweep.search.mirror.optuna_mirror import Mirror
from sweep.search.samplers.table import make_sampler
from sweep.training.data.data_checks import check_data, check_norm, check_precision, data_digest


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a study is run, as against what it asks."""

    root: Path = Path("runs")
    store: str | None = field(default=None, repr=False)  # SQLAlchemy URL; the study's own SQLite file when absent
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)
    fresh: bool = False
    reuse: bool = True
    reuse_from: Sequence[Path] = ()
    plugin: str | None = None
    timeout_seconds: float | None = None  # over the study's own
    warm_start: Sequence[str] = ()  # places of earlier results that the sampler is to learn from


@contextlib.contextmanager
def open_session(spec: StudySpec, options: Options) -> Iterator["Session"]:
    """The study's folder, locked, with its store open and its executor started.

    Raises:
        InputError: the study is running elsewhere, its file changed, its data is missing, or the store is not ours.
    """
    check_options(options)
    check_ranks(options.executor, spec.largest_world_size)
    kind = device_type(options.executor)
    check_inputs(spec, kind)
    if options.executor.is_packed:
        check_packing(spec)
    earlier = tuple(result for place in options.warm_start for result in read_earlier(place, spec))
    folder = options.root / spec.name
    with contextlib.ExitStack() as stack:
        try:
            if options.fresh:
                _set_aside(folder, options)
            stack.enter_context(study_lock(folder))
        except OSError as error:
            reason = f"cannot be written: {error.strerror}"
            raise InputError(f"{folder}: {reason}; choose another folder with --root.") from None
        place = options.store or folder / "study.sqlite"
        store = stack.enter_context(contextlib.closing(open_store(place, create=True)))
        stack.enter_context(database_lock(store.database, spec.name))
        _enter(spec, store, folder, options)
        library = None
        if options.reuse:
            own_file = folder / "study.sqlite" if options.store is None else None
            library = stack.enter_context(
                contextlib.closing(open_library(store, options.root, own_file, options.reuse_from))
            )
        environment = stack.enter_context(mps(kind if options.executor.is_packed else "cpu"))
        trainer = make_executor(options.executor, folder / "logs", spec.largest_world_size, options.root)
        watched = MonitoredExecutor(trainer, Monitor(source_of), _references(store, spec.name))
        packed = (
            PackedExecutor(watched, trainer)
            if options.executor.is_packed and isinstance(trainer, ProcessExecutor)
            else None
        )
        executor = stack.enter_context(QueryableExecutor(packed or watched, spec.stall_timeout))
        book = stack.enter_context(shared_book(options.root))
        session = Session(spec, options, folder, store, library, executor, book, earlier)
        if packed:
            pack(spec, packed, session.foresight, environment, options.executor.per_device)
            session.foresight.keep_in(store)
        yield session


@dataclass(frozen=True)
class Session:
    """An opened study."""

    spec: StudySpec
    options: Options
    folder: Path
    store: Store
    library: ReuseIndex | None
    executor: QueryableExecutor
    book: ProbeBook | None
    earlier: tuple[Earlier, ...] = ()  # what the sampler learns beforehand

    @cached_property
    def foresight(self) -> Forecaster:
        """What is known of the study's configurations beforehand; the executor is asked what machine it has."""
        machine = self.executor.describe()
        return Forecaster(
            self.spec, self.executor, self.book, machine, self.options.executor.device, self.options.plugin
        )

    def forecast(self) -> Forecast:
        """What is to be expected of the rest of the study. Probes a few shapes, and records those that it used."""
        ahead = PlannedTrials(self.store.trial_records(self.spec.name), self._is_known, self._limit_seconds)
        forecast = self.foresight.forecast(ahead)
        self.foresight.keep_in(self.store)
        return forecast

    def _is_known(self, config: TrialConfig) -> bool:
        return self._find(self.key_of(config), frozenset(self.spec.objectives)) is not None

    def _find(self, key: str, needed: frozenset[str]) -> ReusableTrial | None:
        return self.library.find(key, self.foresight.device_class, needed) if self.library else None

    @cached_property
    def key_of(self) -> "KeyMaker":
        """Content keys of this session's configurations."""
        return KeyMaker(self.options.plugin)

    @property
    def _limit_seconds(self) -> float:
        return self.options.timeout_seconds or self.spec.timeout or math.inf

    def _room(self, num_recorded: int) -> Room:
        wanted = self.spec.trials + self.spec.confirm.max_configurations * self.spec.confirm.seeds
        left = 0 if self.options.store else max(wanted - num_recorded, 0)
        size = partial(largest_checkpoint_bytes, self.spec, self.foresight.prober)
        return Room(self.folder, left, self.executor.slots, size)

    @property
    def records_place(self) -> str:
        """What ``load_frames`` takes to read this study."""
        return f"{self.options.store}#{self.spec.name}" if self.options.store else str(self.folder)

    def run(self, departure: Shutdown | None = None) -> Generator[Event, None, None]:
        """Runs the study to its end, or until ``departure`` is asked for; see
        :class:`sweep.search.loop.tuner.Tuner`."""
        started = time.monotonic()
        plan = Plan(
            key_of=self.key_of,
            find=self._find,
            deadline=started + self._limit_seconds,
            device=self.options.executor.device,
            plugin=self.options.plugin,
            checkpoint_root=self.folder / "checkpoints",
            gate=self.foresight.gate,
            departure=departure or Shutdown(),
            make_sampler=partial(make_sampler, known=self.foresight.costs.known),
            prior=prior_records(self.earlier, self.spec, self.foresight.device_class) if self.earlier else (),
        )
        with contextlib.closing(Mirror(self.store.database.url, self.spec)) as mirror:
            tuner = Tuner(self.spec, self.store, self.executor, mirror, plan)
            room = self._room(len(tuner.records()))
            room.check_before()
            with contextlib.closing(tuner.run()) as events:
                for event in events:
                    yield event
                    if isinstance(event, TrialEnded):
                        room.check_between()
            mirror.catch_up(tuner.records())


@final
class KeyMaker:
    """Content keys of configurations; data and weights to start from are looked at once each."""

    def __init__(self, plugin: str | None = None) -> None:
        self._code = code_digest([Path(plugin)] if plugin else [])
        self._torch = version("torch")
        self._data: dict[str, str] = {}

    def __call__(self, config: TrialConfig) -> str:
        section = f"{config.data.model_dump_json()} {config.model.weights}"
        if section not in self._data:
            self._data[section] = data_digest(config)
        return trial_key(config, self._data[section], self._code, self._torch)


def run_study(spec: StudySpec, options: Options | None = None) -> Path:
    """Runs ``spec`` to its end, or goes on with it; returns its folder. Writes records and no report.

    Raises:
        KeyboardInterrupt: after Ctrl-C, when what was trained has written a checkpoint.
        SystemExit: likewise after SIGTERM (143) and SIGUSR1 (75). Both in the main thread only, which hears signals.
    """
    with open_session(spec, options or Options()) as session:
        with departure_on_signals() as departure, contextlib.closing(session.run(departure)) as events:
            for _ in events:
                pass
        departure.insist()
        return session.folder


def check_options(options: Options) -> None:
    """Refuses options that name what is not there, before anything is written.

    Raises:
        InputError: an unknown executor or device, no study at a path to reuse from.
    """
    if options.store is not None and "://" not in options.store:
        known = "postgresql+psycopg://user@host/database or sqlite:////absolute/path.sqlite"
        raise InputError(f"--store {shown(options.store)}: not a database URL; give one like {known}.")
    if options.reuse_from and not options.reuse:
        raise InputError("--reuse and --no-reuse exclude each other; leave one out.")
    check_executor(options.executor)
    reuse_files(options.reuse_from)


def check_inputs(spec: StudySpec, device_type: str) -> None:
    """Looks at every data set and every precision that the study can ask for, before anything runs.

    Raises:
        InputError: data is missing or empty, or a ``device_type`` (cpu, cuda) does not have a precision or a norm.
    """
    seen: set[str] = set()
    anywhere = next(spec.corners())  # some keys want others beside them, which may be swept
    for values in spec.corners("precision"):
        check_precision(spec.config(anywhere | values).precision, device_type)
    for values in spec.corners("data", "model", "distributed"):
        config = spec.config(anywhere | values)
        check_norm(config, device_type)
        section = f"{config.data.model_dump_json()} {config.model.weights}"
        if section not in seen:
            seen.add(section)
            check_data(config)


def _enter(spec: StudySpec, store: Store, folder: Path, options: Options) -> None:
    """Puts the study on record, or finds it there; only its supervisor may change what is."""
    known = store.load_spec(spec.name)
    if known is not None:
        refuse_changes(known, spec, folder)
        store.update_spec(spec)
        return
    if options.store is None and (others := store.study_names()):  # Lr and lr are one folder on some systems
        raise InputError(f"{folder}: it holds the study {others[0]!r}, not {spec.name!r}; choose another name.")
    store.create_study(spec)


def refuse_changes(known: StudySpec, spec: StudySpec, folder: Path) -> None:
    """Raises ``InputError`` with each difference where the records of ``known`` are not what ``spec`` asks for."""
    if changed := differences(known, spec):
        lines = "\n  ".join(changed)
        raise InputError(
            f"study {spec.name!r}: its records in {folder} were made with another study:\n  {lines}\n"
            "Give the study a new name, or set the old records aside with --fresh."
        )


def _references(store: Store, study: str) -> dict[str, list[float]]:
    """What the reference work took before the trials on record, by device class."""
    found: dict[str, list[float]] = {}
    for record in store.trial_records(study):
        seconds = record.measurements.get("reference_seconds")
        if seconds is not None and not record.reused_from:
            found.setdefault(record.device, []).append(seconds)
    return found


def _set_aside(folder: Path, options: Options) -> None:
    if options.store is not None:
        raise InputError("--fresh: records in a database stay where they are; give the study a new name instead.")
    if not folder.exists():
        return
    with study_lock(folder):  # not under the feet of a running study
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        folder.rename(folder.with_name(f"{folder.name}{ASIDE}{stamp}"))
