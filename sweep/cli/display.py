"""What a running study shows: a live panel on a terminal or in a notebook, plain lines elsewhere.

The panel is redrawn at most twice a second, so that the display does not disturb what is being timed.
"""

import html
import io
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reports.labels import format_metric, format_price, format_value
from sweep.cli.app import describe_trial, escape_controls, join_settings, print_lines
from sweep.config.metrics import format_count
from sweep.config.study import StudySpec
from sweep.config.trial import Scalar, TrialConfig, flatten_config
from sweep.records.messages import Evaluation, Progress
from sweep.records.quality import PACKED, find_time_doubts
from sweep.records.records import TrialRecord
from sweep.search.seeds import find_front
from sweep.search.tuner import (
    AttemptEnded,
    Event,
    Stopped,
    Stopping,
    TrialAdvanced,
    TrialEnded,
    TrialReused,
    TrialStarted,
)

if TYPE_CHECKING:
    from sweep.search.session import Session
    from sweep.search.study_forecast import TimeLeft


_NOTEBOOK_COLUMNS = 110
_NOTEBOOK_LINES = 40  # of what happened; a cell of thousands makes a notebook slow
_REDRAW_SECONDS = 0.5
_FRONT_ROWS = 8
_LEFT_SECONDS = 5.0  # between predictions of the time left, which take a part of a second
_MUCH_SLOWER = 1.5  # times as long as was said before, from which it is said


@final
class _ConsoleSurface:
    """Standard error: lines, and on a terminal a panel below them that is replaced."""

    def __init__(self) -> None:
        self._console = Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty(), force_jupyter=False)
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self.has_panel = self._live is not None

    def start(self) -> None:
        if self._live:
            self._live.start()

    def print_line(self, text: Text) -> None:
        self._console.print(text)

    def show_panel(self, panel: RenderableType) -> None:
        if self._live:
            self._live.update(panel, refresh=True)

    def stop(self) -> None:
        if self._live:
            self._live.stop()


