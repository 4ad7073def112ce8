"""What records hold: metrics, quality flags, frames."""

from generators.markdown import table

from sweep.config.metrics import METRICS
from sweep.records.frames import FRAME_PARTS
from sweep.records.quality import MEANINGS, find_time_doubts

_BETTER = {"maximize": "higher", "minimize": "lower", None: ""}


def metrics() -> str:
    rows = [
        (
            f"`{item.name}`",
            item.unit,
            _BETTER[item.direction],
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
    """Every frame with its columns, dtypes and units; a dtype in parentheses may have missing values."""
    parts = ["A dtype in parentheses: values may be missing."]
    declared = {part.field: part.columns for part in FRAME_PARTS}
    for name in ("trials", "evaluations", "attempts", "queue", "probes", "studies", "environment_rows"):
        columns = [item for item in declared[name] if not item.name.startswith("config.")]
        if name == "trials":
            columns = [item for item in columns if item.name not in METRICS]
        rows = [
            (f"`{item.name}`", f"({item.dtype})" if item.nullable else item.dtype, _unit(item.name)) for item in columns
        ]
        if name == "trials":
            rows.insert(5, ("`config.*`", "by key", "of each [key](configuration-keys.md)"))
            rows.insert(6, ("a column for each [metric](metrics.md)", "(float64), (Int64)", "of the metric"))
        parts.append(f"`{name}`\n\n" + table(("column", "dtype", "unit"), rows))
    return "\n\n".join(parts)


def _unit(name: str) -> str:
    if name in METRICS:
        return METRICS[name].unit
    if name in _OTHER_UNITS:
        return _OTHER_UNITS[name]
    return next((unit for unit in ("seconds", "bytes") if f"_{unit}" in name), "nats" if name.endswith("loss") else "")
