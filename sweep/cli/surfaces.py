"""Where a running study is shown: on a terminal with a live panel, as lines in a file, or in a cell of a notebook."""

import html
import io
import sys
from abc import ABC, abstractmethod
from typing import Any, final

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

_NOTEBOOK_COLUMNS = 110
_NOTEBOOK_LINES = 40  # of what happened; a cell of thousands makes a notebook slow


class Surface(ABC):
    """Lines, one below the other, and below them a panel that is replaced."""

    has_panel = True

    @abstractmethod
    def start(self) -> None:
        """Begins to show a panel."""

    @abstractmethod
    def print_line(self, text: Text) -> None:
        """Adds a line."""

    @abstractmethod
    def show_panel(self, panel: RenderableType) -> None:
        """Replaces the panel."""

    @abstractmethod
    def stop(self, panel: RenderableType) -> None:
        """Shows the panel for the last time."""


@final
class ConsoleSurface(Surface):
    """Standard error: with a panel on a terminal, lines alone elsewhere."""

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

    def stop(self, panel: RenderableType) -> None:
        if self._live:
            self._live.update(panel, refresh=True)
            self._live.stop()


@final
class NotebookSurface(Surface):
    """One output of the cell that runs, replaced as a whole: no line is there twice, and no widget is required."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._num_dropped = 0
        self._panel = ""
        self._is_redrawn = False  # by the panels that follow
        self._handle: Any = None

    def start(self) -> None:
        self._is_redrawn = True
        self._update()

    def print_line(self, text: Text) -> None:
        self._lines += text.plain.splitlines()
        self._num_dropped += max(len(self._lines) - _NOTEBOOK_LINES, 0)
        del self._lines[:-_NOTEBOOK_LINES]
        if not self._is_redrawn:
            self._update()

    def show_panel(self, panel: RenderableType) -> None:
        self._panel = _write_text(panel)
        self._update()

    def stop(self, panel: RenderableType) -> None:
        self._is_redrawn = False
        self.show_panel(panel)

    def _update(self) -> None:
        from IPython.display import display

        dropped = [f"({self._num_dropped:,} earlier lines)"] if self._num_dropped else []
        text = "\n".join([*dropped, *self._lines, *([self._panel.rstrip("\n")] if self._panel else [])])
        shown = {"text/plain": text, "text/html": f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'}
        if self._handle is None:
            self._handle = display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    shell = sys.modules.get("IPython")
    return shell is not None and hasattr(shell.get_ipython(), "kernel")


def _write_text(panel: RenderableType) -> str:
    file = io.StringIO()
    Console(file=file, width=_NOTEBOOK_COLUMNS, force_terminal=False, force_jupyter=False, no_color=True).print(panel)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
