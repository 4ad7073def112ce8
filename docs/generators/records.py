"""What records hold: metrics, quality flags, frames."""

from generators.markdown import table

from sweep.config.metrics import METRICS
from sweep.records import frames as frame_columns
from sweep.records.quality import MEANINGS, find_time_doubts


def metrics() -> str:
    rows = [
        (
            f"`{item.name}`",
            item.unit,
            item.direction or "no objective",
            item.description + (f"; requires {item.requires.text}" if item.requires else ""),
        )
        for item in METRICS.values()
    ]
    return table(("metric", "unit", "better", "meaning"), rows)


def flags() -> str:
    """Every quality flag, and whether it is a doubt about the measured time."""
    rows = [(f"`{name}`", "yes" if find_time_doubts((name,)) else "", text) for name, text in MEANINGS.items()]
    return table(("flag", "doubt about the time", "meaning"), rows)


_OTHER_UNITS = {
    "learning_rate": "",
    "global_batch_size": "samples",
    "micro_batch": "samples",
    "samples": "samples",
    "epoch": "passes",
    "step": "optimizer steps",
    "num_train": "images",
    "num_validation": "images",
    "num_windows": "count",
    "data_images_per_second": "images/second",
    "eval_images_per_second": "images/second",
}


def frames() -> str:
    """Every frame with its columns, dtypes and units."""
    parts = []
    for name in ("TRIAL", "EVALUATION", "ATTEMPT", "QUEUE", "PROBE", "STUDY", "ENVIRONMENT"):
        columns = getattr(frame_columns, f"{name}_COLUMNS")
        rows = [(f"`{item.name}`", item.dtype, _unit(item.name), _missing(item)) for item in columns if _is_own(item)]
        if name == "TRIAL":
            rows.insert(
                5, ("`config.*`", "by key", "", "a column for each key of [a configuration](configuration-keys.md)")
            )
        titles = {"STUDY": "studies", "QUEUE": "queue", "ENVIRONMENT": "environment_rows"}
        title = titles.get(name, name.lower() + "s")
        parts.append(f"`{title}`\n\n" + table(("column", "dtype", "unit", "missing values"), rows))
    return "\n\n".join(parts)


def _is_own(column: frame_columns.FrameColumn) -> bool:
    return not column.name.startswith("config.")


def _missing(column: frame_columns.FrameColumn) -> str:
    return "possible" if column.nullable else ""


def _unit(name: str) -> str:
    if name in METRICS:
        return METRICS[name].unit
    if name in _OTHER_UNITS:
        return _OTHER_UNITS[name]
    return next((unit for unit in ("seconds", "bytes") if f"_{unit}" in name), "nats" if name.endswith("loss") else "")
