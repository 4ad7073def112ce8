"""Takes trials of equal content key from earlier records instead of training them again.

Equal keys share accuracy on any device, memory on the same device class, and times there too unless something
disturbed the device. A doubt that would come again is taken over with the trial.
"""

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import final

from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.measurement.quality import is_disturbed
from sweep.records.messages import Ending, Evaluation
from sweep.records.store.store import Store, open_store
from sweep.records.trial_record import ReusableTrial

_log = logging.getLogger(__name__)
ASIDE = ".aside-"  # in the name of a folder that --fresh has set aside


def list_study_files(root: Path) -> list[Path]:
    """The stores of the studies under ``root``, without those set aside."""
    return sorted(path for path in root.glob("*/study.sqlite") if ASIDE not in path.parent.name)


def list_reuse_files(paths: Sequence[Path]) -> list[Path]:
    """The stores behind ``--reuse``: of each path that of the study there, or those of the studies under it.

    Raises:
        InputError: a path holds no study.
    """
    files: list[Path] = []
    for path in paths:
        found = [path / "study.sqlite"] if (path / "study.sqlite").exists() else list_study_files(path)
        if not found:
            raise InputError(f"--reuse {path}: no study there; give a study's folder or a folder of studies.")
        files.extend(found)
    return files


def open_reuse_index(own: Store | None, root: Path, own_file: Path | None, more: Sequence[Path]) -> "ReuseIndex":
    """The records to take trials from: the study's own, those of all studies under ``root``, and ``more`` (study
    folders or roots).

    Raises:
        InputError: a path of ``more`` holds no study. A study under the root that cannot be read is left out.
    """
    stores = [own] if own else []
    for path in list_study_files(root):
        if own_file is not None and path.resolve() == own_file.resolve():
            continue
        try:
            stores.append(open_store(path, read_only=True))
        except InputError as error:
            _log.warning("no reuse from %s: %s", path, error)
    stores.extend(open_store(file, read_only=True) for file in list_reuse_files(more))
    return ReuseIndex(stores, num_borrowed=1 if own else 0)


@final
class ReuseIndex:
    """Looks trials up by content key, the study's own store first."""

    def __init__(self, stores: Sequence[Store], num_borrowed: int = 1) -> None:
        self._stores = stores
        self._num_borrowed = num_borrowed

    def find(self, key: str, device: str, needed: Iterable[str]) -> ReusableTrial | None:
        """A trial of that key with every metric in ``needed`` valid on ``device``, or None."""
        wanted = set(needed)
        for store in self._stores:
            found = store.find_by_keys([key]).get(key)
            if found is None:
                continue
            ending = keep_portable(found.ending, device)
            if wanted <= ending.measurements.keys():
                return replace(found, ending=ending, evaluations=_portable_curve(found, device))
        return None

    def close(self) -> None:
        """Closes every store but the first, where that belongs to the study."""
        for store in self._stores[self._num_borrowed :]:
            store.close()


def keep_portable(ending: Ending, device: str) -> Ending:
    """What of ``ending`` holds on ``device``: everything on the device class it was measured on, save times where a
    quality flag says that the device was disturbed; on another what does not depend on the device."""
    is_same = ending.device == device
    if is_same and not is_disturbed(ending.quality_flags):
        return ending
    kept = {
        name: value
        for name, value in ending.measurements.items()
        if not METRICS[name].is_of_a_device or (is_same and METRICS[name].is_memory)
    }
    return replace(ending, measurements=kept, bottleneck="")


def _portable_curve(found: ReusableTrial, device: str) -> tuple[Evaluation, ...]:
    if found.ending.device == device:
        return found.evaluations
    return tuple(replace(evaluation, train_seconds=math.nan) for evaluation in found.evaluations)
