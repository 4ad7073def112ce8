"""Wide tables: the first column stays in view, numbers are flush right."""

import pytest

pytestmark = pytest.mark.wide


@pytest.mark.parametrize("table", ["#front-table", "#trials", "#costs"])
def test_the_first_column_stays_in_view(visit, table):
    visit.page.set_viewport_size({"width": 500, "height": 900})
    box = visit.page.locator(f"{table} .wide").first
    box.evaluate("each => { each.scrollLeft = 200; }")
    assert box.evaluate("each => each.scrollLeft") > 100
    for row in ("thead tr", "tbody tr"):
        cell, next_cell = (box.locator(f"{row} > :nth-child({place})").first for place in (1, 2))
        left = cell.bounding_box()["x"] - box.bounding_box()["x"]
        assert 0 <= left <= 2
        assert next_cell.bounding_box()["x"] < cell.bounding_box()["x"] + cell.bounding_box()["width"]
        assert cell.evaluate("each => getComputedStyle(each).backgroundColor") != "rgba(0, 0, 0, 0)"
    box.evaluate("each => { each.scrollLeft = 0; }")
    visit.page.set_viewport_size({"width": 1280, "height": 900})
    visit.settle()


def test_numbers_are_flush_right_and_words_flush_left(visit):
    for table in ("#front-table", "#trials"):
        heads = [text.strip(" ▲▼\n") for text in visit.page.locator(f"{table} thead th").all_inner_texts()]
        cells = visit.page.locator(f"{table} tbody tr").first.locator("> *")
        align = cells.evaluate_all("all => all.map((each) => getComputedStyle(each).textAlign)")
        found = dict(zip(heads, align, strict=True))
        assert found["Effective batch size"] == found["Training time"] == found["Learning rate"] == "right"
        assert found["Model"] in {"left", "start"}
