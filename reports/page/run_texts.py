"""What was run: the study, every setting with its default where it was not given, and the command that repeats it."""

from collections.abc import Iterator
from dataclasses import dataclass

from reports.describe import format_column
from reports.evidence import Evidence
from reports.labels import format_setting, key_label
from reports.page.study_text import write_study

_SKIPPED = {"seed"}  # each trial has its own


@dataclass(frozen=True, kw_only=True)
class RunTexts:
    """``settings`` of all trials: label, key, value, and where it is from, "" for the study; ``lacks`` names what is
    not on record."""

    study: str
    command: str
    settings: tuple[tuple[str, str, str, str], ...]
    lacks: tuple[str, ...]


def describe_run(evidence: Evidence) -> RunTexts:
    """What the records hold about how the study was run."""
    frames, spec = evidence.frames, evidence.frames.spec
    lacks = [] if spec else ["The study's specification is not on record, so its file cannot be shown."]
    settings = tuple(_list_settings(evidence))
    if not settings:
        lacks.append("No configuration is on record.")
    commands = frames.find_commands(evidence.name)
    return RunTexts(
        study=write_study(spec) if spec else "",
        command=commands.run_again() if spec else "",
        settings=settings,
        lacks=tuple(lacks),
    )


def _list_settings(evidence: Evidence) -> Iterator[tuple[str, str, str, str]]:
    from sweep.config.trial_config import TrialConfig, flatten_config

    frame, first = evidence.trials, evidence.trials.head(1)
    for key, default in flatten_config(TrialConfig()).items():
        name, label = f"config.{key}", key_label(key)
        if key in _SKIPPED or name not in frame.columns or not len(frame):
            continue
        if key in evidence.swept:
            yield label, key, "searched", "the search space"
        elif frame[name].nunique(dropna=False) != 1:
            yield label, key, "differs between trials", ""
        else:
            value = format_column(first, key)[0]
            yield label, key, value, "default" if value == format_setting(default) else ""
