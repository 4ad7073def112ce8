"""The page: one file that opens offline under a policy that lets only its own two scripts run."""

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

import numpy as np
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from reports.evidence import Evidence, format_column
from reports.figure import Bars, Density, Figure, Heat, Intervals, Layer, Lines, Panel, Points
from reports.figures.all_figures import GROUPS, ReportFigures
from reports.labels import (
    OUTCOME_NAMES,
    SPLIT_WORDS,
    describe_kinds,
    describe_set,
    explain_uncounted,
    format_interval,
    format_metric,
    format_setting,
    format_value,
    list_classes,
    list_notes,
    list_unused,
    metric_label,
)
from reports.layout import choose_units, key_glyph, look_of
from reports.page.data import describe_details, describe_limits, figures_json, write_study
from reports.page.tables import list_claims, make_front_table, make_uses_table
from reports.texts import (
    describe_batch_answer,
    describe_first,
    describe_method,
    describe_recommendation,
    head_costs,
    head_curve,
    is_expected,
    list_reservations,
)
from sweep.analysis.statistics import plain_value, read_numbers, read_text
from sweep.config.errors import show_name
from sweep.config.metrics import format_count
from sweep.config.trial import TrialConfig, flatten_config, key_label

# One script, in this order; a later file uses what an earlier one declares.
_SCRIPTS = ("data.js", "plots.js", "filters.js", "tables.js", "choose.js", "limits.js", "page.js")
_PLOTLY = "vendor/plotly-cartesian.min.js.gz"
_MAX_DESCRIBED_LAYERS = 12  # of a panel, in its alternative text


