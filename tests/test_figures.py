"""What the figures hold, as data."""

import math

import numpy as np
import pytest
from frames_factory import frames_of, make_frames, make_spec

from reports.evidence import MAX_DETAILED, gather_evidence
from reports.figure import Axis, Bars, Density, Intervals, Lines, Panel, Points, Rule
from reports.figures.all_figures import make_figures
from reports.figures.costs import make_outcomes, make_time_ledger
from reports.figures.marks import make_staircase, metric_axis, place_edge, swept_parameters
from reports.figures.trials import make_curves, make_fronts, make_slices
from reports.labels import OUTCOME_NAMES
from reports.layout import look_of
from sweep.records.messages import OUTCOMES

TWO = ["val_accuracy", "train_seconds"]


def trial(number, accuracy, seconds, lr=0.1, **rest):
    values = {"number": number, "config.optimizer.lr": lr, "val_accuracy": accuracy, "train_seconds": seconds}
    values |= {"config.batch.micro": 64, "config.batch.accumulation": 1, "config.model.name": "resnet8"}
    return values | {"config.optimizer.weight_decay": 1e-4 * number, "total_seconds": seconds} | rest


def evidence_of(*rows, **changes):
    return gather_evidence(frames_of(make_spec(**({"objectives": TWO} | changes)), list(rows)))


def layers(panel: Panel, kind):
    return {layer.role: layer for layer in panel.layers if isinstance(layer, kind)}


def front_panel(*rows):
    return make_fronts(evidence_of(*rows))[0].panels[0]


def test_search_trials_and_their_front():
    panel = front_panel(trial(0, 0.9, 10.0, 0.1), trial(1, 0.8, 5.0, 0.2), trial(2, 0.7, 6.0, 0.3))
    points = layers(panel, Points)
    assert (points["search"].x, points["search"].y) == ((6.0,), (0.7,))
    assert set(zip(points["search_front"].x, points["search_front"].y, strict=True)) == {(10.0, 0.9), (5.0, 0.8)}
    line = layers(panel, Lines)["search_front"]
    # from the fastest along its accuracy to the next time, then up
    assert line.segments == (((5.0, 10.0, 10.0), (0.8, 0.8, 0.9)),)
    assert panel.x == Axis(label="Training time", unit="seconds")
    assert "C2, trial 2, seed 0" in points["search"].texts[0]


def test_confirmed_estimates_with_intervals():
    again = [trial(1 + s, 0.90 + 0.01 * s, 10.0 + s, seed=s, phase="confirm") for s in (1, 2, 3)]
    for row in again:
        row["config.optimizer.weight_decay"] = 0.0
    evidence = evidence_of(trial(0, 0.99, 9.0), *again)
    panel = make_fronts(evidence)[0].panels[0]
    layer = layers(panel, Intervals)["confirmed"]
    assert (layer.x, layer.y) == ((pytest.approx(12.0, rel=0.01),), (pytest.approx(0.92, abs=0.001),))
    found = evidence.answer.configurations[0].values
    assert (layer.x, layer.y) == ((found["train_seconds"].median,), (found["val_accuracy"].median,))
    row = evidence.configurations.iloc[0]
    assert (layer.x_low, layer.x_high) == ((row["train_seconds_low"],), (row["train_seconds_high"],))
    assert layer.x_low[0] < 12.0 < layer.x_high[0]
    assert (layer.y_low[0], layer.y_high[0]) == (row["val_accuracy_low"], row["val_accuracy_high"])
    assert layer.trials == (2,)  # the first of its seeds
    assert "C0, 3 fresh seeds" in layer.texts[0]


