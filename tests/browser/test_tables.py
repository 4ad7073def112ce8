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