def render_page(evidence: Evidence, made: ReportFigures, pictures: Sequence[str] = ()) -> str:
    """The whole HTML text. ``pictures`` are SVG elements of the answer, the wide one first. The same evidence gives the
    same bytes: no time, no random name."""
    packed = _read_bytes(_PLOTLY)
    parts = "\n".join(_resource(name) for name in _SCRIPTS)
    # in a function of its own, so that nothing of it is global; a browser turns \r\n into \n before it hashes
    script = f'"use strict";\n(async () => {{\n{parts}}})();\n'.replace("\r\n", "\n").replace("\r", "\n")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        loader=FunctionLoader(_resource),
    )  # fmt: skip
    environment.filters |= {"value": format_value, "interval": format_interval}
    details, limits = describe_details(evidence), describe_limits(evidence.candidates)
    picture_caption = made.answer.caption.partition("\n")[0] if isinstance(made.answer, Figure) else ""
    shown = figures_json(made.figures) | {"details": details, "limits": limits}
    data = json.dumps(shown, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
    return environment.get_template("page.html.jinja").render(
        policy=_write_policy(gzip.decompress(packed), script.encode()),
        # not escaped: files of ours, drawings with escaped texts, and base64
        style=Markup(_resource("page.css")),  # nosec B704
        plotly=Markup(_in_base64(packed)),  # nosec B704
        script=Markup(script),  # nosec B704
        data=Markup(_in_base64(gzip.compress(data, compresslevel=6, mtime=0))),  # nosec B704
        pictures=[Markup(picture) for picture in pictures],  # nosec B704
        picture_caption=picture_caption,
        limits=limits,
        groups=_group(made.figures),
        absent=made.absent,
        columns=[(position, details["columns"][position]) for position in details["shown"]],
        constant=details["constant"],
        num_detailed=len(details["number"]),
        has_filters=bool(details["filters"]),
        **_describe(evidence),
    )


def _describe(evidence: Evidence) -> dict[str, Any]:
    answer, spec, batch = evidence.answer, evidence.frames.spec, evidence.answer.batch_size
    is_for_new = evidence.candidates is None or not evidence.candidates.records.data_text
    quality, claims = answer.quality, list_claims(evidence.claims)
    cards = [describe_recommendation(item, quality) for item in answer.uses.values()]
    return {
        "name": evidence.name,
        "question": spec.question if spec else "",
        "objectives": [metric_label(name, quality).lower() for name in evidence.objectives],
        "first": describe_first(evidence),
        "batch": describe_batch_answer(batch, quality) if batch else None,
        "named_batch": (batch.model, str(batch.named.global_batch_size)) if batch else None,
        "has_expected": batch is not None and any(is_expected(point, quality) for point in batch.curve),
        "images_statement": answer.validation.statement,
        "uses": make_uses_table(evidence, cards),
        "open_uses": [card for card in cards if card.trial is None],
        "facts": list(answer.facts.values()),
        "tested": [row for row in claims if row["picture"]],
        "untested": [row["finding"] for row in claims if not row["picture"]],
        "method": describe_method(quality),
        "batch_heads": head_curve(quality),
        "cost_heads": head_costs(quality),
        "noun": f"{'an' if quality.noun == 'accuracy' else 'a'} {quality.noun}",
        "curves_label": "Validation accuracy and loss" if quality.noun == "accuracy" else quality.label,
        "new_data": f"new {quality.sample}" if is_for_new else "other seeds on these validation data",
        "has_study": spec is not None,
        "source": evidence.frames.source,
        "warnings": list_reservations(evidence),
        "outcomes": [(OUTCOME_NAMES.get(name, name), count) for name, count in evidence.count_outcomes().items()],
        "num_trials": len(evidence.trials),
        "planned": format_count(spec.trials, "search trial") if spec else "",
        "images": _describe_images(evidence),
        "split_words": SPLIT_WORDS,
        "study": write_study(spec) if spec else "",
        "rerun": evidence.frames.find_commands(evidence.name).run_again() if spec else "",
        "settings": list(_list_settings(evidence)),
        "table": make_front_table(evidence),
        "reuse": _describe_reuse(evidence),
        "environments": list(_list_environments(evidence)),
    }


def _describe_images(evidence: Evidence) -> dict[str, Any]:
    """The images that the trials read, as they were counted; that they were not, where nothing is on record."""
    data = evidence.frames.data
    if data is None:
        head = explain_uncounted(evidence.frames.spec)
        return {"head": head, "notes": (), "facts": (), "unused": (), "classes": None}
    facts = (
        ("Held out", show_name(data.held_out, shorten=False)),
        ("Sizes", describe_kinds(data.sizes, "sizes")),
        ("Modes", describe_kinds(data.modes, "modes")),
        ("Digest", data.digest),
    )
    return {
        "head": describe_set(data),
        "notes": list_notes(data),
        "facts": [fact for fact in facts if fact[1]],
        "unused": list_unused(data),
        "classes": list_classes(data),
    }


def _list_settings(evidence: Evidence) -> Iterator[tuple[str, str, str, str]]:
    """Every setting of the trials: label, key, value, and where it is from, "" for the study."""
    frame, first = evidence.trials, evidence.trials.head(1)
    for key, default in flatten_config(TrialConfig()).items():
        name, label = f"config.{key}", key_label(key)
        if key == "seed" or name not in frame.columns or not len(frame):  # each trial has its own seed
            continue
        if key in evidence.swept:
            yield label, key, "searched", "the search space"
        elif frame[name].nunique(dropna=False) != 1:
            yield label, key, "differs between trials", ""
        else:
            value = format_column(first, key)[0]
            yield label, key, value, "default" if value == format_setting(default) else ""


def _describe_reuse(evidence: Evidence) -> str:
    """How many trials were taken from earlier records and what that saved; "" when none was."""
    reused = evidence.trials[read_text(evidence.trials, "reused_from") != ""]
    if not len(reused):
        return ""
    saved = float(np.nansum(read_numbers(reused, "total_seconds")))
    sources = sorted({str(origin).rpartition("/")[0] for origin in read_text(reused, "reused_from")})
    origin = f" ({', '.join(sources[:5])})" if sources != [""] else ""
    time = f", which saved {format_metric('total_seconds', saved)}" if saved else ""
    return f"{format_count(len(reused), 'trial')} reused from earlier records{origin}{time}."


def _list_environments(evidence: Evidence) -> Iterator[tuple[str, list[str]]]:
    """What is known of the environments: a name, and its value in each of them."""
    frame = evidence.frames.environments
    for name in map(str, frame.columns):
        values = [plain_value(value) for value in frame[name].head(5)]
        if any(value not in (None, "") for value in values):
            yield name, ["–" if value is None else str(value)[:300] for value in values]


def _group(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """The parts of the page that are folded, each with its figures."""
    return [
        {
            "name": "group-" + title.lower().replace(" ", "-"),
            "title": title,
            "figures": [_describe_figure(figure) for figure in figures if figure.group == title],
        }
        for title in GROUPS
    ]


def _describe_figure(figure: Figure) -> dict[str, Any]:
    views = list(dict.fromkeys(panel.view for panel in figure.panels if panel.view))
    first_views = ("", *views[:1])
    panels = [
        {
            "title": panel.title,
            "alt": describe_panel(figure, panel),
            "view": panel.view,
            "is_hidden": panel.view not in first_views,
        }
        for panel in figure.panels
    ]
    return {
        "name": figure.name,
        "title": figure.title,
        "finding": figure.finding,
        "caption": figure.caption,
        "legend": [(layer.name, look_of(layer.role).color, key_glyph(layer)) for layer in figure.legend_layers()],
        "views": views,
        "panels": panels,
        "is_single": sum(panel.view in first_views for panel in figure.panels) == 1,
    }


def describe_panel(figure: Figure, panel: Panel) -> str:
    """The alternative text of ``panel``: its title, axes with their ranges, number of marks of each kind."""
    parts = [f"{figure.title}{f', {panel.title}' if panel.title else ''}."]
    axes = zip(("Across", "Up"), (panel.x, panel.y), panel.extents, choose_units(panel), strict=True)
    for where, axis, values, shown in axes:
        if axis.ticks:  # choices side by side, whose positions mean nothing
            texts = [text for _, text in axis.ticks[:_MAX_DESCRIBED_LAYERS]]
            parts.append(f"{where}: {', '.join(filter(None, [axis.label, *texts]))}.")
        elif axis.label and values:
            low, high = (f"{bound * shown.factor:.4g}" for bound in (min(values), max(values)))
            parts.append(f"{where}: {axis.label}, {low} to {high} {shown.suffix}".rstrip() + ".")
    counts = [words for layer in panel.layers[:_MAX_DESCRIBED_LAYERS] if (words := _describe_layer(layer))]
    return " ".join([*parts, f"It shows {'; '.join(counts)}." if counts else ""])


def _describe_layer(layer: Layer) -> str:
    name = f" ({layer.name})" if layer.name else ""
    if isinstance(layer, Points | Intervals):
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


def _write_policy(*scripts: bytes) -> str:
    digests = (_in_base64(hashlib.sha256(script).digest()) for script in scripts)
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _resource(name: str) -> str:
    return _read_bytes(name).decode()


def _read_bytes(name: str) -> bytes:
    return (resources.files("reports") / "page" / name).read_bytes()