def test_outcomes_stand_beyond_the_worst_or_at_what_they_used():
    panel = front_panel(
        trial(0, 0.9, 10.0), trial(1, 0.8, 20.0), trial(2, None, None, outcome="out_of_memory"),
        trial(3, 0.2, 4.0, outcome="diverged"), trial(4, None, None, outcome="crashed"),
        trial(5, None, None, outcome=None),
    )  # fmt: skip
    points = layers(panel, Points)
    rules = {layer.axis: layer.value for layer in panel.layers if isinstance(layer, Rule)}
    assert points["out_of_memory"].x[0] > rules["x"] > 20.0
    assert points["out_of_memory"].y[0] < rules["y"] < 0.8
    assert points["diverged"].x == (4.0,)  # the time it had used; its accuracy is no result
    assert points["diverged"].y[0] < rules["y"]
    assert points["crashed"].x != points["out_of_memory"].x  # one does not hide the other
    assert points["out_of_memory"].name == "out of memory (1)"
    assert "" not in points


def test_duplicates_and_single_points():
    x, y = np.array([1.0, 1.0, 2.0, np.nan]), np.array([3.0, 3.0, 2.0, 0.0])
    assert make_staircase(x, y, 1, 1) == ((1.0, 2.0, 2.0), (3.0, 3.0, 2.0))
    assert make_staircase(x[:1], y[:1], 1, 1) == ((1.0,), (3.0,))
    assert make_staircase(x[:0], y[:0], 1, 1) is None


def test_scale_follows_the_span():
    assert metric_axis("train_seconds", np.array([1.0, 30.0])).scale == "log"
    assert metric_axis("train_seconds", np.array([1.0, 10.0])).scale == "linear"
    assert metric_axis("val_accuracy", np.array([0.01, 0.9])).scale == "linear"
    edge = place_edge(np.array([1.0, 100.0]), 1.0, "log", ["crashed"])
    assert 100.0 < edge.rule < edge.positions["crashed"]
    with pytest.raises(ValueError, match="requires a finite value"):
        place_edge(np.array([]), 1.0, "log", ["crashed"])


def test_slices_place_every_parameter():
    evidence = gather_evidence(make_frames(40, confirm=2))
    assert swept_parameters(evidence)[0] == "global_batch_size"
    figures = {figure.name: figure for figure in make_slices(evidence)}
    assert list(figures) == ["slices_val_accuracy", "slices_train_seconds", "slices_peak_memory_bytes"]
    panels = {panel.x.label: panel for panel in figures["slices_val_accuracy"].panels}
    assert list(panels) == [
        "effective batch size", "model", "micro batch", "accumulation", "learning rate", "weight decay",
    ]  # fmt: skip
    assert panels["model"].x.ticks == ((0.0, "resnet8"), (1.0, "vit_micro"))
    assert panels["micro batch"].x.scale == "log"
    assert [text for _, text in panels["micro batch"].x.ticks] == ["16", "32", "64", "128", "256"]
    assert panels["weight decay"].x.scale == "linear"
    num_search = sum(len(layer.x) for layer in panels["model"].layers if getattr(layer, "role", "").startswith("sea"))
    assert num_search == len(evidence.search)
    assert all(abs(x - round(x)) < 0.2 for x in layers(panels["model"], Points)["search"].x)
    assert len(layers(panels["learning rate"], Intervals)["confirmed"].x) == 2


def test_one_objective_has_slices():
    names = [figure.name for figure in make_figures(gather_evidence(make_frames(20, objectives=["val_loss"]))).figures]
    assert [name for name in names if name.startswith("slices_")] == ["slices_val_loss"]
    assert {"fronts", "hypervolume"}.isdisjoint(names)


def test_curves_colour_the_front_and_keep_the_others_faint():
    evidence = gather_evidence(make_frames(30, confirm=2))
    panel = make_curves(evidence)[0].panels[0]
    lines = layers(panel, Lines)
    front = evidence.configurations[evidence.configurations["on_front"]]
    assert len(lines) == 1 + len(front)
    assert all(len(lines[f"series-{i}"].segments) == 3 for i in range(len(front)))
    number = front.iloc[0]["numbers"][0]
    part = evidence.evaluations[evidence.evaluations["number"] == number]
    assert lines["series-0"].segments[0][0] == tuple(part["train_seconds"])