@final
class _NotebookSurface:
    """One output of the cell that runs, replaced as a whole: no line is there twice, and no widget is required."""

    has_panel = True

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._num_dropped = 0
        self._panel = ""
        self._handle: Any = None

    def start(self) -> None:
        self._update()

    def print_line(self, text: Text) -> None:
        self._lines += text.plain.splitlines()
        self._num_dropped += max(len(self._lines) - _NOTEBOOK_LINES, 0)
        del self._lines[:-_NOTEBOOK_LINES]
        self._update()

    def show_panel(self, panel: RenderableType) -> None:
        file = io.StringIO()
        console = Console(file=file, width=_NOTEBOOK_COLUMNS, force_terminal=False, force_jupyter=False, no_color=True)
        console.print(panel)
        self._panel = "\n".join(line.rstrip() for line in file.getvalue().splitlines())
        self._update()

    def stop(self) -> None:
        """Keeps what is shown."""

    def _update(self) -> None:
        from IPython.display import display

        dropped = [f"({self._num_dropped:,} earlier lines)"] if self._num_dropped else []
        text = "\n".join([*dropped, *self._lines, *([self._panel.rstrip("\n")] if self._panel else [])])
        shown = {"text/plain": text, "text/html": f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


@final
class Display:
    """Shows events; a context manager around the study's run. ``predict_left`` is its session's method."""

    predict_left: "Callable[[Sequence[TrialRecord], float], TimeLeft | None] | None" = None

    def __init__(
        self,
        spec: StudySpec,
        records: list[TrialRecord],
        check: str = "sweep check STUDY",
        resumed_by: str = "the same command again",
        surface: _ConsoleSurface | _NotebookSurface | None = None,
        recommend: str = "sweep recommend STUDY",
    ) -> None:
        """``check`` is the command that names the trials with quality warnings, ``resumed_by`` what resumes the
        study, ``recommend`` the command for its answer; without a ``surface`` it is shown on standard error."""
        self._resumed_by = resumed_by
        self._spec = spec
        self._check, self._recommend = check, recommend
        self._records = {record.number: record for record in records}
        self._running: dict[int, tuple[TrialStarted, Progress | None, Evaluation | None]] = {}
        self._surface: _ConsoleSurface | _NotebookSurface = surface or _ConsoleSurface()
        self._drawn = 0.0
        self._saved_seconds: list[float] = []
        self._began, self._predicted, self._left, self._said_pace = time.monotonic(), -math.inf, "", 1.0

    def __enter__(self) -> Self:
        known = len(self._records)
        confirm = self._spec.confirm
        planned, limit = format_count(self._spec.trials, "search trial"), self._spec.search_timeout
        planned = f"at most {planned} within {format_value('seconds', limit)}" if limit else f"{planned} planned"
        start = f"study {self._spec.name}: {planned}"
        start += f", then {confirm.describe_limits(self._spec.trials)}" if confirm.most_trials else ""
        self._line(start + (f", {known} on record" if known else ""))
        self._surface.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left = ""
        if self._surface.has_panel:
            self._surface.show_panel(self._panel())
            self._surface.stop()
        if kind is not None and not issubclass(kind, Exception):
            self._line(f"running trials stay open on record; run {self._resumed_by} to resume them")

    def show(self, event: Event) -> None:
        if isinstance(event, TrialStarted):
            self._running[event.number] = (event, None, None)
        elif isinstance(event, TrialAdvanced) and event.number in self._running:
            start, progress, evaluation = self._running[event.number]
            if isinstance(event.message, Progress):
                progress = event.message
            else:
                evaluation = event.message
            self._running[event.number] = (start, progress, evaluation)
        elif isinstance(event, AttemptEnded):
            self._running.pop(event.number, None)
            again = (
                "begins anew, unless its script resumes" if self._spec.script else "resumes from its last checkpoint"
            )
            self._line(f"trial {event.number:>4} attempt ended: {event.cause}; it {again}")
        elif isinstance(event, Stopping):
            running = format_count(event.num_trials, "running trial")
            cause = event.cause.replace("_", " ")
            self._line(f"{cause}: waiting for a checkpoint of {running}; a second signal stops at once")
        elif isinstance(event, Stopped):
            self._line(f"study {self._spec.name} stopped: {event.reason}")
        elif isinstance(event, TrialEnded | TrialReused):
            if isinstance(event, TrialReused):
                self._saved_seconds.append(event.saved_seconds)
            self._running.pop(event.record.number, None)
            self._records[event.record.number] = event.record
            self._line(self._ended_line(event))
            self._update_left()
        self._redraw()

    def close(self, ended: dict[str, Any], answer: Iterable[str]) -> None:
        """Prints the summary: how trials ended, what was reused, the lines of the answer, where the report is."""
        outcomes = ", ".join(f"{count} {name}" for name, count in sorted(ended["outcomes"].items()))
        self._line(f"study {self._spec.name}: trials on record: {ended['num_trials']} ({outcomes or 'none'})")
        if num := ended["confirmed"]["configurations"]:
            most = f"at most {ended['confirmed']['seeds_at_most']} each"
            seeds = format_count(ended["confirmed"]["seeds"], "fresh seed")
            self._line(f"confirmed {format_count(num, 'configuration')} with {seeds} ({most})")
        for name, count in ended["missing_objectives"].items():
            self._line(f"objective {name} is missing in {format_count(count, 'complete trial')}; no front has these")
        for name in ("no_complete_trial", "confirmation_shortfall"):
            if ended[name]:
                self._line(ended[name])
        if self._saved_seconds:
            saved = format_value("seconds", sum(self._saved_seconds))
            reused = format_count(len(self._saved_seconds), "trial")
            self._line(f"reused {reused} from earlier records, which saved {saved} of training")
        if waiting := ended["num_enqueued"]:
            self._line(f"{format_count(waiting, 'enqueued trial')} not trained; raise the budget with --trials")
        if ended["price"] is not None:
            took = format_value("seconds", ended["seconds"])
            self._line(f"this run took {took}: price {format_price(ended['price'], ended['currency'])}")
        for line in self._warnings():
            self._line(line)
        print_lines([*answer, f"the whole answer in the terminal: {self._recommend}", f"report: {ended['report']}"])

    def _warnings(self) -> list[str]:
        measured = [record for record in self._records.values() if record.outcome and not record.reused_from]
        flagged = [record for record in measured if record.quality_flags]
        if not flagged:
            return []
        counts = Counter(flag for record in flagged for flag in record.quality_flags)
        names = ", ".join(f"{name} {count}" for name, count in counts.most_common())
        num_doubtful = sum(bool(find_time_doubts(record.quality_flags) - {PACKED}) for record in flagged)
        return [
            f"quality warnings: {len(flagged)} of {len(measured)} trials ({names})",
            *([f"  of these trials: {num_doubtful} with a time that is in doubt"] if num_doubtful else []),
            f"  reasons and remedies: {self._check}",
        ]

    def _line(self, text: str) -> None:
        self._surface.print_line(Text(escape_controls(text)))

    def _ended_line(self, event: TrialEnded | TrialReused) -> str:
        record = event.record
        how = f"reused from {record.reused_from}" if isinstance(event, TrialReused) else str(record.outcome)
        values = {name: record.measurements.get(name) for name in self._spec.objectives}
        head, settings = (record.number, record.phase, how), self._swept(record.config)
        lines = [describe_trial(head, values, settings, self._spec.quality, record.is_enqueued)]
        if isinstance(event, TrialEnded):
            if doubts := find_time_doubts(record.quality_flags) - {PACKED}:  # that was asked for
                lines.append(f"the measured time is in doubt ({', '.join(sorted(doubts))})")
            lines += event.error.strip().splitlines()[-1:] if event.error else []
        return "\n           ".join(lines)

    def _redraw(self) -> None:
        now = time.monotonic()
        if self._surface.has_panel and now - self._drawn >= _REDRAW_SECONDS:
            self._drawn = now
            self._surface.show_panel(self._panel())

    def _panel(self) -> Group:
        counts = Counter(record.outcome for record in self._records.values() if record.outcome)
        outcomes, done = ", ".join(f"{count} {name}" for name, count in counts.items()), counts.total()
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(self._count_planned(), done), completed=done, width=30)
        head.add_row(bar, f"{done}/{self._count_planned()}", outcomes, self._left)
        return Group(head, *self._running_lines(), self._front_table())

    def _running_lines(self) -> list[Text]:
        lines = []
        for number, (start, progress, evaluation) in self._running.items():
            text = f"trial {number} {start.phase} [{join_settings(self._swept(start.config))}]"
            if progress:
                share = f"step {progress.step}/{progress.num_steps}"
                text += f"  epoch {progress.epoch:.1f}  {share}  {progress.images_per_second:,.0f} images/s"
                if progress.gpu_utilization is not None:
                    text += f"  GPU {progress.gpu_utilization:.0%} busy"
                if progress.peak_memory_bytes is not None:
                    text += f"  {format_value('bytes', progress.peak_memory_bytes)}"
            if evaluation:
                quality = self._spec.quality
                shown = format_metric(quality.column, getattr(evaluation, quality.column), quality)
                text += f"  {quality.name} {shown}"
            lines.append(Text(escape_controls(text)))
        return lines

    def _front_table(self) -> Table:
        rows = find_front(list(self._records.values()), self._spec.objectives, self._spec.quality)
        first = self._spec.metric(self._spec.objectives[0])
        rows.sort(key=lambda record: first.sign * record.measurements[first.name])
        table = Table(
            title=f"front so far: {len(rows)} configurations, as measured with one seed", title_justify="left", box=None
        )
        names = (self._spec.quality.name if name == "quality" else name for name in self._spec.objectives)
        for column in ("trial", *names, "configuration"):
            table.add_column(column, justify="left" if column == "configuration" else "right")
        for record in rows[:_FRONT_ROWS]:
            measured = ((name, record.measurements[name]) for name in self._spec.objectives)
            values = [format_metric(name, value, self._spec.quality) for name, value in measured]
            settings = join_settings(self._swept(record.config))
            table.add_row(str(record.number), *values, Text(escape_controls(settings)))
        return table

    def _swept(self, config: TrialConfig) -> dict[str, Scalar]:
        flat = flatten_config(config)
        return {path: flat[path] for path in self._spec.space}

    def _count_planned(self) -> int:
        return self._spec.trials + self._spec.confirm.count_expected(self._spec.trials)

    def _update_left(self) -> None:
        now = time.monotonic()
        if self.predict_left is None or now - self._predicted < _LEFT_SECONDS:
            return
        self._predicted = now
        if left := self.predict_left(list(self._records.values()), now - self._began):
            self._left = f"{describe_time(*left[:3])} left"
            if left.pace >= _MUCH_SLOWER * self._said_pace:
                self._said_pace = left.pace
                slower = f"the latest trials took {left.pace:.1f} times as long as forecast"
                self._line(f"slower than probed: {slower}; {self._left}")


def describe_time(low: float, median: float, high: float) -> str:
    """A forecast time for people; what is proposed, what is confirmed and what ends early is not known before."""
    interval = f"90 % interval {format_value('seconds', low)} to {format_value('seconds', high)}"
    return f"about {format_value('seconds', median)} ({interval})"


def show_in_cell(session: "Session") -> Display:
    """What a notebook's cell shows of a study that Python code runs."""
    records = session.store.trial_records(session.spec.name)
    display = Display(session.spec, records, resumed_by=session.options.resumed_by, surface=_NotebookSurface())
    display.predict_left = session.predict_left
    return display
