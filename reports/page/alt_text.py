"""Alternative texts of panels for screen readers."""

from reports.figure import Bars, Cloud, Density, Figure, Heat, Intervals, Layer, Lines, Panel, Points
from reports.labels import choose_unit
from reports.plot_layout import choose_units, read_depths, read_extents
from sweep.config.units import DisplayUnit, format_count

MAX_LAYERS = 12


def describe_panel(figure: Figure, panel: Panel) -> str:
    """Title, axes with their ranges, and how many marks of which kind; values are in the tables of the page."""
    x, y = read_extents(panel)
    x_shown, y_shown = choose_units(panel)
    parts = [f"{figure.title}{f', {panel.title}' if panel.title else ''}."]
    parts.append(_axis("Across", panel.x.label, x, x_shown, [text for _, text in panel.x.ticks]))
    parts.append(_axis("Up", panel.y.label, y, y_shown, [text for _, text in panel.y.ticks]))
    if panel.z is not None:
        z = read_depths(panel)
        parts.append(_axis("In depth", panel.z.label, z, choose_unit(panel.z.unit, z), []))
    counts = [words for layer in panel.layers[:MAX_LAYERS] if (words := _count(layer))]
    return " ".join([*filter(None, parts), f"It shows {'; '.join(counts)}." if counts else ""])


def _axis(where: str, label: str, values: list[float], shown: DisplayUnit, ticks: list[str]) -> str:
    if not values and not ticks:
        return ""
    if not values or not label:
        return f"{where}: {', '.join(ticks[:12])}." if ticks else ""
    low, high = (f"{bound * shown.factor:.4g}" for bound in (min(values), max(values)))
    return f"{where}: {label}, {low} to {high} {shown.suffix}".rstrip() + "."


def _count(layer: Layer) -> str:
    name = f" ({layer.name})" if layer.name else ""
    if isinstance(layer, Points | Intervals | Cloud):
        return format_count(len(layer.x), "mark") + name
    if isinstance(layer, Lines):
        return format_count(len(layer.segments), "line") + name
    if isinstance(layer, Bars):
        return format_count(sum(length > 0 for length in layer.lengths), "bar") + name
    if isinstance(layer, Density):
        return f"a shade for {format_count(sum(map(sum, layer.counts)), 'trial')}"
    if isinstance(layer, Heat):
        return format_count(len(layer.known), "colored cell") + name
    return f"a line at {layer.text}" if layer.text else ""
