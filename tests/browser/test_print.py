"""The printed page: few sheets, the answer whole on the first, nothing that only a screen can use."""

import re

import pytest
from frames_factory import make_frames
from visiting import Visit

from reports.writing import write_report

pytestmark = pytest.mark.wide

MAX_SHEETS = 8
ON_SCREEN_ONLY = (
    "nav", ".tools", "#filters", ".copy", ".choose", ".small", "#trials table", '.views input[type="radio"]',
)  # fmt: skip


@pytest.fixture(scope="module")
def visit(chromium, tmp_path_factory):
    path = write_report(make_frames(40, confirm=4), tmp_path_factory.mktemp("print") / "report.html", formats=())
    visit = Visit(chromium, path, is_whole=False, color_scheme="dark")
    yield visit
    visit.context.close()


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
