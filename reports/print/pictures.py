"""Figures as files for a paper or a slide, by matplotlib without a display."""

import io
import math
import textwrap
import warnings
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from reports.figure import INCHES, Bars, Figure, Format, Layer, Lines, Paper
from reports.first.answer_figure import AnswerFigure
from reports.palette import look_of
from reports.print.answer_layout import SCREEN_DPI
from reports.print.answer_picture import make_answer_canvas
from reports.print.drawing import draw_panel, make_printable

MAX_COLUMNS = 3
_NARROW = 8.0  # inches, less than any picture for the screen
_SCREEN = Paper()
# No time and no version, so that equal figures give equal bytes.
_METADATA: dict[Format, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_MUTED = "#5b6675"
_STYLE: Any = {
    "text.parse_math": False,  # a name with a dollar sign is a name
    "font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left", "axes.titlecolor": _MUTED,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#9aa4ae", "axes.labelcolor": "#1c2430",
    "axes.axisbelow": True, "axes.titley": 1.0, "axes.grid": True, "grid.color": "#e3e7ec", "grid.linewidth": 0.7,
    "xtick.color": _MUTED, "ytick.color": _MUTED, "axes.formatter.useoffset": False, "axes.formatter.limits": (-5, 7),
    "legend.frameon": False, "legend.fontsize": 8, "legend.title_fontsize": 8,
    "svg.hashsalt": "batch-sweep", "pdf.fonttype": 42, "text.hinting": "none",  # hinting takes a tenth of the time
}  # fmt: skip


def draw_picture(figure: Figure | AnswerFigure, form: Format = "png", paper: Paper = _SCREEN, dpi: int = 0) -> bytes:
    """The bytes of a picture on white ground; the same figure gives the same bytes. ``dpi`` counts for a PNG; 0 is what
    the width of ``paper`` requires."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # of a name; a box is drawn in its place
        density = dpi or (SCREEN_DPI if paper.width == "screen" else 300)
        if isinstance(figure, AnswerFigure):
            canvas = make_answer_canvas(figure, paper, density)
        else:
            canvas = make_canvas(figure, paper, density)
        buffer = io.BytesIO()
        if form == "png":  # canvas.savefig draws everything twice for the layout
            agg: Any = FigureCanvasAgg(canvas)
            agg.print_png(buffer, metadata=_METADATA[form], pil_kwargs={"compress_level": 1})
        else:
            canvas.savefig(buffer, format=form, metadata=_METADATA[form])
    return buffer.getvalue()


def make_canvas(figure: Figure, paper: Paper = _SCREEN, dpi: int = SCREEN_DPI) -> Canvas:
    """The drawn figure in matplotlib, as wide as ``paper`` in inches."""
    most = {"screen": MAX_COLUMNS, "column": 1, "page": 2}[paper.width]
    columns = min(most, len(figure.panels))
    rows = math.ceil(len(figure.panels) / columns)
    width = INCHES.get(paper.width, max(8.0, 4.1 * columns))
    is_narrow = width < _NARROW
    height = rows * _row_height(figure) * (0.75 if is_narrow else 1.0) + (0.9 if not is_narrow else 0.2)
    if is_narrow:  # the caption and the keys take more lines there
        lines = len(_wrap_caption(figure, width)) * paper.has_title + len(figure.legend_layers())
        height += 0.14 * lines
    canvas = Canvas(figsize=(width, height), dpi=dpi, layout="constrained")
    if paper.has_title:
        size = 9 if is_narrow else 13
        title = "\n".join(textwrap.wrap(make_printable(figure.title), int(width * 80 / size)))
        canvas.suptitle(title, x=0.01, ha="left", fontsize=size, fontweight="bold")
    _add_panels(canvas, figure, rows, columns)
    _add_legend(canvas, figure, width, paper)
    return canvas


def _add_panels(canvas: Canvas, figure: Figure, rows: int, columns: int) -> None:
    grid = canvas.add_gridspec(rows, columns)
    for index, panel in enumerate(figure.panels):
        row, column = divmod(index, columns)
        if column == 0:
            first: Axes | None = None
        is_shared = first is not None and panel.y == figure.panels[row * columns].y
        area = canvas.add_subplot(grid[row, column], sharey=first if is_shared else None)
        draw_panel(area, panel)
        for spine in area.spines.values():
            spine.set_in_layout(False)  # inside the box of the ticks and texts, and slow to measure
        if is_shared:
            area.tick_params(axis="y", labelleft=False)
            area.set_ylabel("")
        first = first or area


def _row_height(figure: Figure) -> float:
    """Inches of a row of panels."""
    bars = [len(layer.y) for panel in figure.panels for layer in panel.layers if isinstance(layer, Bars)]
    return 1.0 + 0.32 * max(bars) if bars else 3.1


def _wrap_caption(figure: Figure, width: float) -> list[str]:
    text = f"{figure.finding} {figure.caption}".strip()
    return textwrap.wrap(make_printable(text), int(width * 14))


def _add_legend(canvas: Canvas, figure: Figure, width: float, paper: Paper) -> None:
    """The caption, and below it the keys of the layers in as many columns as their names leave room for."""
    handles = [_handle(layer) for layer in figure.legend_layers()]
    for handle in handles:
        handle.set_label("\n".join(textwrap.wrap(str(handle.get_label()), int(width * 13))))
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    legend = canvas.legend(
        handles=handles if len(handles) > 1 else [], loc="outside lower left", alignment="left",
        ncols=max(1, min(5, int(width * 13 / (longest + 5)))),
        title="\n".join(_wrap_caption(figure, width)) if paper.has_title else None,
    )  # fmt: skip
    legend.get_title().set_color(_MUTED)


def _handle(layer: Layer) -> Line2D:
    style, line = look_of(layer.role), isinstance(layer, Lines)
    return Line2D(
        [], [], color=style.color, label=make_printable(textwrap.shorten(layer.name, 130)), markersize=6,
        linestyle=(":" if isinstance(layer, Lines) and layer.dashed else "-") if line else "",
        marker="" if line else "s" if isinstance(layer, Bars) else style.matplotlib,
        markerfacecolor="none" if "open" in style.plotly else style.color,
    )  # fmt: skip
