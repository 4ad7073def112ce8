"""What changed from one study to another: devices, versions, settings."""

from sweep.analysis.statistics.frame_columns import plain_value, read_text
from sweep.config.trial_config import config_keys
from sweep.records.frames.frameset import Frames

# Neither says what is trained.
UNCHANGING = frozenset({"data.root", "seed"})


def find_changes(a: Frames, b: Frames) -> dict[str, tuple[str, str]]:
    """Facts of the environment, and settings that all trials of a study share, by name, as (in A, in B); those that
    are equal are left out."""
    facts = [_facts(frames) for frames in (a, b)]
    names = dict.fromkeys((*facts[0], *facts[1]))
    return {
        name: (facts[0].get(name, "-"), facts[1].get(name, "-"))
        for name in names
        if facts[0].get(name) != facts[1].get(name)
    }


def _facts(frames: Frames) -> dict[str, str]:
    # every fact of the environments and every setting that all trials share, several values joined
    found: dict[str, str] = {}
    devices = sorted({str(device) for device in read_text(frames.trials, "device") if device})
    if devices:
        found["device"] = ", ".join(devices)
    table = frames.environments.drop(columns=["study", "environment_digest"], errors="ignore")
    for name in table.columns:
        values = sorted({str(value) for value in table[name].dropna()})
        found[str(name)] = ", ".join(values)
    for key in config_keys():
        name = f"config.{key}"
        if key not in UNCHANGING and name in frames.trials.columns and frames.trials[name].nunique(dropna=False) == 1:
            found[key] = str(plain_value(frames.trials[name].iloc[0]))
    return found
