"""What a reader does with the page: choose, filter, sort, copy, change view and theme, print; with a mouse, with
the keyboard, on a phone."""

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import pandas as pd
import pytest

from reports.labels import format_estimate
from sweep.analysis.recommendation import recommend
from sweep.config.study_file import load_study

pytestmark = pytest.mark.wide


@pytest.fixture(autouse=True)
def as_opened(visit):
    yield
    if len(set(shown(visit))) > 1:
        visit.page.evaluate("document.querySelector('#filter-clear').click()")
    visit.page.keyboard.press("Escape")
    visit.settle()


def click_mark(visit, figure, panel, index):
    """Clicks a mark of the figure's last layer of marks and returns the trial that it stands for."""
    plot = visit.plot(figure, panel)
    plot.scroll_into_view_if_needed()
    mark = plot.locator("path.point").nth(index)
    box = mark.bounding_box()
    visit.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    visit.page.wait_for_timeout(150)
    visit.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    visit.page.wait_for_selector("#chosen:not([hidden])", timeout=5000)
    visit.settle()
    return int(visit.page.locator("#chosen-title").inner_text().split()[-1])


def rings(visit, figure, panel=0):
    """How many marks of each layer have a ring."""
    read = "(g) => ({ meta: g.dataset.of, size: Number(g.dataset.size) })"
    return visit.plot(figure, panel).evaluate(f"plot => [...plot.querySelectorAll('.rings g')].map({read})")


def test_a_clicked_mark_is_marked_in_every_figure(visit, study):
    number = click_mark(visit, "fronts", 0, -1)
    trial = study.trials.set_index("number").loc[number]
    for figure, panel in (("fronts", 0), ("slices_train_seconds", 2), ("throughput", 0), ("memory", 0)):
        assert sum(trace["size"] for trace in rings(visit, figure, panel)) >= 1, figure
    assert sum(trace["size"] for trace in rings(visit, "batch_and_rate")) == (
        1 if trial["config.model.name"] == "resnet8" else 0
    )
    assert rings(visit, "curves")[0]["size"] >= 10
    side = visit.page.locator("#chosen")
    assert trial["config.model.name"] in side.locator("#chosen-setting").inner_text()
    assert side.locator("#chosen-curves path.js-line").count() >= 2
    assert "training steps" in side.locator("#chosen-ledger").inner_text()
    assert f"seed={trial['seed']}" in side.locator("#chosen-command").inner_text()
    assert side.locator("#chosen-command").inner_text().startswith("sweep train --set ")
    assert visit.is_quiet()


def test_other_seeds_of_a_configuration_are_one_press_away(visit, study):
    confirm = study.trials[study.trials["phase"] == "confirm"]["number"].iloc[0]
    visit.page.locator("#front-table tbody tr.confirmed .choose").first.click()
    seeds = visit.page.locator("#chosen-seeds button")
    assert seeds.count() == 3  # the search trial and two more seeds
    seeds.first.click()
    visit.settle()
    assert int(visit.page.locator("#chosen-title").inner_text().split()[-1]) < confirm
    visit.page.keyboard.press("Escape")
    visit.settle()
    assert visit.page.locator("#chosen").is_hidden()
    assert rings(visit, "fronts") == []


def test_the_keyboard_chooses_too(visit):
    first = visit.page.locator("#trials-body .choose").first
    number = first.get_attribute("data-trial")
    first.focus()
    visit.page.keyboard.press("Enter")
    visit.settle()
    assert visit.page.evaluate("document.activeElement.id") == "chosen-title"
    assert visit.page.locator("#chosen-title").inner_text().endswith(f" trial {number}")
    assert visit.page.locator(f'#trials-body .choose[data-trial="{number}"]').get_attribute("aria-pressed") == "true"
    visit.page.keyboard.press("Escape")
    visit.settle()
    assert visit.page.locator("#chosen").is_hidden()


def shown(visit):
    return re.search(r"Showing (\d+) of (\d+)", visit.page.locator("#filter-status").inner_text()).groups()


