"""Takes trials of equal content key from earlier records instead of training them again.

With an equal key, accuracy holds on any device, memory on the same device class, and time there too where its quality
flags leave no doubt, or its undisturbed windows are known. With a budget in seconds accuracy depends on the speed of
the training, and holds only where time does. A quality flag is taken over with the trial.
"""

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.records.messages import Ending, Evaluation
from sweep.records.quality_flags import SLOWED_BY_OTHERS, find_time_doubts
from sweep.records.store.store import Store, open_store
from sweep.records.trial_record import ReusableTrial

_log = logging.getLogger(__name__)
_FACTS_OF_TIMES = ("driver", "cuda", "cudnn", "power_limit_watts")  # of an environment
ASIDE = ".aside-"  # in the name of a folder that --fresh has set aside


def list_study_files(root: Path) -> list[Path]:
    """The store files of the studies under ``root``, without those set aside."""
    return sorted(path for path in root.glob("*/study.sqlite") if ASIDE not in path.parent.name)


def list_reuse_files(paths: Sequence[Path]) -> list[Path]:
    """The store files for ``--reuse``: of each path that of the study there, or those of the studies under it.

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
    """Opens the records to take trials from: the study's own, those of all studies under ``root`` except ``own_file``,
    and ``more`` (study folders or roots). A study under the root that cannot be read is left out, with a warning.

    Raises:
        InputError: a path of ``more`` holds no study.
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
    return ReuseIndex(stores, owns_first=own is None)


@final
class ReuseIndex:
    """Looks trials up by content key, the study's own store first."""

    def __init__(self, stores: Sequence[Store], *, owns_first: bool = False) -> None:
        self._stores = stores
        self._to_close = stores if owns_first else stores[1:]

    def find(self, key: str, machine: Mapping[str, Any], required: Iterable[str]) -> ReusableTrial | None:
        """A trial of that key that has every ``required`` metric valid on ``machine``, or None."""
        names = set(required)
        for store in self._stores:
            found = store.find_by_key(key)
            if found is None:
                continue
            ending = keep_portable(found.ending, machine, is_timed=found.is_timed)
            if names <= ending.measurements.keys():
                return replace(found, ending=ending, evaluations=_portable_curve(found, machine))
        return None

    def close(self) -> None:
        """Closes every store except the study's own."""
        for store in self._to_close:
            store.close()


def keep_portable(ending: Ending, machine: Mapping[str, Any], *, is_timed: bool = False) -> Ending:
    """The part of ``ending`` that holds on ``machine``, of which ``device`` and the facts of its environment are given.

    On the device class where it was measured, with the same driver, libraries and power limit, that is everything,
    without times that are in doubt; elsewhere, what does not depend on the device. Of a trial
    whose budget was in seconds (``is_timed``) nothing else does, because a slower training takes fewer steps.
    """
    is_same = _is_same_machine(ending, machine)
    doubts = find_time_doubts(ending.quality_flags)
    has_windows = doubts == {SLOWED_BY_OTHERS} and "slowdown_by_others" in ending.measurements
    if is_same and (not doubts or (has_windows and not is_timed)):
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


def _portable_curve(found: ReusableTrial, machine: Mapping[str, Any]) -> tuple[Evaluation, ...]:
    if _is_same_machine(found.ending, machine):
        return found.evaluations
    return tuple(replace(evaluation, train_seconds=math.nan) for evaluation in found.evaluations)
