"""The recommendations of the page within limits are those of ``sweep recommend`` with the same limits."""

import random
import shlex

import pytest
from frames_factory import make_frames
from playwright.sync_api import expect

from reports.evidence import gather_evidence
from reports.labels import format_estimate
from reports.page.data import describe_limits
from reports.writing import write_report
from sweep.analysis.recommendation import recommend
from sweep.cli.arguments import parse_bytes, parse_duration
from sweep.config.metrics import format_probability

pytestmark = pytest.mark.wide
READ = """(positions) => {
  const inputs = [...document.querySelectorAll("[data-limit]")];
  inputs.forEach((input, index) => { input.value = positions[index]; });
  inputs[0].dispatchEvent(new Event("input", { bubbles: true }));
  const rows = [...document.querySelectorAll("#limit-rows tr")];
  const read = (row) => [row.dataset.number ?? null, [...row.cells].map((cell) => cell.textContent)];
  return [document.getElementById("limit-command").textContent, rows.map(read)];
}"""


@pytest.fixture(scope="module")
def study():
    return make_frames(60, confirm=14, objectives=["val_accuracy", "train_seconds", "peak_memory_bytes"])


@pytest.fixture(scope="module")
def report(study, tmp_path_factory):
    return write_report(study, tmp_path_factory.mktemp("report") / "report.html", formats=())


def read_limits(command):
    words = shlex.split(command)
    assert words[:2] == ["sweep", "recommend"]
    given = dict(zip(words[3::2], words[4::2], strict=True))
    assert given.keys() <= {"--max-memory", "--max-seconds", "--min-accuracy", "--root"}
    return {
        "max_memory_bytes": parse_bytes(given.get("--max-memory"), "--max-memory"),
        "max_seconds": parse_duration(given.get("--max-seconds"), "--max-seconds"),
        "min_accuracy": float(given["--min-accuracy"]) if "--min-accuracy" in given else None,
    }


def test_every_position_names_what_the_command_names(visit, study):
    limits = describe_limits(gather_evidence(study).candidates)
    sizes = [len(limit["texts"]) for limit in limits["limits"]]
    free = [limit["free"] for limit in limits["limits"]]
    generator, unnamed, different = random.Random(1), 0, set()
    positions = [free, [0, 2, free[2]], *([generator.randrange(size) for size in sizes] for _ in range(14))]
    for each in positions:
        command, rows = visit.page.evaluate(READ, each)
        answer = recommend(study, **read_limits(command))
        expected = [answer.batch_size.named, *answer.uses.values()]
        sure = [answer.batch_size.statements[0].probability, *(item.probability for item in answer.uses.values())]
        sure = [each for each, item in zip(sure, expected, strict=True) if item.number is not None]
        expected = [item for item in expected if item.number is not None]
        named = [(int(number), cells) for number, cells in rows if number is not None]
        assert [number for number, _ in named] == [item.number for item in expected], command
        unnamed += len(rows) - len(named)
        for item, probability, (number, cells) in zip(expected, sure, named, strict=True):
            assert cells[1:3] == [f"C{item.number}", str(item.global_batch_size)]
            assert cells[3] == "".join(format_estimate("val_accuracy", *item.values["val_accuracy"]))
            assert cells[-2] == format_probability(probability)
            different.add(number)
    assert unnamed > 10
    assert len(different) > 4


def test_limits_are_in_the_address_and_marked_in_the_picture(visit, study):
    free = [limit["free"] for limit in describe_limits(gather_evidence(study).candidates)["limits"]]
    command, rows = visit.page.evaluate(READ, [free[0], 3, free[2]])
    assert "limit-train_seconds=3" in visit.page.url
    marked = visit.page.locator("#first .within-limits")
    assert {mark.get_attribute("data-configuration") for mark in marked.all()} == {rows[0][0]}
    other = visit.context.new_page()
    other.goto(visit.page.url)
    expect(other.locator("#limit-command")).to_have_text(command)  # the page admits no evaluation of a text
    other.close()
    visit.page.evaluate(READ, free)
    assert "limit" not in visit.page.url.partition("#")[2]
    assert marked.count() == 0
