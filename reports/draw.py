"""Figures as pictures, by matplotlib without a display: files for a paper or a slide, and SVG within the page."""

import html
import io
import math
import re
import textwrap
import warnings
from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis as Line
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from reports.figure import (
    INCHES,
    Axis,
    Bars,
    Density,
    Figure,
    Format,
    Heat,
    Intervals,
    Layer,
    Lines,
    Panel,
    Paper,
    Points,
    Rule,
)
from reports.labels import choose_unit
from reports.layout import HEAT_COLORS, category_range, look_of, shade_colors, show_panel

_MAX_COLUMNS = 3
_MAX_TICK = 32  # characters of a tick's text
_SCREEN_DPI = 130
_SHARED_PIXELS = (1200, 630)  # what sites that show a linked image ask for
_NARROW = 8.0  # inches, less than any picture for the screen
_LEAST_PANEL = 3.2  # inches
_BESIDE = 6.0  # inches from which on small panels lie beside the large one
_SCREEN = Paper()
# No time and no version, so that equal figures give equal bytes.
_METADATA: dict[Format, dict[str, Any]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
_INK, _MUTED, _GRID, _EDGE, _GROUND = "#1c2430", "#5b6675", "#e3e7ec", "#9aa4ae", "#ffffff"
_VARIABLES = {_INK: "--ink", _MUTED: "--quiet", _GRID: "--line", _EDGE: "--edge", _GROUND: "--page"}  # of the page
_STYLE: Any = {
    "text.parse_math": False,  # a name with a dollar sign is a name
    "font.size": 9, "axes.titlesize": 9, "axes.titlelocation": "left", "axes.titlecolor": _MUTED, "text.color": _INK,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": _EDGE, "axes.labelcolor": _INK,
    "axes.axisbelow": True, "axes.titley": 1.0, "axes.grid": True, "grid.color": _GRID, "grid.linewidth": 0.7,
    "xtick.color": _MUTED, "ytick.color": _MUTED, "axes.formatter.useoffset": False, "axes.formatter.limits": (-5, 7),
    "legend.frameon": False, "legend.fontsize": 8, "legend.title_fontsize": 8,
    "svg.hashsalt": "batch-sweep", "svg.fonttype": "none", "pdf.fonttype": 42,
    "text.hinting": "none",  # hinting takes a tenth of the time
}  # fmt: skip
# Where a label may lie, in points from its mark: in eight directions, then farther away. Shape [32, 2].
_DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (1, 0), (-1, 0), (0, 1), (0, -1))
_OFFSETS = np.array([(across * far, up * far) for far in (6.0, 11.0, 20.0, 32.0) for across, up in _DIRECTIONS])
_Values = np.ndarray[Any, np.dtype[np.float64]]


