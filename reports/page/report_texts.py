"""The texts of a report, without any markup."""

from dataclasses import dataclass

import numpy as np

from reports import data_texts
from reports.evidence import Evidence
from reports.labels import environment_label, format_metric
from sweep.analysis.statistics import plain_value, read_numbers, read_text
from sweep.config.errors import show_name
from sweep.config.units import format_count


@dataclass(frozen=True, kw_only=True)
class DataTexts:
    """What was found by looking at the images before anything trained."""

    head: str
    notes: tuple[str, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    unused: tuple[str, ...] = ()
    classes: data_texts.ClassTable | None = None


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


def environment_rows(evidence: Evidence) -> list[tuple[str, str, list[str]]]:
    """What is known of the environments: a name in words, the recorded one, and its value in each of them."""
    frame = evidence.frames.environments
    rows = []
    for name in frame.columns:
        values = [plain_value(value) for value in frame[name].head(5)]
        if any(value not in (None, "") for value in values):
            rows.append(
                (
                    environment_label(str(name)),
                    str(name),
                    ["–" if value is None else str(value)[:300] for value in values],
                )
            )
    return rows
