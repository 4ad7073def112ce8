"""The page in a real Chromium: it draws everything, asks nobody for anything, and survives whatever it is given."""

import re

import pytest
from frames_factory import frames_of, make_frames, make_spec
from hostile import hostile_frames

from reports.evidence import gather_evidence
from reports.figure import Bars, Density, Heat, Intervals, Lines, Points
from reports.figures.all_figures import make_figures
from reports.writing import write_report

pytestmark = pytest.mark.wide


@pytest.fixture(scope="module")
def study():
    return make_frames(70, confirm=3)


@pytest.fixture(scope="module")
def visit(open_visit, study, tmp_path_factory):
    return open_visit(write_report(study, tmp_path_factory.mktemp("whole") / "report.html", formats=()))


def test_quiet_and_under_its_policy(visit):
    assert visit.is_quiet()
    # what the policy does not name does not run
    blocked = visit.page.evaluate(
        """() => { const s = document.createElement('script'); s.textContent = 'window.ran = 1';
        document.body.append(s); return window.ran === undefined; }"""
    )
    assert blocked
    visit.said.clear()  # the browser reports the script that it refused


def test_no_button_of_a_figure_sends_anything(visit):
    plots = visit.page.locator(".plot").evaluate_all(
        """plots => plots.filter((plot) => plot.layout).map((plot) => [
          plot._context.plotlyServerURL, plot._context.showSendToCloud, plot.querySelectorAll(".modebar a[href]").length
        ])"""
    )
    assert len(plots) > 5
    assert all(plot == ["", False, 0] for plot in plots)
    buttons = visit.page.locator(".plot:has(.modebar-btn)").first.locator(".modebar-btn").all()
    assert len(buttons) == 6
    for button in buttons:
        button.dispatch_event("click")
    visit.settle()
    assert visit.is_quiet()


def drawn_marks(visit, figure, index) -> dict[str, int]:
    bars = visit.plot(figure, index).locator(".barlayer .point path")
    return {
        "points": visit.count(figure, index, ".scatterlayer path.point"),
        "lines": visit.count(figure, index, "path.js-line"),
        "bars": bars.evaluate_all("paths => paths.filter((p) => p.getBBox().width > 0).length"),
        "shades": visit.count(figure, index, ".heatmaplayer image"),
    }


def wanted_marks(panel) -> dict[str, int]:
    wanted = dict.fromkeys(("points", "lines", "bars", "shades"), 0)
    for layer in panel.layers:
        if isinstance(layer, Points | Intervals):
            wanted["points"] += len(layer.x)
        elif isinstance(layer, Lines):
            wanted["lines"] += len(layer.segments)
        elif isinstance(layer, Bars):
            wanted["bars"] += sum(length > 0 for length in layer.lengths)
        elif isinstance(layer, Density | Heat):
            wanted["shades"] += 1
    return wanted


def test_every_mark_of_every_figure_is_drawn(visit, study):
    figures = make_figures(gather_evidence(study)).figures
    assert len(figures) >= 8
    for figure in figures:
        for view in dict.fromkeys(panel.view for panel in figure.panels):
            if view:
                visit.page.locator(f'input[name="{figure.name}"][value="{view}"]').check()
                visit.page.wait_for_timeout(300)
            for index, panel in enumerate(figure.panels):
                if panel.view == view:
                    assert drawn_marks(visit, figure.name, index) == wanted_marks(panel), (figure.name, index)


def test_every_figure_has_words_for_whoever_does_not_see_it(visit):
    labels = visit.page.locator(".plot").evaluate_all("plots => plots.map((p) => p.getAttribute('aria-label'))")
    assert len(labels) > 20
    assert all(len(label) > 40 and "It shows" in label for label in labels)
    fronts = visit.plot("fronts").get_attribute("aria-label")
    assert "Validation accuracy" in fronts
    assert re.search(r"\d+ marks \(search trial \(one seed\)\)", fronts)
    assert visit.page.locator("table:not(:has(caption))").count() == 0
    assert visit.page.locator("button:not([aria-label])").evaluate_all("all => all.every((b) => b.textContent.trim())")


def test_a_browser_that_cannot_unpack_the_figures_is_named_the_remedy(chromium, visit):
    context = chromium.new_context()
    context.add_init_script("delete window.DecompressionStream")
    page = context.new_page()
    page.goto(visit.path.as_uri())
    assert "require a newer browser" in page.get_by_role("alert").inner_text()
    assert page.locator("#answer").is_visible()
    assert page.evaluate("window.Plotly === undefined")
    assert not visit.page.locator("#old-browser").is_visible()
    context.close()


@pytest.mark.parametrize("rows", [
    [],
    [{"number": 0, "val_accuracy": 0.9, "train_seconds": 1.0}],
    [{"number": n, "outcome": "crashed", "error": "boom", "config.optimizer.lr": 0.01 * (n + 1)} for n in range(8)],
], ids=["nothing", "one trial", "crashed"])  # fmt: skip
def test_thin_studies_open(open_visit, tmp_path, rows):
    visit = open_visit(write_report(frames_of(make_spec(), rows), tmp_path / "report.html", formats=()))
    assert visit.is_quiet()
    assert visit.page.locator("h1").inner_text() == "made"
    assert visit.page.locator("#absent li").count() > 3
    assert visit.page.locator("#trials-body tr").count() == len(rows)


def test_hostile_texts_do_nothing(open_visit, tmp_path):
    visit = open_visit(write_report(hostile_frames(), tmp_path / "report.html", formats=()))
    for point in visit.page.locator('.plot[data-figure="fronts"] path.point').all()[:6]:
        point.hover(force=True)
    visit.page.locator("#filters summary").click()
    for column in range(4, 7):
        visit.page.locator("#trials thead button").nth(column).click()
    for row in range(5):
        visit.page.locator("#trials-body .choose").nth(row).click()
        visit.settle()
    boxes = visit.page.locator("#filter-fields input[type=checkbox], #filter-fields input[type=search]")
    assert boxes.count() > 0
    boxes.last.click()
    assert visit.is_quiet()
    assert visit.page.evaluate("window.pwned === undefined")
    foreign = "main img, main svg[onload], .question script, #chosen script, #trials script, #trials img"
    assert visit.page.locator(foreign).count() == 0
    assert visit.page.locator("a[href^=http], a[href^=javascript]").count() == visit.page.locator(".plot a").count()
