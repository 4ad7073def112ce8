"""Figures as data to what Plotly draws: plain dictionaries, so that nothing heavy is imported."""

from collections.abc import Iterable
from typing import Any

from reports.figure import Bars, Density, Figure, Heat, Intervals, Layer, Lines, Panel, Points
from reports.labels import choose_unit
from reports.palette import HEAT_COLORS, look_of
from reports.plot_layout import Json, choose_units, escape_text, make_layout, make_scales
from sweep.config.units import DisplayUnit


def figures_json(figures: Iterable[Figure]) -> Json:
    """``{"figures": [{"name", "panels": [{"traces", "layout", "scales", "members"}]}], "texts"}``.

    Every text is escaped, because Plotly reads markup in texts. A trace's ``hovertext`` holds positions in ``texts``: a
    trial has the same text in every panel. Its ``customdata`` holds the numbers of the trials that its marks stand for.
    """
    made: list[Json] = [
        {"name": figure.name, "panels": [_panel(panel) for panel in figure.panels]} for figure in figures
    ]
    pool: dict[str, int] = {}
    for figure in made:
        for panel in figure["panels"]:
            for trace in panel["traces"]:
                trace |= {"hovertext": _pooled(trace.get("hovertext", []), pool)}
    return {"figures": made, "texts": list(pool)}


def _pooled(texts: list[Any], pool: dict[str, int]) -> list[Any]:
    return [_pooled(text, pool) if isinstance(text, list) else pool.setdefault(text, len(pool)) for text in texts]


def _panel(panel: Panel) -> Json:
    x_shown, y_shown = choose_units(panel)
    traces = [trace for layer in panel.layers for trace in _traces(layer, x_shown, y_shown)]
    members = [place for layer in panel.layers if isinstance(layer, Heat) for place in layer.members]
    return {"traces": traces, "layout": make_layout(panel), "scales": make_scales(panel), "members": members}


def _traces(layer: Layer, x_shown: DisplayUnit, y_shown: DisplayUnit) -> list[Json]:
    if isinstance(layer, Density):
        return [_density(layer, x_shown, y_shown)]
    if isinstance(layer, Bars):
        return [_bars(layer, x_shown)]
    if isinstance(layer, Lines):
        return [_lines(layer, x_shown, y_shown)]
    if isinstance(layer, Points | Intervals):
        return [_marks(layer, x_shown, y_shown)]
    return [_heat(layer)] if isinstance(layer, Heat) else []


def _scaled(values: tuple[float, ...], shown: DisplayUnit) -> list[float]:
    return [float(f"{value * shown.factor:.8g}") for value in values]


def _base(name: str, texts: Iterable[str], trials: Iterable[int] = ()) -> Json:
    # "text" and not a template: a template would read %{...} inside a text
    shown, numbers = [escape_text(text) for text in texts], list(trials)
    made: Json = {"meta": name, "name": escape_text(name), "hoverinfo": "text" if shown else "skip"}
    made |= {"hovertext": shown} if shown else {}
    return made | ({"customdata": numbers} if numbers else {})


def _marker(role: str) -> Json:
    style = look_of(role)
    outline = {"width": 1.6 if "open" in style.plotly or "thin" in style.plotly else 0, "color": style.color}
    return {
        "color": style.color, "symbol": style.plotly, "size": style.size, "opacity": style.opacity, "line": outline
    }  # fmt: skip


def _marks(layer: Points | Intervals, x_shown: DisplayUnit, y_shown: DisplayUnit) -> Json:
    made = _base(layer.name, layer.texts, layer.trials)
    made |= {"type": "scatter", "mode": "markers", "marker": _marker(layer.role)}
    made |= {"x": _scaled(layer.x, x_shown), "y": _scaled(layer.y, y_shown)}
    if isinstance(layer, Intervals):
        color = look_of(layer.role).color
        made["error_x"] = _error(layer.x, layer.x_low, layer.x_high, x_shown, color)
        made["error_y"] = _error(layer.y, layer.y_low, layer.y_high, y_shown, color)
    return made


