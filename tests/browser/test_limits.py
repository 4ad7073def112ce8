"""The recommendations of the page within limits are those of ``sweep recommend`` with the same limits."""

import contextlib
import dataclasses
import json
import random
import shlex

import pytest
from frames_factory import make_frames
from records_factory import add_seeds, add_trials, make_spec, make_store
from visiting import Visit

from reports.labels import format_estimate, format_probability
from reports.writing import write_frames_report
from sweep.analysis.answer import USES, Limits
from sweep.analysis.candidates import BATCH_SIZE, choose_configuration, choose_for, select_candidates
from sweep.analysis.comparable import select_comparable
from sweep.analysis.recommendation import recommend
from sweep.cli.app import run_app
from sweep.cli.arguments import parse_bytes, parse_duration

pytestmark = pytest.mark.browser
# all positions in one call, and a slider that does not wait for the next movement
READ_ALL = """async (positions) => {
  const inputs = [...document.querySelectorAll("[data-limit]")];
  const rows = document.getElementById("limit-rows");
  const cellsOf = (row) => [...row.cells].map((cell) => cell.textContent);
  const read = (row) => [row.dataset.use, row.dataset.number, row.dataset.probability, cellsOf(row)];
  const found = [], usual = window.setTimeout;
  window.setTimeout = (call) => usual(call, 0);
  for (const each of positions) {
    inputs.forEach((input, index) => { input.value = each[index]; });
    delete rows.dataset.of;
    inputs[0].dispatchEvent(new Event("input", { bubbles: true }));
    while (rows.dataset.of === undefined) await new Promise((resolve) => usual(resolve, 1));
    found.push([rows.dataset.of, [...rows.rows].map(read)]);
  }
  window.setTimeout = usual;
  return found;
}"""
READ = """async (positions) => {
  const inputs = [...document.querySelectorAll("[data-limit]")];
  inputs.forEach((input, index) => { input.value = positions[index]; });
  const rows = document.getElementById("limit-rows");
  delete rows.dataset.of;
  inputs[0].dispatchEvent(new Event("input", { bubbles: true }));
  while (rows.dataset.of === undefined) await new Promise((resolve) => setTimeout(resolve, 5));
  const cellsOf = (row) => [...row.cells].map((cell) => cell.textContent);
  const read = (row) => [row.dataset.use, row.dataset.number, row.dataset.probability, cellsOf(row)];
  return [rows.dataset.of, [...rows.rows].map(read)];
}"""


@pytest.fixture(scope="module")
def study():
    return make_frames(60, confirm=14, objectives=["val_accuracy", "train_seconds", "peak_memory_bytes"])


@pytest.fixture(scope="module")
def report(study, tmp_path_factory):
    return write_frames_report(study, tmp_path_factory.mktemp("report") / "report.html", formats=())


def read_limits(command):
    words = shlex.split(command)
    assert words[:2] == ["sweep", "recommend"]
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert given.keys() <= {"--max-memory", "--max-seconds", "--min-accuracy", "--root"}
    return Limits(
        max_memory_bytes=parse_bytes(given.get("--max-memory"), "--max-memory"),
        max_seconds=parse_duration(given.get("--max-seconds"), "--max-seconds"),
        min_accuracy=float(given["--min-accuracy"]) if "--min-accuracy" in given else None,
    )


@pytest.mark.parametrize("num_limits", [50, pytest.param(200, marks=pytest.mark.slow)])
def test_random_limits_name_what_the_analysis_names(visit, study, num_limits):
    candidates = select_candidates(select_comparable(study), Limits())
    generator, unnamed, different, kinds = random.Random(1), 0, set(), set()
    positions = [
        [end if generator.random() < 0.4 else generator.randrange(101) for end in (0, 100, 100)]
        for _ in range(num_limits)
    ]
    for command, rows in visit.page.evaluate(READ_ALL, positions):
        limited = dataclasses.replace(candidates, limits=read_limits(command))
        kinds.add(tuple(value is None for value in vars(limited.limits).values()))
        expected = {use: choose_configuration(limited, use) for use in USES}
        expected["batch_size"] = choose_for(limited, BATCH_SIZE, "batch_size")
        shown = {use: rest for use, *rest in rows if use}
        assert {name for name, item in expected.items() if item.number is not None} == set(shown), command
        unnamed += len(rows) - len(shown)
        for name, (number, probability, cells) in shown.items():
            item = expected[name]
            assert (int(number), float(probability)) == (item.number, item.probability), (command, name)
            assert cells[1:3] == [f"C{item.number}", str(item.global_batch_size)]
            assert cells[3] == "".join(format_estimate("val_accuracy", *item.values["val_accuracy"]))
            assert cells[-2].startswith(format_probability(item.probability))
            different.add((name, item.number))
    assert unnamed > num_limits / 10
    assert len(different) > (15 if num_limits == 200 else 10)
    assert len(kinds) == 8


def test_a_few_limits_give_what_the_whole_computation_gives(visit, study):
    for positions in ([0, 100, 100], [0, 40, 100], [0, 100, 30], [80, 60, 70]):
        command, rows = visit.page.evaluate(READ, positions)
        answer = recommend(study, **vars(read_limits(command)))
        expected = {"batch_size": answer.batch_size.named, **answer.uses}
        named = {name: (item.number, item.probability) for name, item in expected.items() if item.number is not None}
        assert {use: (int(number), float(share)) for use, number, share, _ in rows if use} == named


def test_the_command_of_the_page_prints_the_same(chromium, tmp_path, capsys):
    (tmp_path / "s").mkdir()
    with contextlib.closing(make_store(tmp_path / "s" / "study.sqlite", make_spec())) as store:
        add_trials(store, ["complete"] * 7)
        for place, of in enumerate((3, 4, 5, 6)):
            add_seeds(store, of=of, first=10 + 3 * place, gaps=(-0.01, 0.0, 0.01))
    assert run_app(["report", "s", "--root", str(tmp_path)]) == 0
    other = Visit(chromium, tmp_path / "s" / "report.html")
    command, rows = other.page.evaluate(READ, [0, 60, 100])
    other.context.close()
    shown = {use: int(number) for use, number, *_ in rows if number}
    capsys.readouterr()
    assert run_app([*shlex.split(command)[1:], "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    expected = {use: item["number"] for use, item in document["uses"].items()}
    expected["batch_size"] = document["batch_size"]["named"]["number"]
    assert shown == {use: number for use, number in expected.items() if number is not None}
    assert len(shown) >= 4


def test_limits_are_in_the_address_and_marked_in_the_picture(visit):
    command, rows = visit.page.evaluate(READ, [0, 50, 100])
    assert "limit-train_seconds=50" in visit.page.url
    number = next(number for use, number, *_ in rows if use == "batch_size")
    marked = visit.page.locator("#first .within-limits")
    assert {mark.get_attribute("data-configuration") for mark in marked.all()} == {number}
    other = visit.context.new_page()
    other.goto(visit.page.url)
    other.locator("#limit-rows[data-of]").wait_for()
    assert other.locator("#limit-command").inner_text() == command
    other.close()
    visit.page.evaluate(READ, [0, 100, 100])
    assert "limit" not in visit.page.url.partition("#")[2]
    assert marked.count() == 0
