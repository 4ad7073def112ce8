"""Earlier records: trials of equal content key replace a training.

With an equal key, accuracy holds on any device, memory on the same device class, and time there too if its quality
flags leave no doubt or its undisturbed windows are known. With a budget in seconds accuracy depends on the speed of
the training, so it holds only where time does. A quality flag is taken over with the trial.
"""

import contextlib
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, final

from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.records.messages import Ending
from sweep.records.quality import find_time_doubts, has_undisturbed_windows
from sweep.records.records import ReusableTrial
from sweep.records.store import Store, open_store

_log = logging.getLogger(__name__)
_FACTS_OF_TIMES = ("driver", "cuda", "cudnn", "power_limit_watts")  # of an environment
ASIDE = ".aside-"  # in the name of a folder that --fresh has set aside


@contextlib.contextmanager
def open_reuse_index(own: Store | None, root: Path, own_file: Path | None) -> Iterator["ReuseIndex"]:
    """Opens the records to take trials from: the study's own, and all studies under ``root`` except ``own_file``. A
    study that cannot be read is left out, with a warning."""
    with contextlib.ExitStack() as stack:
        stores = [own] if own else []
        for path in sorted(root.glob("*/study.sqlite")):
            if ASIDE in path.parent.name or (own_file is not None and path.resolve() == own_file.resolve()):
                continue
            try:
                stores.append(stack.enter_context(contextlib.closing(open_store(path, read_only=True))))
            except InputError as error:
                _log.warning("no reuse from %s: %s", path, error)
        yield ReuseIndex(stores)


@final
class ReuseIndex:
    """Looks trials up by content key, the study's own store first."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = stores

    def find(self, key: str, machine: Mapping[str, Any], required: Iterable[str]) -> ReusableTrial | None:
        """A trial of that key that has every ``required`` metric valid on ``machine``, or None."""
        names = set(required)
        for store in self._stores:
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