def draw_picture(figure: Figure, form: Format = "png", paper: Paper = _SCREEN, dpi: int = 0) -> bytes:
    """The bytes of a picture on white ground; the same figure gives the same bytes. ``dpi`` counts for a PNG; 0 is what
    the width of ``paper`` requires."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # of a name; a box is drawn in its place
        canvas = make_canvas(figure, paper, dpi or (_SCREEN_DPI if paper.width == "screen" else 300))
        buffer = io.BytesIO()
        if form == "png":  # canvas.savefig draws everything twice for the layout
            agg: Any = canvas.canvas
            agg.print_png(buffer, metadata=_METADATA[form], pil_kwargs={"compress_level": 1})
        else:
            canvas.savefig(buffer, format=form, metadata=_METADATA[form])
    return buffer.getvalue()


def draw_inline(figure: Figure, inches: float) -> str:
    """The figure as an SVG element within the page, without its title and caption: in the colors of the page's theme, a
    mark with its hover text as ``title`` and the number of its trial as ``data-configuration``."""
    with mpl.rc_context({**_STYLE, "svg.hashsalt": f"{inches:g} inches"}):
        canvas = _make_canvas(figure, inches, _SCREEN_DPI, has_title=False)
        for patch in (canvas.patch, *(area.patch for area in canvas.axes)):
            patch.set_visible(False)  # the page shines through
        buffer = io.StringIO()
        svg: Any = FigureCanvasSVG(canvas)  # as above, savefig would draw twice
        svg.print_svg(buffer, metadata=_METADATA["svg"])
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(
        r"font-family: [^;\"]*;? ?|font: (?=\d)", lambda match: "font-size: " if "font:" in match[0] else "", text
    )
    text = re.sub(
        r'(<g id="p(\d+)l(\d+)">)(.*?</g>\s*</g>)', lambda match: _name_marks(match, figure), text, flags=re.DOTALL
    )
    used = set(re.findall(r"#([\w-]+)", text))
    text = re.sub(r' id="([\w.-]+)"', lambda match: match[0] if match[1] in used else "", text)
    for color, name in _VARIABLES.items():
        text = text.replace(color, f"var({name})")
    shades = {
        layer.shade
        for panel in figure.panels
        for layer in panel.layers
        if isinstance(layer, Points | Intervals) and layer.shade is not None
    }
    for light, dark in map(shade_colors, sorted(shades)):
        # one of the two variables is empty, and of the other one nothing but the default is there
        text = text.replace(light, f"var(--if-light, {light}) var(--if-dark, {dark})")
    name = html.escape(" ".join(filter(None, (figure.title, figure.finding))))
    return re.sub(
        r"<svg[^>]*?(viewBox=\"[^\"]*\")[^>]*>",
        rf'<svg \1 class="picture" role="img" aria-label="{name}">',
        text,
        count=1,
    )


def _name_marks(match: re.Match[str], figure: Figure) -> str:
    layer = figure.panels[int(match[2])].layers[int(match[3])]
    assert isinstance(layer, Points | Intervals)
    texts, trials = iter(layer.texts), iter(layer.trials)

    def name(mark: re.Match[str]) -> str:
        number = next(trials, None)
        owner = "" if number is None else f' data-configuration="{number}"'
        return f"<g{owner}><title>{html.escape(next(texts, ''))}</title>{mark[0]}</g>"

    return match[1] + re.sub(r"<use [^>]*/>", name, match[4])


def make_canvas(figure: Figure, paper: Paper = _SCREEN, dpi: int = _SCREEN_DPI) -> Canvas:
    """The drawn figure in matplotlib, as wide as ``paper`` in inches."""
    wide = _SHARED_PIXELS[0] / _SCREEN_DPI if figure.is_led else max(8.0, 4.1 * min(_MAX_COLUMNS, len(figure.panels)))
    return _make_canvas(figure, INCHES.get(paper.width, wide), dpi, has_title=paper.has_title)


def _make_canvas(figure: Figure, width: float, dpi: int, *, has_title: bool) -> Canvas:
    is_narrow = width < _NARROW
    text = _make_printable(f"{figure.finding} {figure.caption}".strip())
    caption = textwrap.wrap(text, int(width * (14 if is_narrow else 16.5))) if has_title else []
    room = 0.14 * (len(caption) + len(figure.legend_layers())) if is_narrow else 0.0  # they take more lines there
    if figure.is_led:
        is_beside = width >= _BESIDE
        height = 0.42 * width if is_beside else 2.0 * len(figure.panels) + 1.2
        height += 0.0 if not has_title else room if is_narrow else _SHARED_PIXELS[1] / _SCREEN_DPI - height
        rows, columns = (len(figure.panels) - 1, 2) if is_beside else (len(figure.panels), 1)
        ratios = {"width_ratios": (1.9, 1)} if is_beside else {"height_ratios": (1.6, *((1,) * (rows - 1)))}
    else:
        columns = max(1, min(_MAX_COLUMNS, int(width / _LEAST_PANEL), len(figure.panels)))
        rows, ratios = math.ceil(len(figure.panels) / columns), {}
        bars = [len(layer.y) for panel in figure.panels for layer in panel.layers if isinstance(layer, Bars)]
        height = rows * (1.0 + 0.32 * max(bars) if bars else 3.1) * (0.75 if is_narrow else 1.0)
        height += (0.2 if is_narrow else 0.9) + room
    canvas = Canvas(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(canvas)  # it keeps its renderer, which measures texts
    if has_title:
        size = 9 if is_narrow else 13
        title = "\n".join(textwrap.wrap(_make_printable(figure.title), int(width * 80 / size)))
        canvas.suptitle(title, x=0.01, ha="left", fontsize=size, fontweight="bold")
    grid = canvas.add_gridspec(rows, columns, **ratios)
    if figure.is_led and columns == 2:
        cells = [grid[:, 0], *(grid[row, 1] for row in range(rows))]
    else:
        cells = [grid[divmod(index, columns)] for index in range(len(figure.panels))]
    areas: list[Axes] = []
    panels = [show_panel(panel) for panel in figure.panels]
    for index, (panel, cell) in enumerate(zip(figure.panels, cells, strict=True)):
        first = index - index % columns
        is_shared = not figure.is_led and index > first and panel.y == figure.panels[first].y
        areas.append(canvas.add_subplot(cell, sharey=areas[first] if is_shared else None))
        _draw_panel(areas[-1], panels[index], index)
        for spine in areas[-1].spines.values():
            spine.set_in_layout(False)  # inside the box of the ticks and texts, and slow to measure
        if is_shared:
            areas[-1].tick_params(axis="y", labelleft=False)
            areas[-1].set_ylabel("")
    _add_legend(canvas, figure, width, caption)
    if any(getattr(layer, "labels", ()) for panel in figure.panels for layer in panel.layers):
        engine = canvas.get_layout_engine()
        assert engine is not None
        engine.execute(canvas)  # every panel now has its position
        canvas.set_layout_engine("none")
        for area, panel in zip(areas, panels, strict=True):
            _place_labels(area, panel, dpi / 72)
    return canvas


def _add_legend(canvas: Canvas, figure: Figure, width: float, caption: Sequence[str]) -> None:
    """The caption, and below it the keys of the layers in as many columns as their names leave room for."""
    handles = [_make_key(layer) for layer in figure.legend_layers()]
    for handle in handles:
        handle.set_label("\n".join(textwrap.wrap(str(handle.get_label()), int(width * 13))))
    longest = max((len(str(handle.get_label())) for handle in handles), default=1)
    legend = canvas.legend(
        handles=handles if len(handles) > 1 else [], loc="outside lower left", alignment="left",
        ncols=max(1, min(5, int(width * 15 / (longest + 5)))), title="\n".join(caption) or None,
    )  # fmt: skip
    legend.get_title().set_color(_MUTED)


def _make_key(layer: Layer) -> Line2D:
    style, is_line = look_of(layer.role), isinstance(layer, Lines)
    color = _MUTED if getattr(layer, "shade", None) is not None else style.color
    return Line2D(
        [], [], color=color, label=_make_printable(textwrap.shorten(layer.name, 130)), markersize=6,
        linestyle=(":" if isinstance(layer, Lines) and layer.dashed else "-") if is_line else "",
        marker="" if is_line else "s" if isinstance(layer, Bars) else style.matplotlib, alpha=style.opacity,
        markerfacecolor="none" if "open" in style.plotly else color,
    )  # fmt: skip


def _make_printable(text: str) -> str:
    """``text`` in one line, with a mark in place of what cannot be drawn."""
    return "".join(each if each.isprintable() else "\ufffd" for each in text.replace("\n", " "))


def _draw_panel(area: Axes, panel: Panel, index: int) -> None:
    area.set_title(_make_printable(panel.title))
    # bars begin at the axis; a shade has a margin like the marks upon it
    area.use_sticky_edges = not any(isinstance(layer, Density) for layer in panel.layers)
    for position, layer in enumerate(panel.layers):
        _draw_layer(area, layer, f"p{index}l{position}")
    area.set(xscale=panel.x.scale, yscale=panel.y.scale)
    area.autoscale_view()
    if ends := category_range(panel):
        area.set_xlim(*ends)
    if any(isinstance(layer, Heat) for layer in panel.layers):
        area.grid(visible=False)
    if panel.x.bounds:
        area.set_xlim(*panel.x.bounds)
    if panel.y.bounds:
        area.set_ylim(*panel.y.bounds)
    x, y = panel.extents
    _draw_axis(area.xaxis, panel.x, x)
    _draw_axis(area.yaxis, panel.y, y)


def _draw_axis(line: Line, axis: Axis, values: Sequence[float]) -> None:
    line.set_label_text(_make_printable(axis.label))
    low, high = sorted(line.get_view_interval())
    ticks = [(at, _make_printable(textwrap.shorten(text, _MAX_TICK))) for at, text in axis.ticks if low <= at <= high]
    if ticks:
        line.set_ticks([at for at, _ in ticks], [text for _, text in ticks])
        line.set_minor_locator(NullLocator())
    elif axis.scale == "linear":
        is_whole = not axis.unit and all(float(value).is_integer() for value in values)
        line.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=is_whole))


def _draw_layer(area: Axes, layer: Layer, name: str) -> None:
    if isinstance(layer, Points | Intervals):
        _draw_marks(area, layer, name)
    elif isinstance(layer, Lines):
        _draw_lines(area, layer)
    elif isinstance(layer, Bars):
        bars = area.barh(layer.y, layer.lengths, left=layer.starts, height=0.6, color=look_of(layer.role).color)
        for bar in bars:
            bar.sticky_edges.x[:] = [0.0]  # the axis, not the end of another bar: marks there require a margin
    elif isinstance(layer, Density):
        _draw_density(area, layer)
    elif isinstance(layer, Heat):
        _draw_heat(area, layer)
    else:
        _draw_rule(area, layer)


def _draw_marks(area: Axes, layer: Points | Intervals, name: str) -> None:
    look = look_of(layer.role)
    color = look.color if layer.shade is None else shade_colors(layer.shade)[0]
    is_open = "open" in look.plotly
    fill = "none" if layer.shade is None else _GROUND  # a mark of the answer hides the lines below it
    style: dict[str, Any] = {
        "marker": look.matplotlib, "markersize": 0.84 * look.size if layer.shade is None else 5.5, "color": color,
        "markerfacecolor": fill if is_open else color,
        "markeredgewidth": 1.2 if is_open or look.matplotlib in "x+" else 0.0,
        "alpha": look.opacity, "linestyle": "", "zorder": 3,
    }  # fmt: skip
    x, y = np.array(layer.x), np.array(layer.y)
    if isinstance(layer, Intervals):
        x_error = np.abs(np.stack([x - layer.x_low, layer.x_high - x]))
        y_error = np.abs(np.stack([y - layer.y_low, layer.y_high - y]))
        drawn = area.errorbar(
            x, y, xerr=x_error if x_error.any() else None, yerr=y_error if y_error.any() else None,
            elinewidth=1.1, capsize=2 if layer.shade is None else 0, **(style | {"zorder": 4}),
        )[0]  # fmt: skip
    else:
        (drawn,) = area.plot(x, y, **style)
    if layer.texts and layer.shade is not None:
        drawn.set_gid(name)


def _draw_lines(area: Axes, layer: Lines) -> None:
    style, is_faint = look_of(layer.role), layer.role == "faint"
    paths = [np.stack(segment, axis=1) for segment in layer.segments]
    area.add_collection(
        LineCollection(
            paths, colors=style.color, alpha=style.opacity, linestyles=":" if layer.dashed else "-",
            linewidths=0.8 if is_faint else 1.5, zorder=1.5 if is_faint else 2,
        )
    )  # fmt: skip
    single = np.array([path[0] for path in paths if len(path) == 1]).reshape(-1, 2)
    if len(single):
        area.scatter(single[:, 0], single[:, 1], s=12, color=style.color, alpha=style.opacity, linewidths=0)


def _draw_density(area: Axes, layer: Density) -> None:
    color = look_of(layer.role).color
    shade = LinearSegmentedColormap.from_list("count", [to_rgba(color, 0.15), to_rgba(color, 0.9)])
    counts = np.ma.masked_equal(np.array(layer.counts, dtype=np.float64), 0.0)
    area.pcolormesh(layer.x_edges, layer.y_edges, counts, cmap=shade, rasterized=True)


def _draw_heat(area: Axes, layer: Heat) -> None:
    shown = choose_unit(layer.unit, layer.span)
    cells = np.array([[np.nan if value is None else value for value in row] for row in layer.values]) * shown.factor
    colors = LinearSegmentedColormap.from_list("heat", HEAT_COLORS)
    low, high = (bound * shown.factor for bound in layer.span)
    scale = Normalize(low, high if high > low else low + 1.0)
    edges = [np.arange(size + 1) - 0.5 for size in (cells.shape[1], cells.shape[0])]
    area.pcolormesh(*edges, np.ma.masked_invalid(cells), cmap=colors, norm=scale, edgecolors="white", linewidth=0.8)
    figure = area.get_figure()
    assert figure is not None
    bar = figure.colorbar(ScalarMappable(scale, colors), ax=area, fraction=0.05, pad=0.02, label=shown.suffix)
    bar.outline.set_visible(False)


def _draw_rule(area: Axes, layer: Rule) -> None:
    if layer.end is not None:
        look = look_of("band")
        span = area.axvspan if layer.axis == "x" else area.axhspan
        span(layer.value, layer.end, color=look.color, alpha=look.opacity, linewidth=0)
        return
    style: dict[str, Any] = {"color": look_of("rule").color, "linewidth": 0.8, "linestyle": ":"}
    text: dict[str, Any] = {"fontsize": 7, "color": _MUTED, "ha": "right"}
    words = _make_printable(layer.text)
    if layer.axis == "x":
        area.axvline(layer.value, **style)
        area.text(layer.value, 0.99, words, rotation=90, va="top", transform=area.get_xaxis_transform(), **text)
    else:
        area.axhline(layer.value, **style)
        area.text(0.99, layer.value, words, va="bottom", transform=area.get_yaxis_transform(), **text)


def _place_labels(area: Axes, panel: Panel, pixels: float) -> None:
    """Writes the labels of marks: each takes the position with the least overlap with marks, intervals and texts. A
    label that would leave the panel or touch an earlier label everywhere is left out. ``pixels`` are those of a point.
    """
    boxes = [np.empty((0, 4)), *(each for layer in panel.layers for each in _list_boxes(area, layer, pixels))]
    for text in area.texts:  # of lines across the panel: at the end with less below it
        ends = np.stack([text.get_window_extent().extents] * 2)
        ends[1, [0, 2]] -= ends[1, 0] - area.bbox.x0 - 0.01 * area.bbox.width
        right, left = _overlap(ends, np.concatenate(boxes)).sum(axis=1)
        is_left = left < right and not text.get_rotation()
        if is_left:
            text.set(x=0.01, ha="left")
        boxes.append(ends[[int(is_left)]])
    obstacles, written = np.concatenate(boxes), np.empty((0, 4))
    low, high = area.get_window_extent().get_points()
    for layer in (layer for layer in panel.layers if isinstance(layer, Points | Intervals)):
        for x, y, label in zip(layer.x, layer.y, layer.labels, strict=False):
            text = area.annotate(
                _make_printable(label), (x, y), xytext=(0, 0), fontweight="bold",
                textcoords="offset points", ha="center", va="center", zorder=5, annotation_clip=False,
                bbox={"facecolor": _GROUND, "alpha": 0.7, "linewidth": 0, "pad": 0.5},
                arrowprops={"arrowstyle": "-", "color": _MUTED, "linewidth": 0.6, "shrinkA": 0, "shrinkB": 4},
            )  # fmt: skip
            box = text.get_window_extent()
            # an offset is of the label's middle: half of its size more in its direction, but for corners only across
            halves = (
                np.array([box.width, box.height]) / 2 * np.stack([_OFFSETS[:, 0] != 0, _OFFSETS[:, 0] == 0], axis=1)
            )
            offsets = _OFFSETS * pixels + np.sign(_OFFSETS) * halves
            moved = box.extents + np.tile(offsets, 2)
            ranks = np.arange(len(moved))
            covered = _overlap(moved, obstacles).sum(axis=1) / (box.width * box.height)
            score = covered + 0.3 * (ranks // len(_DIRECTIONS)) + 0.01 * ranks
            score[(moved[:, :2] < low).any(axis=1) | (moved[:, 2:] > high).any(axis=1)] = np.inf
            score[_overlap(moved, written).any(axis=1)] = np.inf
            best = int(score.argmin())
            if np.isinf(score[best]):
                text.remove()
                continue
            text.set_position(tuple(offsets[best] / pixels))
            if text.arrow_patch is not None and best < 2 * len(_DIRECTIONS):
                text.arrow_patch.set_visible(False)  # beside its mark a label requires no line to it
            written = np.concatenate([written, moved[best : best + 1]])


def _list_boxes(area: Axes, layer: Layer, pixels: float) -> list[_Values]:
    """What marks with their intervals and lines cover: left, lower, right and upper pixel, each of shape ``[n, 4]``."""

    def to_pixels(x: tuple[float, ...], y: tuple[float, ...]) -> _Values:
        return np.asarray(area.transData.transform(np.stack([x, y], axis=1)))

    def cover(one: _Values, other: _Values, reach: float) -> _Values:
        return np.concatenate([np.minimum(one, other) - reach, np.maximum(one, other) + reach], axis=1)

    if isinstance(layer, Lines):
        paths = [to_pixels(x, y) for x, y in layer.segments]
        return [cover(path[:-1], path[1:], 2.0) for path in paths]
    if not isinstance(layer, Points | Intervals):
        return []
    middle = to_pixels(layer.x, layer.y)
    boxes = [cover(middle, middle, 0.6 * look_of(layer.role).size * pixels)]
    if isinstance(layer, Intervals):
        ends = ((layer.x_low, layer.y), (layer.x_high, layer.y), (layer.x, layer.y_low), (layer.x, layer.y_high))
        boxes += [cover(middle, to_pixels(*end), 2.0) for end in ends]
    return boxes


def _overlap(boxes: _Values, others: _Values) -> _Values:
    """The area that each box of shape ``[n, 4]`` shares with each of ``others``, ``[m, 4]``; shape ``[n, m]``."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.asarray(np.maximum(high - low, 0.0).prod(axis=2))
