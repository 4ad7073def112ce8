"""The page: one file that opens offline under a policy that lets only its own two scripts run."""

import base64
import gzip
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from reports.batch_texts import COST_HEADS, CURVE_HEADS
from reports.data_texts import SPLIT_WORDS
from reports.evidence import Evidence
from reports.figure import Bars, Density, Figure, Heat, Intervals, Layer, Lines, Panel, Points
from reports.figures.all_figures import GROUPS, ReportFigures
from reports.first.first_texts import describe_first
from reports.first.pictures_of_answer import draw_first_pictures
from reports.labels import OUTCOME_NAMES, metric_label
from reports.page import reading_checks, report_texts
from reports.page.answer_texts import describe_answers
from reports.page.front_table import make_front_table
from reports.page.limit_data import describe_limits, list_limit_names
from reports.page.run_texts import describe_run
from reports.page.traces import figures_json
from reports.page.trial_details import describe_details
from reports.page.uses_table import make_uses_table
from reports.palette import key_glyph, look_of
from reports.plot_layout import choose_units, make_scales
from sweep.config.units import DisplayUnit, format_count

# One script, in this order; a later file uses what an earlier one declares.
_SCRIPTS = (
    "load.js",
    "data.js",
    "theme.js",
    "plots.js",
    "rings.js",
    "parallel.js",
    "filters.js",
    "tables.js",
    "choose.js",
    "limits.js",
    "limit_sliders.js",
    "print.js",
    "address.js",
    "download.js",
    "start.js",
)
_PLOTLY = "vendor/plotly-cartesian.min.js.gz"
MAX_DESCRIBED_LAYERS = 12  # of a panel, in its alternative text


def render_page(evidence: Evidence, made: ReportFigures, refresh_seconds: int = 0) -> str:
    """The whole HTML text, which a browser reads again after ``refresh_seconds`` where they are above 0. The same
    evidence gives the same bytes: no time, no random name."""
    packed, script = _read_bytes(_PLOTLY), _normal(_script())
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(_resource),
    )
    known, limits = describe_details(evidence), describe_limits(evidence.candidates)
    described, draws = limits or (None, b"")
    return environment.get_template("page.html.jinja").render(
        refresh_seconds=refresh_seconds,
        policy=_policy(gzip.decompress(packed), script.encode()),
        # not escaped: files of ours, and base64
        style=Markup(_resource("page.css")),  # nosec B704
        plotly=Markup(_in_base64(packed)),  # nosec B704
        script=Markup(script),  # nosec B704
        data=Markup(_packed_json(figures_json(made.figures) | {"details": known | {"limits": described}})),  # nosec B704
        draws=Markup(_in_base64(gzip.compress(draws, compresslevel=6, mtime=0))),  # nosec B704
        limit_names=list_limit_names(evidence.candidates),
        groups=_group(made.figures),
        absent=made.absent,
        columns=[(place, known["columns"][place]) for place in known["shown"]],
        constant=known["constant"],
        num_detailed=len(known["number"]),
        has_filters=bool(known["filters"]),
        **_texts(evidence),
    )


def _texts(evidence: Evidence) -> dict[str, Any]:
    counts, spec, first = evidence.count_outcomes(), evidence.frames.spec, describe_first(evidence)
    answers = describe_answers(evidence)
    return {
        "name": evidence.name,
        "question": spec.question if spec else "",
        "objectives": [metric_label(name).lower() for name in evidence.objectives],
        "first": first,
        "pictures": draw_first_pictures(evidence, first.finding),
        "answers": answers,
        "uses": make_uses_table(evidence.answer, answers.cards),
        "batch_heads": CURVE_HEADS,
        "cost_heads": COST_HEADS,
        "has_study": spec is not None,
        "source": evidence.frames.source,
        "warnings": [reading_checks.split_command(each) for each in reading_checks.find_reservations(evidence)],
        "outcomes": [(OUTCOME_NAMES.get(name, name), count) for name, count in counts.items()],
        "num_trials": len(evidence.trials),
        "num_search": len(evidence.search),
        "planned": format_count(spec.trials, "search trial") if spec else "",
        "images": report_texts.describe_data(evidence),
        "split_words": SPLIT_WORDS,
        "run": describe_run(evidence),
        "table": make_front_table(evidence),
        "reuse": report_texts.describe_reuse(evidence),
        "environments": report_texts.environment_rows(evidence),
        "devices": report_texts.describe_devices(evidence),
    }


