"""The README: what it names exists, and what it states of the demo is what the records of that run give."""

import re

import pytest
from guide_blocks import ROOT

from sweep.analysis.recommendation import recommend
from sweep.records.loading import load_frames

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_it_fits_on_a_screen() -> None:
    assert len(README.splitlines()) <= 60


@pytest.mark.wide
def test_the_answer_of_the_demo_is_that_of_its_records() -> None:
    frames = load_frames(ROOT / "docs/gallery/quickstart", evaluations=True)
    found = recommend(frames).batch_size
    assert found is not None
    (batch,) = re.findall(r"use an effective batch size of (\d+)", README)
    assert int(batch) == found.named.global_batch_size
    use = next(each for each in found.statements if each.name == "use")
    (percent,) = re.findall(r"probability of this statement is (\d+) %", README)
    assert int(percent) == pytest.approx(100 * use.probability, abs=3)  # draws differ between processors
