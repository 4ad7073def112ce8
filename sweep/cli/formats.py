"""Numbers as people read them, by the metric's unit."""

from sweep.config.metrics import METRICS

_SYMBOLS = {"joules": "J", "watts": "W", "celsius": "°C"}
# Control characters but line ends and tabs, and those that turn the direction of writing about.
_OBEYED = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)} - {0x09, 0x0A}
_SHOWN = {code: f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" for code in _OBEYED}


def visible(text: str) -> str:
    """``text`` as a terminal may get it: what it would obey (colours, the cursor) is shown instead. For whatever
    comes from records, errors and files of others."""
    return text.translate(_SHOWN)


def format_metric(name: str, value: float | int | None) -> str:
    """``value`` of the metric ``name`` with its unit; a dash when absent."""
    if value is None:
        return "-"
    unit = METRICS[name].unit
    if unit == "fraction":
        return f"{100 * value:.2f} %"
    if unit == "bytes":
        return format_bytes(value)
    if unit == "seconds":
        return format_seconds(value)
    if unit in _SYMBOLS:
        return f"{value:.4g} {_SYMBOLS[unit]}"
    if unit == "hertz":
        return f"{value / 1e6:,.0f} MHz"
    return f"{value:,.0f}" if unit in ("count", "images/second") else f"{value:.4g}"


def format_bytes(value: float) -> str:
    """``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(value) < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the loop ends at the largest unit")


def format_seconds(value: float) -> str:
    """``850 us``, ``12.3 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if abs(value) < 1e-3:
        return f"{value * 1e6:.0f} us"
    if abs(value) < 1:
        return f"{value * 1e3:.1f} ms"
    if abs(value) < 60:
        return f"{value:.1f} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