def _error(
    middle: tuple[float, ...], low: tuple[float, ...], high: tuple[float, ...], shown: DisplayUnit, color: str
) -> Json:
    up = tuple(h - m for h, m in zip(high, middle, strict=True))
    down = tuple(m - lo for m, lo in zip(middle, low, strict=True))
    bars = {"array": _scaled(up, shown), "arrayminus": _scaled(down, shown)}
    return bars | {
        "type": "data", "symmetric": False, "color": color, "thickness": 1.4, "width": 3,
        "visible": any(up) or any(down),
    }  # fmt: skip


def _lines(layer: Lines, x_shown: DisplayUnit, y_shown: DisplayUnit) -> Json:
    style = look_of(layer.role)
    x: list[float | None] = []
    y: list[float | None] = []
    owners: list[int] = []
    for index, (line_x, line_y) in enumerate(layer.segments):
        x += [*_scaled(line_x, x_shown), None]
        y += [*_scaled(line_y, y_shown), None]
        owners += [index] * (len(line_x) + 1)
    owners = owners[:-1]  # a gap parts two lines; after the last one there is none
    texts = [layer.texts[index] for index in owners] if layer.texts else []
    trials = [layer.trials[index] for index in owners] if layer.trials else []
    line = {"color": style.color, "width": 1.0 if layer.role == "faint" else 1.8}
    line |= {"dash": "dot"} if layer.dashed else {}
    made = _base(layer.name, texts, trials) | {"type": "scatter", "mode": "lines", "line": line}
    if any(len(line_x) == 1 for line_x, _ in layer.segments):  # a line through one point is not visible
        made |= {"mode": "lines+markers", "marker": {"color": style.color, "size": 5}}
    made |= {"front": {"of": layer.front_of, "signs": layer.signs}} if layer.front_of else {}
    return made | {"x": x[:-1], "y": y[:-1], "opacity": style.opacity, "connectgaps": False}


def _bars(layer: Bars, shown: DisplayUnit) -> Json:
    marker = {"color": look_of(layer.role).color}
    made = _base(layer.name, layer.texts) | {"type": "bar", "orientation": "h", "marker": marker, "width": 0.6}
    return made | {"x": _scaled(layer.lengths, shown), "y": list(layer.y), "base": _scaled(layer.starts, shown)}


def _density(layer: Density, x_shown: DisplayUnit, y_shown: DisplayUnit) -> Json:
    color = look_of(layer.role).color
    made = {"type": "heatmap", "x": _scaled(layer.x_edges, x_shown), "y": _scaled(layer.y_edges, y_shown)}
    # an empty cell is a gap, so that the page shines through in the dark too
    cells = [[count or None for count in row] for row in layer.counts]
    scale = [[0.0, f"{color}22"], [1.0, f"{color}cc"]]
    return made | _base(layer.name, ()) | {"z": cells, "colorscale": scale, "showscale": False}


def _heat(layer: Heat) -> Json:
    shown = choose_unit(layer.unit, layer.span)
    low, high = (bound * shown.factor for bound in layer.span)
    cells = [[None if value is None else float(f"{value * shown.factor:.8g}") for value in row] for row in layer.values]
    scale = [[index / (len(HEAT_COLORS) - 1), color] for index, color in enumerate(HEAT_COLORS)]
    bar = {"thickness": 10, "outlinewidth": 0, "title": {"text": escape_text(shown.suffix), "side": "right"}}
    made = _base(layer.name, ()) | {
        "type": "heatmap",
        "z": cells,
        "colorscale": scale,
        "colorbar": bar,
        "xgap": 1,
        "ygap": 1,
    }
    texts = [[escape_text(text) for text in row] for row in layer.texts]
    made |= {"zmin": low, "zmax": high, "hoverinfo": "text", "hovertext": texts, "hoverongaps": False}
    return made | {"customdata": [list(row) for row in layer.trials]}
