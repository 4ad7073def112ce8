"""Figures as files for a paper or a slide, by matplotlib without a display."""

import io
import math
import textwrap
from collections.abc import Iterable
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from reports.figure import Bars, Figure, Format, Heat, Layer, Lines
from reports.palette import look
from reports.print.drawing import MAX_TICK, draw_axes, draw_panel
from reports.print.font import FONT, printable

MAX_COLUMNS = 3
# No time and no version, so that equal figures give equal bytes.
_METADATA: dict[Format, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_STYLE: Any = {
    "text.parse_math": False,  # a name with a dollar sign is a name
    "font.family": FONT, "font.size": 9, "axes.spines.top": False, "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.edgecolor": "#9aa4ae", "axes.labelcolor": "#1c2430", "xtick.color": "#5b6675", "ytick.color": "#5b6675",
    "axes.titley": 1.0,  # else the place of every title would be sought by measuring the ticks
    "svg.hashsalt": "batch-sweep", "pdf.fonttype": 42,
}  # fmt: skip


def picture(figure: Figure, form: Format = "png", dpi: int = 160) -> bytes:
    """The bytes of a picture on white ground; the same figure gives the same bytes. ``dpi`` counts for a PNG."""
    page = _Page.of(figure)
    with mpl.rc_context(_STYLE):
        canvas = Canvas(figsize=(page.width, page.height))
        FigureCanvasAgg(canvas)
        areas = []
        for index, panel in enumerate(figure.panels):
            kind: dict[str, Any] = {"projection": "3d"} if panel.z is not None else {}
            areas.append(canvas.add_axes(page.place(index), **kind))
            draw_panel(areas[-1], panel)
        for row in page.rows(figure):
            is_shared = _is_shared(row, figure)
            if is_shared:
                _share(areas[index] for index in row)
            for index in row:
                draw_axes(areas[index], figure.panels[index], has_y_texts=index == row[0] or not is_shared)
        top = 1 - 0.1 / page.height
        canvas.text(0.01, top, printable(figure.title), va="top", fontsize=13, fontweight="bold")
        caption = "\n".join(page.caption)
        canvas.text(0.01, 0.08 / page.height, caption, va="bottom", fontsize=8, color="#5b6675")
        page.legend.draw(canvas, page.below / page.height)
        buffer = io.BytesIO()
        more: dict[str, Any] = {"pil_kwargs": {"compress_level": 1}} if form == "png" else {}
        canvas.savefig(buffer, format=form, dpi=dpi, metadata=_METADATA[form], **more)
    return buffer.getvalue()


class _Page(NamedTuple):
    """Where everything lies, in inches. matplotlib's own layout would measure every text, which costs as much again
    as drawing the figure."""

    width: float
    height: float
    below: float  # caption and legend
    num_columns: int
    row_height: float
    above: float  # room for a panel's title
    lefts: list[float]  # of each column: room for the labels of its y axes
    right: float
    caption: list[str]
    legend: "_Legend"

    @classmethod
    def of(cls, figure: Figure) -> "_Page":
        columns = min(MAX_COLUMNS, len(figure.panels))
        rows = math.ceil(len(figure.panels) / columns)
        width = max(8.0, 4.1 * columns)
        legend = _Legend.of(figure, width)
        caption = textwrap.wrap(printable(figure.caption), int(width * 14))
        below = 0.17 * len(caption) + 0.165 * legend.num_rows + 0.25
        height = rows * _row_height(figure) + below + 0.45
        lefts = [
            max(_left(figure, index, columns) for index in range(column, len(figure.panels), columns))
            for column in range(columns)
        ]
        has_bar = any(isinstance(layer, Heat) for panel in figure.panels for layer in panel.layers)
        right = 0.55 if has_bar else 0.12
        above = 0.26 if any(panel.title for panel in figure.panels) else 0.08
        return cls(width, height, below, columns, _row_height(figure), above, lefts, right, caption, legend)

    def rows(self, figure: Figure) -> list[range]:
        """The indices of the panels of each row."""
        size = len(figure.panels)
        return [range(first, min(first + self.num_columns, size)) for first in range(0, size, self.num_columns)]

    def place(self, index: int) -> tuple[float, float, float, float]:
        """Left, bottom, width and height of a panel's axes as shares of the page."""
        row, column = divmod(index, self.num_columns)
        whole = self.width / self.num_columns
        left = column * whole + self.lefts[column]
        top = self.height - 0.45 - row * self.row_height - self.above
        wide, tall = whole - self.lefts[column] - self.right, self.row_height - self.above - 0.5
        return left / self.width, (top - tall) / self.height, wide / self.width, tall / self.height


def _is_shared(row: range, figure: Figure) -> bool:
    return len(row) > 1 and len({figure.panels[index].y for index in row}) == 1


def _share(areas: Iterable[Axes]) -> None:
    """One y axis for a row of panels: the same range."""
    row = list(areas)
    limits = [area.get_ylim() for area in row]
    for area in row:
        area.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _left(figure: Figure, index: int, num_columns: int) -> float:
    """Room for the tick labels and the title of the y axis."""
    panel, first = figure.panels[index], index - index % num_columns
    row = range(first, min(first + num_columns, len(figure.panels)))
    if panel.z is not None or (index > first and _is_shared(row, figure)):
        return 0.2
    longest = max((len(text) for _, text in panel.y.ticks), default=6)
    return 0.35 + 0.078 * min(longest, MAX_TICK)


def _row_height(figure: Figure) -> float:
    """Inches of a row of panels."""
    bars = [len(layer.y) for panel in figure.panels for layer in panel.layers if isinstance(layer, Bars)]
    if bars:
        return 1.0 + 0.32 * max(bars)
    return 5.0 if any(panel.z is not None for panel in figure.panels) else 3.1


class _Legend(NamedTuple):
    """The keys below the panels, in as many columns as their names leave room for."""

    handles: list[Line2D]
    num_columns: int

    @classmethod
    def of(cls, figure: Figure, width: float) -> "_Legend":
        handles = [_handle(layer) for layer in figure.legend()]
        longest = max((len(str(handle.get_label())) for handle in handles), default=1)
        return cls(handles if len(handles) > 1 else [], max(1, min(5, int(width * 13 / (longest + 5)))))

    @property
    def num_rows(self) -> int:
        return math.ceil(len(self.handles) / self.num_columns)

    def draw(self, canvas: Canvas, top: float) -> None:
        if self.handles:
            canvas.legend(
                handles=self.handles, loc="upper left", bbox_to_anchor=(0.0, top), ncols=self.num_columns,
                frameon=False, fontsize=8, borderaxespad=0.3,
            ).set_in_layout(False)  # fmt: skip


def _handle(layer: Layer) -> Line2D:
    style, line = look(layer.role), isinstance(layer, Lines)
    return Line2D(
        [], [], color=style.colour, label=printable(textwrap.shorten(layer.name, 130)), markersize=6,
        linestyle=(":" if isinstance(layer, Lines) and layer.dashed else "-") if line else "",
        marker="" if line else "s" if isinstance(layer, Bars) else style.matplotlib,
        markerfacecolor="none" if "open" in style.plotly else style.colour,
    )  # fmt: skip