def tick(visit, legend, value):
    visit.page.evaluate("document.querySelector('#filters details').open = true")
    group = visit.page.locator("#filter-fields fieldset", has=visit.page.locator(f"legend:text-is('{legend}')"))
    group.locator(f'input[value="{value}"]').check()
    visit.page.wait_for_timeout(250)
    visit.settle()


def test_filters_leave_what_was_asked_for(visit, study):
    trials = study.trials
    tick(visit, "Model", "resnet8")
    tick(visit, "Outcome", "complete")
    kept = trials[(trials["config.model.name"] == "resnet8") & (trials["outcome"] == "complete")]
    assert shown(visit) == (str(len(kept)), str(len(trials)))
    for figure in ("fronts", "slices_val_accuracy", "curves", "throughput"):
        ids = {each for trace in visit.traces(figure) if trace["ids"] for each in trace["ids"]}
        assert ids
        assert ids <= set(kept["number"]), figure
    place = visit.page.locator("#trials thead th").all_inner_texts().index("Model")
    models = visit.page.locator("#trials-body tr").evaluate_all(
        f"rows => rows.map((row) => row.cells[{place}].innerText)"
    )
    assert set(models) == {"resnet8"}
    visit.page.locator("fieldset", has_text="Learning rate").locator('[data-end="from"]').fill("0.1")
    visit.page.wait_for_timeout(250)
    visit.settle()
    assert shown(visit)[0] == str(int((kept["config.optimizer.lr"] >= 0.1).sum()))
    visit.page.locator("#filter-clear").click()
    visit.settle()
    assert shown(visit) == (str(len(trials)), str(len(trials)))


def test_a_mark_of_the_main_picture_chooses_its_configuration(visit, study):
    number = recommend(study).uses["accuracy"].number  # estimates are of configurations with fresh seeds
    mark = visit.page.locator(f'#first .wide-picture [data-configuration="{number}"]').first
    assert "Effective batch size" in mark.locator("title").text_content()
    mark.dispatch_event("click")
    assert visit.page.locator("#chosen-title").inner_text() == f"C{number} · trial {number}"
    marked = visit.page.locator("#first .chosen")
    assert {int(each.get_attribute("data-configuration")) for each in marked.all()} == {number}
    estimate = next(each for each in recommend(study).configurations if each.number == number)
    shown = visit.page.locator("#chosen-estimates").inner_text()
    assert all(format_estimate(name, *estimate.values[name])[0] in shown for name in ("val_accuracy", "train_seconds"))
    visit.settle()
    assert sum(trace["size"] for trace in rings(visit, "fronts")) >= 1


def test_fronts_are_those_of_the_marks_that_are_shown(visit, study):
    line = "plot.data.find((trace) => trace.meta === 'search front of the pair')"
    whole = study.trials[(study.trials["phase"] == "search") & (study.trials["outcome"] == "complete")]

    def check(rows):
        table = rows[["train_seconds", "val_accuracy"]].astype(float).sort_values("train_seconds")
        best = table[table["val_accuracy"] > table["val_accuracy"].cummax().shift(fill_value=-1.0)].to_numpy()
        corners = np.stack([np.repeat(best[:, 0], 2)[1:], 100 * np.repeat(best[:, 1], 2)[:-1]], axis=1)
        read = f"(plot) => {{ const {{ x, y }} = {line}; return x.map((v, i) => [v, y[i]]); }}"
        np.testing.assert_allclose(visit.plot("fronts").evaluate(read), corners, rtol=1e-6)

    check(whole)
    tick(visit, "Model", "vit_micro")
    check(whole[whole["config.model.name"] == "vit_micro"])
    visit.page.locator("#filter-clear").click()
    visit.settle()
    check(whole)


def test_tables_sort_by_number_in_both_directions(visit):
    table = visit.page.locator("#front-table table")
    heads = table.locator("thead th").all_inner_texts()
    column = next(i for i, head in enumerate(heads) if head.startswith("Training time"))
    keys = f"rows => rows.map((row) => Number(row.cells[{column}].dataset.key))"
    button = table.locator("thead th").nth(column).locator("button")
    button.click()
    rising = table.locator("tbody tr").evaluate_all(keys)
    assert rising == sorted(rising)
    assert table.locator("thead th").nth(column).get_attribute("aria-sort") == "ascending"
    button.click()
    assert table.locator("tbody tr").evaluate_all(keys) == rising[::-1]
    assert len(set(rising)) > 3


