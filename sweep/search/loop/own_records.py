"""Opens the records of a study: for the supervisor that writes them, or read only for a preview."""

import contextlib
import shlex
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.study_file import find_differences
from sweep.records.frames.exchange import is_export
from sweep.records.store.lock import database_lock, study_lock
from sweep.records.store.store import Store, open_store
from sweep.records.study_inputs import StudyInputs, find_changed_inputs
from sweep.search.earlier.reuse_index import ASIDE
from sweep.search.loop.run_options import Options

_NOTHING_LEARNED = frozenset({"crashed", "cancelled", "not_fitting"})  # outcomes without a result of the images


def study_file(spec: StudySpec, options: Options) -> Path:
    """The SQLite file of the study, which exists unless the records are in a database."""
    return options.root / spec.name / "study.sqlite"


@contextlib.contextmanager
def open_for_preview(spec: StudySpec, options: Options, inputs: StudyInputs) -> Iterator[Store | None]:
    """The study's records, read only; None where there are none, or where ``--fresh`` would set them aside.

    Raises:
        InputError: the study, or what its trials read, has changed.
    """
    file = study_file(spec, options)
    _refuse_export(file, options)
    if options.fresh or (options.store is None and not file.exists()):
        yield None
        return
    with contextlib.closing(open_store(options.store or file, read_only=True)) as store:
        recorded = store.load_spec(spec.name)
        if recorded is not None:
            _refuse_changes(recorded, spec, file.parent)
            _refuse_changed_inputs(store, spec, inputs, file.parent)
        yield store


@contextlib.contextmanager
def open_for_writing(spec: StudySpec, options: Options, inputs: StudyInputs) -> Iterator[Store]:
    """The study's records, for this supervisor alone; the study is recorded if it is new.

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
        recorded = store.load_spec(spec.name)
        if recorded is not None:
            _refuse_changes(recorded, spec, folder)
            _refuse_changed_inputs(store, spec, inputs, folder)
            store.update_spec(spec)
        elif options.store is None and (others := store.study_names()):  # some file systems ignore case
            raise InputError(f"{folder}: it holds the study {others[0]!r}, not {spec.name!r}; choose another name.")
        else:
            store.create_study(spec)
        store.record_inputs(spec.name, inputs)
        yield store


def _refuse_export(file: Path, options: Options) -> None:
    # a store beside the exported records would hide them
    folder = file.parent
    if options.store is None and not options.fresh and not file.exists() and is_export(folder):
        raise InputError(
            f"{folder}: it holds exported records, which a run beside them would hide; import them first with "
            f"`sweep import {shlex.quote(str(folder))} --root OTHER` and run with --root OTHER, or give another --root."
        )


def _refuse_changes(recorded: StudySpec, spec: StudySpec, folder: Path) -> None:
    """Raises ``InputError`` with each difference where the records were made by another study than ``spec``."""
    if changed := find_differences(recorded, spec):
        lines = "\n  ".join(changed)
        raise InputError(
            f"study {spec.name!r}: its records in {folder} were made with another study:\n  {lines}\n"
            "Give the study a new name, or set the old records aside with --fresh."
        )


def _refuse_changed_inputs(store: Store, spec: StudySpec, inputs: StudyInputs, folder: Path) -> None:
    # while every trial has failed, a repair is welcome
    is_trained = any(record.outcome not in _NOTHING_LEARNED for record in store.trial_records(spec.name))
    changed = find_changed_inputs(store.load_inputs(spec.name), inputs) if is_trained else []
    if changed:
        lines = "\n  ".join(changed)
        raise InputError(
            f"study {spec.name!r}: what its trials read has changed since its records in {folder} were "
            f"made:\n  {lines}\n"
            "Restore it, give the study a new name, or set the old records aside with --fresh."
        )


def _set_aside(folder: Path, options: Options) -> None:
    if options.store is not None:
        raise InputError("--fresh: records in a database stay where they are; give the study a new name instead.")
    if not folder.exists():
        return
    with study_lock(folder):  # a study that is running keeps its folder
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        folder.rename(folder.with_name(f"{folder.name}{ASIDE}{stamp}"))
