"""The checks before anything runs or is written. Every kind of run makes them in the same order."""

from collections.abc import Callable, Iterable
from functools import partial

from sweep.config.errors import InputError, hide_credentials
from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.executors.measurability import check_objectives
from sweep.executors.table import ExecutorSettings, check_executor, check_ranks, device_type
from sweep.records.data_summary import DataSummary
from sweep.search.earlier.reuse_index import list_reuse_files
from sweep.search.loop.device_sharing import check_device_sharing
from sweep.search.loop.run_options import Options
from sweep.training.data.data_checks import check_data, check_norm, check_precision
from sweep.training.data.folders.inspection import OnProgress


def check_run(
    spec: StudySpec, options: Options, on_progress: OnProgress | None = None, *, may_download: bool = False
) -> DataSummary:
    """Checks whether ``spec`` can run with ``options``; what its data set holds.

    Raises:
        InputError: an unknown executor or device, too few devices, no study at a path to reuse from, an objective that
            cannot be measured, data or a precision that is missing, or a device that cannot be shared.
    """
    if options.store is not None and "://" not in options.store:
        known = "postgresql+psycopg://user@host/database or sqlite:////absolute/path.sqlite"
        raise InputError(f"--store {hide_credentials(options.store)}: not a database URL; give one like {known}.")
    if options.reuse_from and not options.reuse:
        raise InputError("--reuse and --no-reuse exclude each other; leave one out.")
    check_executor(options.executor)
    list_reuse_files(options.reuse_from)
    check_ranks(options.executor, spec.largest_world_size)
    check_objectives(spec, options.executor)
    if options.executor.is_packed:
        check_device_sharing(spec)
    return check_inputs(spec, device_type(options.executor), on_progress, may_download=may_download)


def check_config(config: TrialConfig, executor: ExecutorSettings) -> DataSummary:
    """Checks whether ``config`` alone can run; raises ``InputError`` as :func:`check_run`. What its data set holds."""
    check_executor(executor)
    check_ranks(executor, config.distributed.world_size)
    return _check_configs([config], [config], device_type(executor), partial(check_data, may_download=True))


def check_inputs(
    spec: StudySpec, device_type: str, on_progress: OnProgress | None = None, *, may_download: bool = False
) -> DataSummary:
    """Checks every precision and the data set of the study on a ``device_type`` (cpu, cuda); what the set holds.

    Raises:
        InputError: data is missing or empty, or the device type does not have a precision or a norm.
    """
    anywhere = next(spec.corners())  # some keys require others, which may be swept
    by_precision, by_inputs = (
        (spec.config(anywhere | values) for values in spec.corners(*sections))
        for sections in (("precision",), ("data", "model", "distributed"))
    )
    check = partial(check_data, on_progress=on_progress, may_download=may_download)
    return _check_configs(by_precision, by_inputs, device_type, check)


def _check_configs(
    by_precision: Iterable[TrialConfig],
    by_inputs: Iterable[TrialConfig],
    device_type: str,
    check: Callable[[TrialConfig], DataSummary],
) -> DataSummary:
    for config in by_precision:
        check_precision(config.precision, device_type)
    checked: dict[object, DataSummary] = {}
    for config in by_inputs:
        check_norm(config, device_type)
        inputs = (config.data, config.model.weights)
        if inputs not in checked:
            checked[inputs] = check(config)
    return next(iter(checked.values()))  # the images are the same for all configurations of a study
