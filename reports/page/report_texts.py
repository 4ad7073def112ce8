"""The texts and tables of a report, without any markup."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from reports import data_texts
from reports.describe import describe_value, read_measurement, train_commands
from reports.evidence import Evidence
from reports.labels import format_metric, format_probability, format_setting, key_label, metric_label
from sweep.analysis.statistics.column_reading import plain_value, read_numbers, read_text
from sweep.analysis.summary import USUAL_METRICS
from sweep.config.errors import show_name
from sweep.config.units import format_count

MAX_ROWS = 200


@dataclass(frozen=True)
class Cell:
    """A cell of the table: what it shows, what it sorts by, a smaller second line."""

    text: str
    key: float | str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One configuration of the table; ``trial`` is the first that its values rest on."""

    cells: tuple[Cell, ...]
    command: str
    confirmed: bool
    trial: int


@dataclass(frozen=True)
class Table:
    """The sortable table of the front; ``num_left_out`` rows were too many."""

    heads: tuple[str, ...]
    rows: tuple[Row, ...]
    num_left_out: int


@dataclass(frozen=True, kw_only=True)
class DataTexts:
    """What was found by looking at the images before anything trained."""

    head: str
    notes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    unused: tuple[str, ...] = ()
    classes: data_texts.ClassTable | None = None


def front_table(evidence: Evidence) -> Table:
    """Confirmed configurations and the search front; those of the answer's front first."""
    frame = evidence.configurations
    confirmed, search_front = (frame[name].to_numpy(dtype=bool) for name in ("confirmed", "on_search_front"))
    shown = frame[confirmed | search_front].sort_values(
        ["confirmed", "on_front", "number"], ascending=[False, False, True], kind="stable"
    )
    others = _other_metrics(evidence, shown)
    settings = evidence.swept
    values, side_values = ([metric_label(name) for name in names] for names in (evidence.objectives, others))
    keys = [key_label(key).capitalize() for key in settings]
    heads = ("Trial", "Seeds", *values, "On the Pareto front", *keys, *side_values)
    first = shown.head(MAX_ROWS)
    rows = tuple(
        _row(row, command, settings, evidence.objectives, others)
        for (_, row), command in zip(first.iterrows(), train_commands(first, evidence.frames.plugin), strict=True)
    )
    return Table(heads, rows, max(0, len(shown) - MAX_ROWS))


def _other_metrics(evidence: Evidence, frame: pd.DataFrame) -> tuple[str, ...]:
    others = (name for name in USUAL_METRICS if name not in evidence.objectives)
    return tuple(name for name in others if np.isfinite(read_numbers(frame, name)).any())


def _row(
    row: pd.Series, command: str, settings: tuple[str, ...], objectives: Sequence[str], others: Sequence[str]
) -> Row:
    failed = f"{row['num_failed_seeds']} failed" if row["num_failed_seeds"] else ""
    seeds = Cell(f"{row['num_seeds']} fresh", float(row["num_seeds"]), failed)
    cells = [Cell(str(row["number"]), float(row["number"]))]
    cells.append(seeds if row["confirmed"] else Cell("1 (search)", 0.0, failed))
    cells += [_measured_cell(row, name) for name in objectives]
    cells.append(_certainty(row))
    cells += [_setting(plain_value(row[f"config.{key}"])) for key in settings]
    cells += [_measured_cell(row, name) for name in others]
    return Row(cells=tuple(cells), command=command, confirmed=bool(row["confirmed"]), trial=row["numbers"][0])


def _measured_cell(row: pd.Series, name: str) -> Cell:
    value = read_measurement(row, name)
    shown, note = describe_value(row, name)
    return Cell(shown, value if math.isfinite(value) else "", note)


def _setting(value: object) -> Cell:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return Cell(format_setting(value), float(value) if number and isinstance(value, int | float) else str(value))


def _certainty(row: pd.Series) -> Cell:
    share = read_measurement(row, "p_front")
    words = "yes" if row["on_front"] else "search only" if row["on_search_front"] else "no"
    if math.isnan(share):
        return Cell(words, -1.0)
    return Cell(words, share, f"{format_probability(share)} probability")


def describe_reuse(evidence: Evidence) -> str:
    """How many trials were taken from earlier records and what that saved; "" when none was."""
    reused = evidence.trials[read_text(evidence.trials, "reused_from") != ""]
    if not len(reused):
        return ""
    saved = float(np.nansum(read_numbers(reused, "total_seconds")))
    sources = sorted({str(origin).rpartition("/")[0] for origin in read_text(reused, "reused_from")})
    origin = f" ({', '.join(sources[:5])})" if sources != [""] else ""
    time = f", which saved {format_metric('total_seconds', saved)}" if saved else ""
    return f"{format_count(len(reused), 'trial')} reused from earlier records{origin}{time}."


def describe_devices(evidence: Evidence) -> str:
    """The devices that trials ran on, with how many each; "" when none is known."""
    names, counts = np.unique([str(name) for name in read_text(evidence.trials, "device") if name], return_counts=True)
    return "; ".join(f"{name} ({format_count(int(count), 'trial')})" for name, count in zip(names, counts, strict=True))


def describe_data(evidence: Evidence) -> DataTexts:
    """The images that the trials read, as they were counted; that they were not, where nothing is on record."""
    data = evidence.frames.data
    if data is None:
        return DataTexts(head=data_texts.NOT_COUNTED)
    facts = (
        ("Held out", show_name(data.held_out, shorten=False)),
        ("Sizes", data_texts.describe_sizes(data)),
        ("Modes", data_texts.describe_modes(data)),
        ("Digest", data.digest),
    )
    return DataTexts(
        head=data_texts.describe_set(data),
        notes=tuple(data_texts.list_notes(data)),
        facts=tuple(fact for fact in facts if fact[1]),
        unused=tuple(data_texts.list_unused(data)),
        classes=data_texts.list_classes(data),
    )


def environment_rows(evidence: Evidence) -> list[tuple[str, list[str]]]:
    """What is known of the environments: a name, and its value in each of them."""
    frame = evidence.frames.environments
    rows = []
    for name in frame.columns:
        values = [plain_value(value) for value in frame[name].head(5)]
        if any(value not in (None, "") for value in values):
            rows.append((str(name), ["–" if value is None else str(value)[:300] for value in values]))
    return rows
