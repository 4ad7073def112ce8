"""Settings and facts of the environment in which two studies differ."""

from sweep.analysis.statistics import plain_value, read_text
from sweep.config.trial_config import config_keys
from sweep.records.frames.study_frames import Frames

# Keys that do not change what is trained.
NOT_TRAINED = frozenset({"data.root", "seed"})
_VARIES = "varies"  # of a setting with several values among the trials of one study
_NO_FACT = "not recorded"


def find_changes(a: Frames, b: Frames, *, with_root: bool) -> dict[str, tuple[str, str]]:
    """The facts that differ by name, as (in A, in B); ``with_root`` includes the folder of the data."""
    facts = [_collect_facts(frames, with_root=with_root) for frames in (a, b)]
    names = dict.fromkeys((*facts[0], *facts[1]))
    values = {name: (facts[0].get(name, _NO_FACT), facts[1].get(name, _NO_FACT)) for name in names}
    return {name: pair for name, pair in values.items() if pair[0] != pair[1]}


def _collect_facts(frames: Frames, *, with_root: bool) -> dict[str, str]:
    # every fact of the environments, several values joined, and every setting: its value where all trials share it
    trials, table = frames.trials, frames.environments.drop(columns=["study", "environment_digest"], errors="ignore")
    devices = ", ".join(sorted({str(device) for device in read_text(trials, "device") if device}))
    found = {"device": devices} if devices else {}
    found |= {str(name): ", ".join(sorted({str(value) for value in table[name].dropna()})) for name in table.columns}
    for key in config_keys():
        name = f"config.{key}"
        is_shown = key not in NOT_TRAINED or (with_root and key == "data.root")
        if is_shown and len(trials) and name in trials.columns:
            is_shared = trials[name].nunique(dropna=False) == 1
            found[key] = str(plain_value(trials[name].iloc[0])) if is_shared else _VARIES
    return found