def _group(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    # the parts of the page that are folded, each with its figures
    return [
        {
            "name": "group-" + title.lower().replace(" ", "-"),
            "title": title,
            "figures": [_figure(figure) for figure in figures if figure.group == title],
        }
        for title in GROUPS
    ]


def _figure(figure: Figure) -> dict[str, Any]:
    views = list(dict.fromkeys(panel.view for panel in figure.panels if panel.view))
    return {
        "name": figure.name,
        "title": figure.title,
        "finding": figure.finding,
        "caption": figure.caption,
        "legend": [(layer.name, look_of(layer.role).color, key_glyph(layer)) for layer in figure.legend_layers()],
        "views": views,
        "panels": [_panel(figure, panel, views[:1]) for panel in figure.panels],
        "is_single": sum(panel.view in ("", *views[:1]) for panel in figure.panels) == 1,
    }


def _panel(figure: Figure, panel: Panel, first_view: list[str]) -> dict[str, Any]:
    return {
        "title": panel.title,
        "alt": describe_panel(figure, panel),
        "view": panel.view,
        "is_hidden": panel.view not in ("", *first_view),
        "scales": [(which, chosen["first"] == "log") for which, chosen in make_scales(panel).items()],
    }


def describe_panel(figure: Figure, panel: Panel) -> str:
    """The alternative text of ``panel``: its finding, title, axes with their ranges, number of marks of each kind."""
    x, y = panel.extents
    x_shown, y_shown = choose_units(panel)
    parts = [panel.finding, f"{figure.title}{f', {panel.title}' if panel.title else ''}."]
    parts.append(_describe_axis("Across", panel.x.label, x, x_shown, [text for _, text in panel.x.ticks]))
    parts.append(_describe_axis("Up", panel.y.label, y, y_shown, [text for _, text in panel.y.ticks]))
    counts = [words for layer in panel.layers[:MAX_DESCRIBED_LAYERS] if (words := _describe_layer(layer))]
    return " ".join([*filter(None, parts), f"It shows {'; '.join(counts)}." if counts else ""])


def _describe_axis(where: str, label: str, values: list[float], shown: DisplayUnit, ticks: list[str]) -> str:
    if not values and not ticks:
        return ""
    if ticks:  # positions beside each other, in which numbers mean nothing
        return f"{where}: {f'{label}, ' if label else ''}{', '.join(ticks[:MAX_DESCRIBED_LAYERS])}."
    if not label:
        return ""
    low, high = (f"{bound * shown.factor:.4g}" for bound in (min(values), max(values)))
    return f"{where}: {label}, {low} to {high} {shown.suffix}".rstrip() + "."


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


def _policy(*scripts: bytes) -> str:
    digests = (_in_base64(hashlib.sha256(script).digest()) for script in scripts)
    sources = " ".join(f"'sha256-{digest}'" for digest in digests)
    return (
        f"default-src 'none'; script-src {sources}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _packed_json(data: object) -> str:
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return _in_base64(gzip.compress(text.encode(), compresslevel=6, mtime=0))


def _in_base64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _normal(script: str) -> str:
    # a browser turns \r\n into \n before it hashes
    return script.replace("\r\n", "\n").replace("\r", "\n")


def _script() -> str:
    # in a function of its own, so that nothing of it is global
    parts = "\n".join(_resource(name) for name in _SCRIPTS)
    return f'"use strict";\n(async () => {{\n{parts}}})();\n'


def _resource(name: str) -> str:
    return _read_bytes(name).decode()


def _read_bytes(name: str) -> bytes:
    return (resources.files("reports") / "page" / name).read_bytes()
