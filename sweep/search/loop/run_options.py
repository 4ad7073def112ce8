"""The options of a run: how a study is run, as opposed to what it studies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweep.config.command_lines import StudyOrigin
from sweep.executors.table import ExecutorSettings


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of ``sweep run`` and of :func:`sweep.run_study`."""

    root: Path = Path("runs")
    store: str | None = field(default=None, repr=False)  # SQLAlchemy URL; the study's own SQLite file when absent
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)
    fresh: bool = False
    reuse: bool = True
    reuse_from: Sequence[Path] = ()
    plugin: str | None = None
    timeout_seconds: float | None = None  # instead of the study's own
    warm_start: Sequence[str] = ()  # places of earlier results that the sampler learns from
    resumed_by: str = "the same command again"  # what resumes the study, in words or as a command
    origin: StudyOrigin = field(default_factory=StudyOrigin)  # recorded, so that printed commands repeat it