def test_the_table_of_trials_sorts_and_turns_its_pages(visit, study):
    heads = visit.page.locator("#trials thead button")
    names = heads.all_inner_texts()
    accuracy = next(i for i, name in enumerate(names) if name.startswith("Validation accuracy"))
    heads.nth(accuracy).click()
    heads.nth(accuracy).click()
    cells = f"rows => rows.map((row) => row.cells[{accuracy}].innerText)"
    first = visit.page.locator("#trials-body tr").evaluate_all(cells)
    best = study.trials["val_accuracy"].dropna().sort_values(ascending=False)
    assert first[0] == f"{best.iloc[0]:.2%}".replace("%", " %")
    assert "–" not in first
    pages = visit.page.locator("#trials-page").inner_text()
    assert pages == f"Page 1 of {-(-len(study.trials) // 20)}"
    visit.page.locator("#trials-on").click()
    assert visit.page.locator("#trials-page").inner_text().startswith("Page 2")
    second = visit.page.locator("#trials-body tr").evaluate_all(cells)
    assert float(second[0].split()[0]) <= float(first[-1].split()[0])
    heads.nth(0).click()


def test_copy_puts_the_whole_command_on_the_clipboard(visit):
    row = visit.page.locator("#front-table tbody tr").first
    row.locator("button.copy").click()
    command = row.locator("code").inner_text()
    assert re.match(r"sweep train --set .* --set seed=\d+$", command)
    read = "new Promise((done) => setTimeout(() => done(navigator.clipboard.readText()), 300))"
    assert visit.page.evaluate(read) == command


def test_a_layer_is_hidden_and_shown(visit):
    button = visit.page.locator('button[data-figure="fronts"]', has_text="search trial (one seed)")
    before = visit.count("fronts", 0, "path.point")
    for is_shown in (False, True):
        button.click()
        visit.page.wait_for_timeout(300)
        assert (visit.count("fronts", 0, "path.point") == before) is is_shown
        assert button.get_attribute("aria-pressed") == str(is_shown).lower()


def brightness(page, script):
    return sum(map(int, re.findall(r"\d+", page.evaluate(script))[:3]))


@pytest.mark.parametrize("system", ["light", "dark"])
def test_theme_follows_the_system_and_the_switch(open_visit, report, system):
    visit = open_visit(report, color_scheme=system)
    ground = "getComputedStyle(document.body).backgroundColor"
    ink = "getComputedStyle(document.querySelector('.plot .xtick text')).fill"
    for theme in ("system", "light", "dark"):
        visit.page.locator("#theme").select_option(theme)
        visit.settle()
        is_dark = theme == "dark" or (theme == "system" and system == "dark")
        assert (brightness(visit.page, ground) < 200) == is_dark
        assert (brightness(visit.page, ink) > 400) == is_dark  # the plots follow
    assert visit.is_quiet()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_a_phone(open_visit, report, scheme):
    visit = open_visit(report, viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True)
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390
    visit.page.locator("#trials-body .choose").first.tap()
    visit.settle()
    side = visit.page.locator("#chosen").bounding_box()
    assert side["width"] <= 390
    assert side["y"] > 200  # the figures stay in sight above it
    assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("width", [390, 1440])
def test_the_answer_and_its_pictures_need_no_script(chromium, report, width):
    context = chromium.new_context(java_script_enabled=False, viewport={"width": width, "height": 900})
    page = context.new_page()
    page.goto(report.as_uri())
    assert "batch size" in page.locator("#first-title").inner_text()
    shown = page.locator("#first svg:visible")
    assert shown.count() == 1  # of its two sizes
    assert shown.bounding_box()["height"] > 300
    assert shown.locator("[data-configuration]").count() >= 5
    scale = shown.bounding_box()["width"] / float(shown.get_attribute("viewBox").split()[2])
    assert 7 * scale >= 8  # pixels of the smallest letters
    assert page.locator("#curve tbody tr").count() >= 3
    assert page.locator("#limits").is_hidden()  # without a script it would do nothing
    context.close()


