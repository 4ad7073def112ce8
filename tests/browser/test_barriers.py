"""No barrier that axe-core finds, in both themes with everything unfolded."""

import gzip
import hashlib
import re
from pathlib import Path

import pytest
from frames_factory import make_frames
from visiting import Visit

from reports.writing import write_report

pytestmark = pytest.mark.wide

VENDOR = Path(__file__).resolve().parent / "vendor"


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    frames = make_frames(40, confirm=4)
    return write_report(frames, tmp_path_factory.mktemp("barriers") / "report.html", formats=())


@pytest.fixture(scope="module", params=["light", "dark"])
def visit(request, chromium, page_path):
    visit = Visit(chromium, page_path, color_scheme=request.param, bypass_csp=True)
    yield visit
    visit.context.close()


def read_axe() -> str:
    row = re.search(r"\| `(.+)` \| `axe-core` \| .* \| `(\w{64})` \|", (VENDOR / "README.md").read_text("utf-8"))
    script = gzip.decompress((VENDOR / row[1]).read_bytes())
    assert hashlib.sha256(script).hexdigest() == row[2]
    return script.decode()


def test_axe_finds_no_violation(visit):
    visit.page.evaluate(read_axe())
    visit.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    visit.settle()
    found = visit.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    assert len(found["passes"]) > 30  # it ran
    described = [
        f"{each['id']} ({each['impact']}), {len(each['nodes'])} times: {each['nodes'][0]['html'][:300]}"
        for each in found["violations"]
    ]
    assert not described, "\n".join(described)
