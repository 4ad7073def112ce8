"""Parallel coordinates: a line for each search trial, ranges along the axes, and the color of trials by a column."""

import pytest
from visiting import Visit

pytestmark = pytest.mark.browser


@pytest.fixture(autouse=True)
def as_opened(visit):
    yield
    visit.page.evaluate("document.querySelector('#brush-clear').click()")
    visit.page.locator("#color-by").select_option("")
    visit.page.keyboard.press("Escape")
    visit.settle()


def grip(visit, label):
    lines = visit.page.locator("#parallel-plot .axis").count()
    names = visit.page.locator("#parallel-plot text[font-weight]").all_text_contents()
    assert lines == len(names) > 4
    return visit.page.locator("#parallel-plot .grip").nth(names.index(label))


def drag(visit, label, low, high):
    """From the share ``low`` of an axis to ``high``."""
    box = grip(visit, label).bounding_box()
    x = box["x"] + box["width"] / 2
    visit.page.mouse.move(x, box["y"] + (1 - low) * box["height"])
    visit.page.mouse.down()
    visit.page.mouse.move(x, box["y"] + (1 - high) * box["height"], steps=4)
    visit.page.mouse.up()
    visit.page.wait_for_timeout(100)


def kept(visit):
    return visit.page.locator("#filter-status").inner_text()


def complete(study):
    trials = study.trials
    return trials[(trials["phase"] == "search") & (trials["outcome"] == "complete")]


def test_each_complete_search_trial_has_a_line(visit, study):
    lines = visit.page.locator("#parallel-plot path").evaluate_all(
        "all => all.map((each) => Number(each.dataset.trial))"
    )
    assert sorted(lines) == sorted(complete(study)["number"])


def test_a_range_keeps_the_trials_in_it(visit, study):
    visit.page.locator("#parallel-plot").scroll_into_view_if_needed()
    rows = complete(study)
    accuracy = rows["val_accuracy"].astype(float)
    middle = accuracy.min() + 0.5 * (accuracy.max() - accuracy.min())
    # an axis has one scale for all complete search trials; others are in the range too where their value is
    every = study.trials["val_accuracy"].astype(float)
    drag(visit, "Validation accuracy", 0.5, 1.0)
    most = accuracy.max() + 0.001 * (accuracy.max() - accuracy.min())
    num = int(kept(visit).split()[1])
    margin = 0.02 * (accuracy.max() - accuracy.min())
    assert ((every >= middle + margin) & (every <= most - margin)).sum() <= num <= (every >= middle - margin).sum()
    assert 0 < num < len(study.trials)
    assert "range" in visit.page.url
    other = Visit.__new__(Visit)
    other.context, other.page = visit.context, visit.context.new_page()
    other.page.goto(visit.page.url)
    other.wait()
    assert kept(other) == kept(visit)
    other.page.close()
    box = grip(visit, "Validation accuracy").bounding_box()
    visit.page.mouse.click(box["x"] + 4, box["y"] + box["height"] / 2)  # a click removes the range
    visit.page.wait_for_timeout(100)
    assert int(kept(visit).split()[1]) == len(study.trials)


def test_a_line_chooses_its_trial(visit):
    line = visit.page.locator("#parallel-plot path").first
    number = line.get_attribute("data-trial")
    line.dispatch_event("click")
    assert visit.page.locator("#chosen-title").inner_text().endswith(number)
    assert number in [
        each.get_attribute("data-trial") for each in visit.page.locator("#parallel-plot path.chosen").all()
    ]


def test_colors_are_those_of_the_column(visit, study):
    visit.page.locator("#color-by").select_option(label="Effective batch size")
    visit.settle()
    assert "color=global_batch_size" in visit.page.url
    found = visit.plot("fronts").evaluate(
        """plot => plot.data.filter((t) => t.customdata && Array.isArray(t.marker && t.marker.color))
             .flatMap((t) => t.customdata.map((number, index) => [number, t.marker.color[index]]))"""
    )
    sizes = study.trials.set_index("number")["global_batch_size"]
    by_size = {}
    for number, color in found:
        by_size.setdefault(int(sizes[number]), set()).add(color)
    assert len(by_size) > 2
    assert all(len(colors) == 1 for colors in by_size.values())
    assert len({next(iter(colors)) for colors in by_size.values()}) == len(by_size)
    lines = visit.page.locator("#parallel-plot path").evaluate_all(
        "all => all.map((each) => [Number(each.dataset.trial), each.style.stroke])"
    )
    assert {number: stroke.replace(" ", "") for number, stroke in lines} == dict(found)