def test_ledger_adds_up_and_leaves_reused_trials_out():
    rows = [
        trial(0, 0.9, 10.0, total_seconds=16.0, setup_seconds=1.0, eval_seconds=2.0, data_wait_seconds=3.0),
        trial(1, 0.9, 10.0, total_seconds=99.0, reused_from="other/3"),
        trial(2, None, 2.0, total_seconds=2.5, outcome="diverged"),
    ]
    bars = layers(make_time_ledger(evidence_of(*rows))[0].panels[0], Bars)
    complete = {role: layer.lengths[1] for role, layer in bars.items()}
    assert complete == pytest.approx({"setup": 1.0, "data_wait": 3.0, "step": 7.0, "eval": 2.0, "other": 3.0})
    assert sum(length for layer in bars.values() for length in layer.lengths) == pytest.approx(18.5)


def test_outcomes_count_every_trial():
    frames = make_frames(60, confirm=1)
    bars = layers(make_outcomes(gather_evidence(frames))[0].panels[0], Bars)
    assert sum(map(sum, (layer.lengths for layer in bars.values()))) == len(frames.trials) == 63
    assert sum(bars["confirm_phase"].lengths) == 3


def test_every_outcome_has_a_name_and_a_color_and_symbol_of_its_own():
    assert set(OUTCOME_NAMES) == {*OUTCOMES, ""}
    looks = [look_of(outcome) for outcome in OUTCOMES]
    assert len({(look.color, look.glyph) for look in looks}) == len({look.color for look in looks}) == len(OUTCOMES)
    rows = [trial(0, 0.9, 10.0), trial(1, 0.8, 12.0, outcome="target_missed"), trial(2, None, 9.0, outcome="timed_out")]
    panel = make_outcomes(evidence_of(*rows))[0].panels[0]
    assert {name for _, name in panel.y.ticks} == {"complete", "timed out", "target missed"}


def test_many_trials_become_a_density():
    rng = np.random.default_rng(0)
    rows = [trial(n, float(rng.random()), float(rng.lognormal()), lr=float(rng.random())) for n in range(5000)]
    evidence = evidence_of(*rows)
    assert int(evidence.search["detailed"].sum()) == MAX_DETAILED
    assert evidence.search.loc[evidence.search["on_search_front"], "detailed"].all()
    assert evidence.search["detailed"].iloc[-1]
    panel = make_fronts(evidence)[0].panels[0]
    density = next(layer for layer in panel.layers if isinstance(layer, Density))
    assert sum(map(sum, density.counts)) == 5000
    assert sum(len(layer.x) for layer in panel.layers if isinstance(layer, Points)) == MAX_DETAILED
    assert "2,000 of them as single points" in make_fronts(evidence)[0].caption


@pytest.mark.parametrize("rows", [
    [], [trial(0, 0.9, 1.0)], [trial(0, None, None, outcome="crashed"), trial(1, None, None, outcome="not_fitting")],
    [trial(0, None, None, outcome=None)], [trial(0, math.nan, 5.0)], [trial(0, 0.9, 0.0)],
])  # fmt: skip
def test_thin_evidence_makes_figures_or_none(rows):
    for figure in make_figures(evidence_of(*rows)).figures:
        assert figure.panels
        assert figure.caption


def test_without_a_recorded_study():
    frames = frames_of(None, [trial(n, 0.9 - 0.01 * n, 1.0 + n, lr=10.0**-n) for n in range(8)])
    evidence = gather_evidence(frames)
    assert evidence.swept == ("optimizer.lr", "optimizer.weight_decay")
    assert evidence.objectives == ("val_accuracy", "train_seconds")
    panels = {panel.x.label: panel.x for panel in make_slices(evidence)[0].panels}
    assert (panels["learning rate"].scale, panels["weight decay"].scale) == ("log", "linear")


def test_a_figure_refuses_what_is_not_finite():
    with pytest.raises(ValueError, match="not finite"):
        Points(name="p", role="search", x=(math.nan,), y=(0.0,))
    with pytest.raises(ValueError, match="columns of"):
        Points(name="p", role="search", x=(1.0, 2.0), y=(0.0,))
