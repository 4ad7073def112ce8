"""No barrier that axe-core finds, in both themes with everything unfolded; and the printed page: few sheets, the answer
whole on the first, nothing that only a screen can use."""

import gzip
import hashlib
import re
from pathlib import Path

import pytest
from frames_factory import make_frames

from reports.writing import write_report

pytestmark = pytest.mark.wide

VENDOR = Path(__file__).resolve().parent / "vendor"


@pytest.fixture(scope="module")
def page_path(tmp_path_factory):
    return write_report(make_frames(40, confirm=4), tmp_path_factory.mktemp("barriers") / "report.html", formats=())


@pytest.fixture(scope="module", params=["light", "dark"])
def unfolded(request, open_visit, page_path):
    return open_visit(page_path, color_scheme=request.param, bypass_csp=True)


def read_axe() -> str:
    row = re.search(r"\| `(.+)` \| `axe-core` \| .* \| `(\w{64})` \|", (VENDOR / "README.md").read_text("utf-8"))
    script = gzip.decompress((VENDOR / row[1]).read_bytes())
    assert hashlib.sha256(script).hexdigest() == row[2]
    return script.decode()


def test_axe_finds_no_violation(unfolded):
    unfolded.page.evaluate(read_axe())
    unfolded.page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    unfolded.settle()
    # one that axe-core still tries out: who speaks to the page says what is visible on a button
    beside = "rules: { 'label-content-name-mismatch': { enabled: true } }"
    found = unfolded.page.evaluate(f"axe.run(document, {{ resultTypes: ['violations'], {beside} }})")
    assert "label-content-name-mismatch" in {each["id"] for each in found["passes"]}
    assert len(found["passes"]) > 30  # it ran
    described = [
        f"{each['id']} ({each['impact']}), {len(each['nodes'])} times: {each['nodes'][0]['html'][:300]}"
        for each in found["violations"]
    ]
    assert not described, "\n".join(described)


MAX_SHEETS = 8
ON_SCREEN_ONLY = (
    "nav", ".tools", "#filters", ".copy", ".choose", ".small", "#trials table", '.views input[type="radio"]',
)  # fmt: skip


@pytest.fixture(scope="module")
def visit(open_visit, page_path):
    return open_visit(page_path, is_whole=False, color_scheme="dark")


@pytest.fixture
def paper(visit):
    visit.page.emulate_media(media="print")
    visit.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    yield visit.page
    visit.page.evaluate("dispatchEvent(new Event('afterprint'))")
    visit.page.emulate_media(media="screen")


def count_sheets(document: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", document))


def test_the_page_is_printed_on_few_sheets(visit):
    for size in ("A4", "Letter"):
        assert 3 <= count_sheets(visit.page.pdf(format=size)) <= MAX_SHEETS
    assert visit.page.locator("#answer .more[open]").count() == 0  # as before


def test_what_only_a_screen_can_use_is_not_printed(paper):
    assert paper.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for selector in ON_SCREEN_ONLY:
        parts = paper.locator(selector)
        assert parts.count() > 0, selector
        assert not any(each.is_visible() for each in parts.all()), selector


def test_commands_of_the_answer_are_printed_and_folded_parts_are_named(paper):
    details = paper.locator("#answer .more")
    assert details.count() > 0
    assert all(each.locator(".rerun code").last.is_visible() for each in details.all())
    for group in paper.locator("details.group").all():
        summary = group.locator("> summary")
        assert "not printed" in summary.evaluate("each => getComputedStyle(each, '::after').content")
        assert not group.locator(".figure").first.is_visible()
    paper.evaluate("document.querySelector('details.group:last-of-type').open = true")
    assert "not printed" in paper.locator("#trials .on-paper").inner_text()
    assert paper.locator("#trials .on-paper").is_visible()
    paper.evaluate("document.querySelector('details.group:last-of-type').open = false")


def test_the_answer_and_its_pictures_fit_on_the_first_sheet(paper):
    width, height = (round((inches - 2 * 14 / 25.4) * 96) for inches in (8.27, 11))  # the smaller side of either size
    paper.set_viewport_size({"width": width, "height": 900})
    assert paper.locator(".answer-figure").evaluate("each => each.getBoundingClientRect().bottom + scrollY") <= height
