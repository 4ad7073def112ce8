"""The options of a run: how a study is run, as opposed to what it studies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sweep.config.commands import StudyOrigin
from sweep.executors.table import ExecutorSettings


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of ``sweep run`` and of :func:`sweep.run_study`.

    Attributes:
        root: folder with a folder for each study.
        store: SQLAlchemy URL of a shared store; None is the study's own SQLite file.
        executor: what runs the trials, and on which devices.
        fresh: set the records of the study aside and start again.
        reuse: take complete trials of equal content from records under ``root`` instead of training them again.
        reuse_from: further folders to take them from.
        plugin: path of a Python file that adds models and data sets. Every process of the study loads it; this one does
            so by :func:`sweep.load_plugin`, before the study is loaded.
        timeout_seconds: of the run, instead of the study's own.
        warm_start: paths or URLs of earlier results that the sampler learns from.
        resumed_by: what resumes the study, in words or as a command, for messages.
        origin: what the study was given by on the command line; it is recorded, so that printed commands repeat it.
    """

    root: Path = Path("runs")
    store: str | None = field(default=None, repr=False)
    executor: ExecutorSettings = field(default_factory=ExecutorSettings)
    fresh: bool = False
    reuse: bool = True
    reuse_from: Sequence[Path] = ()
    plugin: str | None = None
    timeout_seconds: float | None = None
    warm_start: Sequence[str] = ()
    resumed_by: str = "the same command again"
    origin: StudyOrigin = field(default_factory=StudyOrigin)

    def __post_init__(self) -> None:
        object.__setattr__(self, "root", Path(self.root))  # a text is accepted too
