"""How many bytes a page has, and that the drawing script in it is the published one and draws every trace."""

import base64
import dataclasses
import gzip
import hashlib
import re
from pathlib import Path

import pytest
from frames_factory import estimates_of, make_frames

from reports.evidence import gather_evidence
from reports.figures.all_figures import make_figures
from reports.page.data import figures_json
from reports.page.page import render_page

VENDOR = Path(__file__).resolve().parent.parent / "reports/page/vendor"
PACKED = VENDOR / "plotly-cartesian.min.js.gz"


@pytest.mark.parametrize(("num_trials", "max_bytes"), [(27, 2e6), pytest.param(1000, 3e6, marks=pytest.mark.wide)])
def test_a_page_is_light(num_trials: int, max_bytes: float) -> None:
    frames = make_frames(num_trials, confirm=4)
    evidence = gather_evidence(dataclasses.replace(frames, probes=estimates_of(frames.spec)))
    assert len(render_page(evidence, make_figures(evidence)).encode()) <= max_bytes


def test_the_drawing_script_is_the_one_that_its_readme_names() -> None:
    readme = (VENDOR / "README.md").read_text(encoding="utf-8")
    row = re.search(
        r"\| `(.+)` \| `plotly.js-cartesian-dist-min` \| ([\d.]+) \| MIT, in `(.+)` \| `(\w{64})` \|", readme
    )
    assert row is not None
    name, version, license_name, digest = row.groups()
    script = gzip.decompress((VENDOR / name).read_bytes())
    assert hashlib.sha256(script).hexdigest() == digest
    assert f"plotly.js (cartesian - minified) v{version}".encode() in script[:200]
    assert (
        (VENDOR / license_name).read_text(encoding="utf-8").startswith("MIT License\n\nCopyright (c) 2016-2024 Plotly")
    )


def test_every_trace_is_of_a_type_that_the_drawing_script_has(monkeypatch: pytest.MonkeyPatch) -> None:
    script = gzip.decompress(PACKED.read_bytes()).decode()
    known = set(re.findall(r'moduleType:"trace",name:"(\w+)"', script))
    assert {"scatter", "bar", "heatmap"} <= known
    assert not {"scatter3d", "scattergl", "parcoords"} & known
    monkeypatch.setattr("reports.evidence.MAX_DETAILED", 100)  # the others are shown as a density
    frames = make_frames(160, confirm=3)
    evidence = gather_evidence(dataclasses.replace(frames, probes=estimates_of(frames.spec)))
    made = make_figures(evidence)
    assert [item.title for item in made.absent] == [
        "Gradient noise scale", "Critical batch size", "Device utilization and power",
    ]  # fmt: skip
    traces = [
        trace
        for figure in figures_json(made.figures)["figures"]
        for panel in figure["panels"]
        for trace in panel["traces"]
    ]
    used = {trace["type"] for trace in traces}
    assert used == {"scatter", "bar", "heatmap"}
    assert used <= known


def test_the_page_has_the_drawing_script_once_and_unpacked_nowhere() -> None:
    evidence = gather_evidence(make_frames(3))
    html = render_page(evidence, make_figures(evidence))
    assert "plotly.js (cartesian" not in html
    (packed,) = re.findall(r'<script type="application/gzip" id="plotly">([A-Za-z0-9+/=]+)</script>', html)
    assert base64.b64decode(packed) == PACKED.read_bytes()
