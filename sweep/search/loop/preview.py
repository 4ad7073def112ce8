"""The forecast of a study that is not run: no folder, no lock, no record, but for the probes under the root."""

import contextlib
import math
from collections.abc import Iterator

from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.executors.queryable import QueryableExecutor
from sweep.executors.table import check_ranks, device_type, make_executor
from sweep.records.store.store import Store, open_store
from sweep.search.earlier.reuse_index import ReuseIndex, open_library
from sweep.search.forecast.forecaster import Forecaster
from sweep.search.forecast.prober import shared_book
from sweep.search.forecast.remaining_work import PlannedTrials
from sweep.search.forecast.study_forecast import Forecast
from sweep.search.loop.device_sharing import check_packing
from sweep.search.loop.session import KeyMaker, Options, check_inputs, check_options, refuse_changes


def preview(spec: StudySpec, options: Options) -> Forecast:
    """What :meth:`sweep.search.loop.session.Session.forecast` would say; refuses what a run would refuse.

    Raises:
        InputError: the study's file changed, its data is missing, or what the options name is not there.
    """
    check_options(options)
    check_ranks(options.executor, spec.largest_world_size)
    check_inputs(spec, device_type(options.executor))
    if options.executor.is_packed:
        check_packing(spec)
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(_recorded(spec, options))
        library = stack.enter_context(_library(own, options))
        executor = make_executor(options.executor, None, spec.largest_world_size, options.root)
        consulted = stack.enter_context(QueryableExecutor(executor))
        book = stack.enter_context(shared_book(options.root))
        foresight = Forecaster(spec, consulted, book, consulted.describe(), options.executor.device, options.plugin)
        key_of, needed = KeyMaker(options.plugin), frozenset(spec.objectives)

        def is_known(config: TrialConfig) -> bool:
            return library is not None and library.find(key_of(config), foresight.device_class, needed) is not None

        limit = options.timeout_seconds or spec.timeout or math.inf
        return foresight.forecast(PlannedTrials(own.trial_records(spec.name) if own else (), is_known, limit))


@contextlib.contextmanager
def _recorded(spec: StudySpec, options: Options) -> Iterator[Store | None]:
    """The study's own records, opened for reading; None where it has none, or where they would be set aside."""
    folder = options.root / spec.name
    file = folder / "study.sqlite"
    if options.fresh or (options.store is None and not file.exists()):
        yield None
        return
    with contextlib.closing(open_store(options.store or file, read_only=True)) as store:
        known = store.load_spec(spec.name)
        if known is not None:
            refuse_changes(known, spec, folder)
        yield store


@contextlib.contextmanager
def _library(own: Store | None, options: Options) -> Iterator[ReuseIndex | None]:
    if not options.reuse:
        yield None
        return
    with contextlib.closing(open_library(own, options.root, None, options.reuse_from)) as library:
        yield library
