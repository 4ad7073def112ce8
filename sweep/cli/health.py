"""The checks of ``sweep doctor``: whether this machine can run studies, and what held up the trials of one.

What is checked is imported where it is, because a broken installation must be reported.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from sweep.config.units import format_count

if TYPE_CHECKING:
    import pandas as pd

    from sweep.records.frames.study_frames import Frames

_PACKAGES = ("torch", "torchvision", "optuna", "pandas", "matplotlib", "sqlalchemy", "nvidia-ml-py")
_MIN_FREE_BYTES = 1 << 30
_AGAIN = "then train again with --fresh --no-reuse"
_REMEDIES = {
    **dict.fromkeys(
        ("uncertain_time", "slowed_by_others", "slower_than_alone", "spread", "drift", "busy_host", "reference_drift"),
        f"close what else runs on the machine, {_AGAIN}",
    ),
    "few_steps": "a larger budget; until then take its times as a rough guide",
    "allocator_retries": "a smaller batch.micro",
    "other_process": f"end the other process or choose another --device, {_AGAIN}",
    "throttled": f"better cooling, or a lower power limit that holds, {_AGAIN}",
    "clock_drift": f"fix the clocks, or give the device a warm-up, {_AGAIN}",
}


class Check(NamedTuple):
    """One result. ``noticed`` is there and no doubt about what was measured; with a ``FAIL`` no study can run."""

    name: str
    status: Literal["ok", "noticed", "note", "FAIL"]
    found: str
    remedy: str = ""


def check_machine() -> Iterator[Check]:
    """What a study requires, then what it can do without."""
    looks: dict[str, Callable[[], str]] = {name: partial(version, name) for name in _PACKAGES}
    looks |= {"device": _find_device, "torchvision models": _import_vision, "record store": _try_store}
    for name, look in looks.items():
        yield _try(name, look, "FAIL", "install: make setup")
    yield _try("NVIDIA driver", _find_driver, "note", "none is needed on a CPU; on a GPU machine install the driver")
    yield _try("optuna-dashboard", partial(version, "optuna-dashboard"), "note", "optional: the extra [dashboard]")
    free = shutil.disk_usage(Path.cwd()).free
    yield Check("disk", "ok" if free >= _MIN_FREE_BYTES else "note", f"{free / 2**30:.1f} GiB free")


def _try(name: str, look: Callable[[], str], failure: Literal["note", "FAIL"], remedy: str) -> Check:
    try:
        return Check(name, "ok", look())
    except Exception as error:
        return Check(name, failure, f"{type(error).__name__}: {error}", remedy)


def _find_device() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return f"CPU, {torch.get_num_threads()} threads; times hold for this CPU only"


def _import_vision() -> str:
    import sweep.training.vision

    return f"import ({sweep.training.vision.__name__})"


def _try_store() -> str:
    from sweep.records.store.store import open_store

    with tempfile.TemporaryDirectory() as folder:
        open_store(Path(folder) / "study.sqlite", create=True).close()
    return "an SQLite file opens and commits"


def _find_driver() -> str:
    import pynvml

    pynvml.nvmlInit()
    driver = pynvml.nvmlSystemGetDriverVersion()
    pynvml.nvmlShutdown()
    return str(driver)


def check_trials(frames: "Frames") -> Iterator[Check]:
    """One result for each bottleneck and each quality warning among the trials that were trained in this study, and
    for the images that they read and each note on them."""
    from reports import labels
    from sweep.analysis.costs import apply_times

    trials = apply_times(frames.trials, frames.probes)
    trials = trials[(trials["reused_from"] == "") & trials["outcome"].notna()]
    yield from _check_bottlenecks(frames, trials)
    yield from _check_warnings(trials)
    if frames.data is None:
        yield Check("data", "note", labels.NOT_COUNTED)
        return
    yield Check("data", "ok", labels.describe_set(frames.data))
    for note in labels.list_notes(frames.data):
        yield Check("data", "note", note)


def _check_bottlenecks(frames: "Frames", trials: "pd.DataFrame") -> Iterator[Check]:
    from sweep.analysis.shortfalls import BOTTLENECK_MEANINGS, suggest_remedy
    from sweep.analysis.statistics import plain_value, read_numbers
    from sweep.records.columns import CONFIG_COLUMNS

    num_processors = int(max(filter(isfinite, read_numbers(frames.environments, "num_cpus")), default=1))
    counts = Counter(trials["bottleneck"].dropna())
    if not counts:
        num_trials = format_count(len(trials), "trial")
        yield Check("bottleneck", "ok", f"not determined in any of {num_trials}", "train for longer")
    for name, count in counts.most_common():
        affected = trials[(trials["bottleneck"] == name).fillna(False)]
        worst = affected.sort_values("train_seconds", ascending=False).iloc[0]  # a change gains most for the slowest
        meaning = f"{BOTTLENECK_MEANINGS.get(name, name)} (trial {worst['number']} for longest)"
        values = {column.path: plain_value(worst[column.name]) for column in CONFIG_COLUMNS}
        yield Check(
            name.replace("_", " "),
            "ok" if name == "compute_bound" else "note",
            f"{count} of {len(trials)} trials: {meaning}",
            suggest_remedy(name, values, num_processors),
        )


def _check_warnings(trials: "pd.DataFrame") -> Iterator[Check]:
    """A note where the flag is a doubt about a measured time and no other time stands for it."""
    from sweep.records.quality_flags import MEANINGS, find_time_doubts

    rows = [text.split(",") for text in trials["quality_flags"]]
    for flag, count in Counter(flag for flags in rows for flag in flags if flag).most_common():
        text, num_lost = f"{count} of {len(rows)} trials: {MEANINGS.get(flag, flag)}", 0
        if find_time_doubts((flag,)):
            affected = trials[[flag in flags for flags in rows]]
            num_lost = int((affected["time_source"] == "").sum())
            text += f" (another time stands for {count - num_lost})" if num_lost < count else ""
        yield Check(flag.replace("_", " "), "note" if num_lost else "noticed", text, _REMEDIES.get(flag, ""))
