"""The checks before anything runs or is written. Every kind of run makes them in the same order."""

from collections.abc import Iterable

from sweep.config.errors import InputError, hide_credentials
from sweep.config.study import StudySpec
from sweep.config.trial_config import TrialConfig
from sweep.executors.table import ExecutorSettings, check_executor, check_ranks, device_type
from sweep.search.earlier.reuse_index import list_reuse_files
from sweep.search.loop.device_sharing import check_device_sharing
from sweep.search.loop.run_options import Options
from sweep.training.data.data_checks import check_data, check_norm, check_precision


def check_run(spec: StudySpec, options: Options) -> None:
    """Checks whether ``spec`` can run with ``options``.

    Raises:
        InputError: an unknown executor or device, too few devices, no study at a path to reuse from, data or a
            precision that is missing, or a device that cannot be shared.
    """
    if options.store is not None and "://" not in options.store:
        known = "postgresql+psycopg://user@host/database or sqlite:////absolute/path.sqlite"
        raise InputError(f"--store {hide_credentials(options.store)}: not a database URL; give one like {known}.")
    if options.reuse_from and not options.reuse:
        raise InputError("--reuse and --no-reuse exclude each other; leave one out.")
    check_executor(options.executor)
    list_reuse_files(options.reuse_from)
    check_ranks(options.executor, spec.largest_world_size)
    check_inputs(spec, device_type(options.executor))
    if options.executor.is_packed:
        check_device_sharing(spec)


def check_config(config: TrialConfig, executor: ExecutorSettings) -> None:
    """Checks whether ``config`` alone can run; raises ``InputError`` as :func:`check_run`."""
    check_executor(executor)
    check_ranks(executor, config.distributed.world_size)
    _check_configs([config], [config], device_type(executor))


def check_inputs(spec: StudySpec, device_type: str) -> None:
    """Checks every precision and every data set that the study can require on a ``device_type`` (cpu, cuda).

    Raises:
        InputError: data is missing or empty, or the device type does not have a precision or a norm.
    """
    anywhere = next(spec.corners())  # some keys require others, which may be swept
    by_precision, by_inputs = (
        (spec.config(anywhere | values) for values in spec.corners(*sections))
        for sections in (("precision",), ("data", "model", "distributed"))
    )
    _check_configs(by_precision, by_inputs, device_type)


def _check_configs(by_precision: Iterable[TrialConfig], by_inputs: Iterable[TrialConfig], device_type: str) -> None:
    for config in by_precision:
        check_precision(config.precision, device_type)
    checked = set()
    for config in by_inputs:
        check_norm(config, device_type)
        inputs = (config.data, config.model.weights)
        if inputs not in checked:
            checked.add(inputs)
            check_data(config)