def test_the_address_opens_the_page_as_it_was(open_visit, report):
    visit = open_visit(report)
    tick(visit, "Model", "resnet8")
    visit.page.locator("#theme").select_option("dark")
    first = visit.page.locator("#trials-body .choose").first
    number = first.get_attribute("data-trial")
    first.click()
    visit.settle()
    address, kept = visit.page.evaluate("location.hash"), shown(visit)
    assert kept[0] != kept[1]
    again = open_visit(report, fragment=address, is_whole=False)
    assert shown(again) == kept
    assert again.page.locator("#chosen-title").inner_text().endswith(f" trial {number}")
    assert again.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert again.page.locator("details.group[open]").count() == 4
    again.page.keyboard.press("Escape")
    again.page.evaluate("location.hash = '#trial=1'")
    again.page.wait_for_selector("#chosen-title:text-matches('trial 1$')")
    assert shown(again)[0] == shown(again)[1]  # filters are those of the address
    assert again.is_quiet()


def take(visit, kind):
    """The text of the file that a button makes."""
    with visit.page.expect_download() as started:
        visit.page.locator(f'[data-download="{kind}"]').click()
    return started.value.suggested_filename, Path(started.value.path()).read_text(encoding="utf-8")


def test_trials_study_and_figure_are_downloaded_without_a_request(open_visit, report, study, tmp_path):
    visit = open_visit(report, accept_downloads=True)
    tick(visit, "Model", "resnet8")
    name, text = take(visit, "trials")
    assert name == "made-trials.csv"
    (tmp_path / "trials.csv").write_text(text)
    read = pd.read_csv(tmp_path / "trials.csv").set_index("number")
    kept = study.trials[study.trials["config.model.name"] == "resnet8"].set_index("number")
    assert set(read.index) == set(kept.index)
    assert {"outcome", "phase", "seed", "global_batch_size"} <= set(read)  # columns that the table leaves out too
    for column in ("val_accuracy", "train_seconds", "config.optimizer.lr"):
        np.testing.assert_allclose(read[column], kept.loc[read.index, column].astype(float), rtol=1e-6)
    name, text = take(visit, "study")
    (tmp_path / name).write_text(text)
    assert load_study(tmp_path / name) == study.spec
    name, text = take(visit, "figure")
    assert name == "made-answer.svg"
    drawn = ET.fromstring(text)
    marks = [each for each in drawn.iter() if each.get("data-configuration")]
    assert marks
    assert "var(" not in text  # the colors of the theme, in the file itself
    assert visit.is_quiet()


def test_a_link_to_a_part_opens_it_and_keeps_what_is_chosen(open_visit, report):
    visit = open_visit(report, is_whole=False)
    assert visit.page.locator("details.group[open]").count() == 0
    assert visit.page.locator(".plot:has(svg)").count() == 0  # nothing is drawn that is folded
    visit.page.locator(".uses .choose").first.click()
    visit.page.locator('nav a[href="#group-memory-and-throughput"]').click()
    visit.page.wait_for_selector("#throughput .plot svg")
    assert visit.page.locator("#chosen").is_visible()
    assert visit.page.evaluate("document.querySelector('.plot[data-figure=fronts] svg') === null")
    assert visit.is_quiet()


@pytest.mark.parametrize(
    "fragment",
    ["#%", "#nothing", "#limit-val_accuracy=NaN&limit-train_seconds=%20&limit-peak_memory_bytes=99", "#trial=-1"],
)
def test_an_address_that_makes_no_sense_is_ignored(open_visit, report, fragment):
    other = open_visit(report, fragment, is_whole=False)
    words = other.page.locator("#filter-status").inner_text().split()
    assert words[1] == words[3]
    assert other.page.locator("#chosen").is_hidden()
    changed = "all => all.filter((each) => each.value !== each.defaultValue).length"
    assert other.page.locator("[data-limit]").evaluate_all(changed) == 0
    assert other.is_quiet()
