"""What a figure states above it: settled statements and numbers of the answer, and nothing where neither is there."""

import dataclasses

import pytest
from frames_factory import estimates_of, make_frames

from reports.evidence import gather_evidence
from reports.figures.all_figures import _state, make_figures
from reports.labels import format_effect, format_estimate
from reports.page.page import describe_panel
from sweep.analysis.statistics import Interval

GLOBAL = "effective batch size"


@pytest.fixture(scope="module")
def evidence():
    frames = make_frames(60, confirm=4)
    return gather_evidence(dataclasses.replace(frames, probes=estimates_of(frames.spec)))


@pytest.fixture(scope="module")
def figures(evidence):
    return {figure.name: figure for figure in make_figures(evidence).figures}


def settle(evidence, is_settled):
    found = evidence.answer.batch_size
    statements = tuple(dataclasses.replace(each, is_settled=is_settled) for each in found.statements)
    found = dataclasses.replace(found, statements=statements)
    return dataclasses.replace(evidence, answer=dataclasses.replace(evidence.answer, batch_size=found))


def add_findings(figure, evidence):
    panels = tuple(dataclasses.replace(panel, finding=_state(figure.name, panel, evidence)) for panel in figure.panels)
    return dataclasses.replace(figure, panels=panels)


def text_of(evidence, name):
    return next(each.text for each in evidence.answer.batch_size.statements if each.name == name)


def test_a_settled_statement_heads_the_figure_that_shows_it(evidence, figures):
    settled, open_ = settle(evidence, True), settle(evidence, False)
    fronts = figures["fronts"]
    (first, *others) = add_findings(fronts, settled).panels
    assert first.finding == text_of(evidence, "use")
    assert [panel.finding for panel in others] == [""] * len(others)
    assert describe_panel(fronts, first).startswith(f"{first.finding} Pareto fronts, ")
    assert add_findings(fronts, open_).finding == ""
    slices = figures["slices_val_accuracy"]
    stated = {panel.x.label: panel.finding for panel in add_findings(slices, settled).panels}
    assert stated.pop(GLOBAL) == text_of(evidence, "equally_good")
    assert set(stated.values()) == {""}
    assert text_of(evidence, "equally_good") not in add_findings(slices, open_).finding


@pytest.mark.parametrize(("metric", "field", "choose", "word"), [
    ("val_accuracy", "accuracy", max, "highest"), ("train_seconds", "seconds", min, "shortest"),
    ("peak_memory_bytes", "memory_bytes", min, "lowest"),
])  # fmt: skip
def test_the_best_batch_size_is_named_with_the_estimate_of_the_answer(evidence, figures, metric, field, choose, word):
    known = [point for point in evidence.answer.batch_size.curve if point.num_seeds]
    best = choose(known, key=lambda point: getattr(point, field).median)
    finding = add_findings(figures[f"slices_{metric}"], settle(evidence, False)).finding
    shown, interval = format_estimate(metric, *getattr(best, field))
    assert f"{best.batch} ({best.model}) has the {word} estimate" in finding
    assert finding.endswith(f": {shown} ({interval})." if interval else f": {shown}.")


@pytest.mark.parametrize(("low", "high", "lack", "is_stated"), [
    (0.3, 0.7, "", True), (-2.0, 3.0, "", False), (0.3, 0.7, "too few", False),
])  # fmt: skip
def test_the_power_of_the_learning_rate_is_stated_where_it_is_known(evidence, figures, low, high, lack, is_stated):
    found = evidence.answer.batch_size
    power = Interval(0.5, low, high, 5)
    models = tuple(dataclasses.replace(each, rate_power=power, rate_lack=lack) for each in found.models)
    answer = dataclasses.replace(evidence.answer, batch_size=dataclasses.replace(found, models=models))
    panels = add_findings(figures["batch_and_rate"], dataclasses.replace(evidence, answer=answer)).panels
    for panel in panels:
        words = f"The best learning rate of {panel.title} grows as the power {format_effect('exponent', *power[:3])} "
        assert panel.finding == (f"{words}of the effective batch size." if is_stated else "")
