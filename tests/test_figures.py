"""What the figures hold, as data; and the contrast of their marks, as WCAG 2.2 defines it, in both themes."""

import dataclasses
import importlib
import math
import pkgutil
import re
import typing
from importlib import resources

import numpy as np
import pandas as pd
import pytest
from frames_factory import estimates_of, frames_of, make_frames, make_spec
from matplotlib.colors import to_rgb

import reports.figures
from reports import layout
from reports.evidence import MAX_DETAILED, gather_evidence
from reports.figure import Absent, Axis, Bars, Density, Figure, Heat, Intervals, Lines, Panel, Points, Rule
from reports.figures.all_figures import GROUPS, make_figures
from reports.figures.batch import make_heat_map, make_memory, make_throughput
from reports.figures.costs import make_time_ledger
from reports.figures.marks import make_staircase, metric_axis, place_edge, swept_parameters
from reports.figures.trials import make_curves, make_fronts, make_noise, make_slices
from reports.labels import OUTCOME_NAMES
from reports.layout import NUM_SERIES, look_of, shade_colors
from sweep.analysis.costs import group_medians, ran_micro_batches
from sweep.analysis.recommendation import recommend
from sweep.config.metrics import METRICS
from sweep.records.messages import OUTCOMES
from sweep.records.quality import name_flags

TWO = ["val_accuracy", "train_seconds"]
LISTED = {make for makers in GROUPS.values() for make in makers}


def trial(number, accuracy=0.9, seconds=1.0, lr=0.1, **rest):
    values = {"number": number, "config.optimizer.lr": lr, "val_accuracy": accuracy, "train_seconds": seconds}
    values |= {"config.batch.micro": 32, "config.batch.accumulation": 1, "config.model.name": "resnet8"}
    values |= {"config.optimizer.weight_decay": 1e-4 * number, "total_seconds": seconds} | rest
    return {"global_batch_size": values["config.batch.micro"] or 64} | values


def evidence_of(*rows, **changes):
    return gather_evidence(frames_of(make_spec(**({"objectives": TWO} | changes)), list(rows)))


def kinds(panel, kind):
    return [layer for layer in panel.layers if isinstance(layer, kind)]


def layers(panel: Panel, kind):
    return {layer.role: layer for layer in panel.layers if isinstance(layer, kind)}


def test_search_trials_and_their_front():
    evidence = evidence_of(trial(0, 0.9, 10.0, 0.1), trial(1, 0.8, 5.0, 0.2), trial(2, 0.7, 6.0, 0.3))
    panel = make_fronts(evidence)[0].panels[0]
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
    evidence = evidence_of(
        trial(0, 0.9, 10.0), trial(1, 0.8, 20.0), trial(2, None, None, outcome="out_of_memory"),
        trial(3, 0.2, 4.0, outcome="diverged"), trial(4, None, None, outcome="crashed"),
        trial(5, None, None, outcome=None),
    )  # fmt: skip
    accuracy, seconds = ({layer.role: layer for layer in figure.panels[0].layers} for figure in make_slices(evidence))
    assert accuracy["out_of_memory"].y[0] < accuracy["rule"].value < 0.8
    assert seconds["out_of_memory"].y[0] > seconds["rule"].value > 20.0
    assert seconds["diverged"].y == (4.0,)  # the time it had used; its accuracy is no result
    assert accuracy["diverged"].y[0] < accuracy["rule"].value
    assert seconds["crashed"].y != seconds["out_of_memory"].y  # one does not hide the other
    assert seconds["out_of_memory"].name == "out of memory (1)"
    assert "" not in seconds


def test_duplicates_and_single_points():
    x, y = np.array([1.0, 1.0, 2.0, np.nan]), np.array([3.0, 3.0, 2.0, 0.0])
    assert make_staircase(x, y, 1, 1) == ((1.0, 2.0, 2.0), (3.0, 3.0, 2.0))
    assert make_staircase(x[:1], y[:1], 1, 1) == ((1.0,), (3.0,))
    assert make_staircase(x[:0], y[:0], 1, 1) is None


def test_scale_follows_the_span():
    assert metric_axis(METRICS["train_seconds"], np.array([1.0, 30.0])).scale == "log"
    assert metric_axis(METRICS["train_seconds"], np.array([1.0, 10.0])).scale == "linear"
    assert metric_axis(METRICS["val_accuracy"], np.array([0.01, 0.9])).scale == "linear"
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


def test_a_swept_effective_batch_size_is_drawn_once():
    space = {"batch.micro": {"choice": [64, 256]}, "batch.global": {"choice": [64, 256]}}
    assert swept_parameters(evidence_of(trial(0), space=space)) == ("batch.micro", "batch.global")


@pytest.mark.parametrize(("others", "is_said"), [((), False), ((trial(1, None, None, outcome="crashed"),), True)])
def test_where_unfinished_trials_are_is_said_where_there_are_some(others, is_said):
    caption = make_slices(evidence_of(trial(0), *others))[0].caption
    assert ("did not complete" in caption) == is_said


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


def test_curves_end_at_the_estimated_times():
    frames = make_frames(30, confirm=2)
    frames.trials["quality_flags"] = np.where(frames.trials["number"] % 3 == 0, "uncertain_time", "")
    evidence = gather_evidence(frames)
    used = evidence.trials.set_index("number")
    ends = evidence.evaluations.groupby("number")["train_seconds"].max()
    clocked = frames.evaluations.groupby("number")["train_seconds"].max()
    factors = (used["train_seconds"] / used["clock_seconds"])[ends.index].astype(float)
    assert (factors != 1.0).any()
    np.testing.assert_allclose(ends, clocked * factors)


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


def test_every_outcome_has_a_name_and_a_color_and_symbol_of_its_own():
    assert set(OUTCOME_NAMES) == {*OUTCOMES, ""}
    looks = [look_of(outcome) for outcome in OUTCOMES]
    assert len({(look.color, look.glyph) for look in looks}) == len({look.color for look in looks}) == len(OUTCOMES)


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


def test_the_map_holds_medians_and_where_nothing_completed():
    rows = [
        trial(n, accuracy, 1.0, **{"global_batch_size": batch, "config.optimizer.lr": rate})
        for n, (accuracy, batch, rate) in enumerate(
            [(0.5, 32, 0.1), (0.7, 32, 0.1), (0.9, 32, 0.1), (0.8, 64, 0.1), (0.6, 64, 0.01)]
        )
    ]
    rows.append(trial(5, None, None, outcome="diverged", global_batch_size=32, **{"config.optimizer.lr": 0.01}))
    space = {"batch.micro": {"log2": [4, 8]}, "optimizer.lr": {"log": [1e-3, 1.0]}}
    panel = make_heat_map(evidence_of(*rows, space=space))[0].panels[0]
    assert [text for _, text in panel.x.ticks] == ["32", "64"]
    assert [text for _, text in panel.y.ticks] == ["0.01", "0.1"]
    cells = kinds(panel, Heat)[0]
    assert cells.values == ((None, pytest.approx(0.6)), (pytest.approx(0.7), pytest.approx(0.8)))
    assert cells.trials == ((-1, 4), (2, 3))  # the best of each
    assert cells.texts[1][0].startswith("3 trials, median 70.00 %\nbest 90.00 %")
    assert set(cells.members) == {(0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 1, 1), (4, 0, 1)}
    failed = kinds(panel, Points)[0]
    assert (failed.role, failed.x, failed.y, failed.trials) == ("diverged", (0.0,), (0.0,), (5,))


def test_memory_has_the_limit_of_the_device():
    rows = [trial(n, **{"config.batch.micro": 16 * 2**n, "peak_memory_bytes": 1e8 * (n + 1)}) for n in range(4)]
    evidence = evidence_of(*rows)
    evidence.frames.environments["device_memory_bytes"] = "1000000000"
    (panel,) = make_memory(evidence)[0].panels
    (points,) = kinds(panel, Points)
    assert (points.x, points.y) == ((16.0, 32.0, 64.0, 128.0), (1e8, 2e8, 3e8, 4e8))
    assert [rule.value for rule in kinds(panel, Rule)] == [1e9]


def test_throughput_knee_is_the_smallest_near_the_best():
    speeds = {16: (100, 110, 120), 32: (180, 200, 220), 64: (191, 192, 193), 128: (195, 200, 201)}
    rows = [
        trial(number, **{"config.batch.micro": micro, "images_per_second": float(speed)})
        for number, (micro, speed) in enumerate((m, s) for m, values in speeds.items() for s in values)
    ]
    figure = make_throughput(evidence_of(*rows))[0]
    knee = next(layer for layer in kinds(figure.panels[0], Points) if layer.name == "knee")
    assert (knee.x, knee.y) == ((32.0,), (200.0,))
    assert "resnet8: 32" in figure.caption
    at, middle = group_medians(np.array([2.0, 1.0, 2.0, math.nan]), np.array([4.0, 1.0, 6.0, 9.0]))
    assert (at.tolist(), middle.tolist()) == ([1.0, 2.0], [1.0, 5.0])


def test_a_knee_is_of_one_precision_optimizer_and_norm():
    # half precision is faster and ran at few sizes; the medians of all would be of neither
    speeds = {"fp32": {16: 100.0, 32: 190.0, 64: 192.0, 128: 195.0}, "bf16": {16: 900.0, 32: 910.0}}
    sizes = [(dtype, micro, speed) for dtype, values in speeds.items() for micro, speed in values.items()]
    rows = []
    for dtype, micro, speed in [*sizes, *(sizes[4:] * 3)]:
        keys = {"config.batch.micro": micro, "config.precision.dtype": dtype, "config.optimizer.name": "lamb"}
        rows.append(trial(len(rows), **keys, **{"config.model.norm": "group", "images_per_second": speed}))
    rows += [
        trial(len(rows), **{"config.batch.micro": 64, "images_per_second": 5000.0, "config.optimizer.name": "sgd"})
    ]
    figure = make_throughput(evidence_of(*rows))[0]
    (knee,) = [layer for layer in kinds(figure.panels[0], Points) if layer.name == "knee"]
    assert (knee.x, knee.y) == ((32.0,), (190.0,))
    assert "resnet8, group norm, fp32, lamb: 32" in figure.caption
    fact = recommend(frames_of(make_spec(), rows)).facts["throughput_knee"]
    assert (fact.value, fact.n) == (32.0, 4)
    assert fact.detail.startswith("resnet8, group norm, fp32, lamb; the best throughput was at 128")
    assert "2 other combinations" in fact.detail


def test_a_micro_batch_that_was_chosen_by_the_trial_counts():
    rows = [trial(0, **{"config.batch.micro": None, "micro_batch_size": 48, "images_per_second": 5.0})]
    assert kinds(make_throughput(evidence_of(*rows))[0].panels[0], Points)[0].x == (48.0,)


@pytest.mark.parametrize(("changes", "size"), [
    ({}, 100.0),
    ({"config.distributed.world_size": 3}, 34.0),
    ({"config.batch.schedule": "linear"}, 512.0),  # its later steps are larger
    ({"global_batch_size": 2048}, 512.0),
    ({"global_batch_size": None}, 512.0),
])  # fmt: skip
@pytest.mark.parametrize("name", ["micro_batch_size", "config.batch.micro"])
def test_a_micro_batch_is_no_larger_than_its_step(name, changes, size):
    row = {"config.batch.micro": 512, "global_batch_size": 100} | {name: 512} | changes
    assert ran_micro_batches(pd.DataFrame([row])).tolist() == [size]


def test_probes_stand_beside_trials():
    evidence = evidence_of(trial(0, peak_memory_bytes=2e8, images_per_second=90.0))
    shape = '{"model.name": "resnet20"}'
    measured = {"peak_memory_bytes": 3e8, "images_per_second": 80.0, "shape": shape}
    probes = pd.DataFrame([{"micro_batch": 64, "quality_flags": "busy_host", **measured}])
    probed = dataclasses.replace(evidence, frames=dataclasses.replace(evidence.frames, probes=probes))
    for figure, value in ((make_memory(probed)[0], 3e8), (make_throughput(probed)[0], 80.0)):
        probe = next(layer for layer in kinds(figure.panels[0], Points) if layer.role == "probe")
        assert (probe.x, probe.y, probe.trials) == ((64.0,), (value,), ())
        assert probe.texts[0].startswith("Probe of resnet20, micro batch 64")
        assert name_flags("busy_host") in probe.texts[0]


def test_noise_scale_with_the_average_over_the_training():
    assert "diagnostics.noise_scale" in make_noise(gather_evidence(make_frames(8))).remedy
    frames = make_frames(6, objectives=TWO)
    scale = frames.evaluations["step"] * 2.0 + frames.evaluations["number"]
    averages = [10.0, 20.0, 30.0, 40.0, 50.0, np.nan]
    measured = dataclasses.replace(
        frames,
        evaluations=frames.evaluations.assign(noise_scale=scale),
        trials=frames.trials.assign(noise_scale_run=averages),
    )
    figure = make_noise(gather_evidence(measured))[0]
    # the last of a run would be 400 and more
    assert [rule.value for rule in kinds(figure.panels[0], Rule)] == [30.0]
    assert "the median of 5 trials" in figure.caption
    assert "is not the critical batch" in figure.caption
    assert {number for layer in kinds(figure.panels[0], Lines) for number in layer.trials} == set(range(6))


def test_curves_have_three_views_of_each_metric():
    figure = make_curves(gather_evidence(make_frames(20, confirm=2)))[0]
    assert [(panel.view, panel.y.label) for panel in figure.panels] == [
        (view, label)
        for label in ("Validation accuracy", "Validation loss")
        for view in ("training time", "steps", "epochs")
    ]
    first = [kinds(panel, Lines)[0].segments[0] for panel in figure.panels[1:3]]
    assert first[0][0][:2] == (20.0, 40.0)  # steps
    assert first[1][0][:2] == (1.0, 2.0)  # epochs
    assert first[0][1] == first[1][1]
    for layer in kinds(figure.panels[0], Lines):
        assert len(layer.trials) == len(layer.segments)


def test_what_is_missing_is_said_with_its_remedy():
    made = make_figures(gather_evidence(make_frames(0)))
    assert made.figures == []
    # the answer has one more, before the list
    assert len(made.absent) == len(LISTED) + 1, "each entry of GROUPS in reports/figures/all_figures.py is Absent here"
    wrong = [item for item in made.absent if not (item.title and item.remedy.startswith(("requires", "has")))]
    assert not wrong, (
        f"Absent of reports/figures/ gives a title, and a remedy that starts with 'requires' or 'has': {wrong}"
    )


def test_every_function_that_makes_a_figure_is_listed():
    made = {
        function
        for module in pkgutil.iter_modules(reports.figures.__path__, "reports.figures.")
        for name, function in vars(importlib.import_module(module.name)).items()
        if name.startswith("make_") and typing.get_type_hints(function).get("return") == list[Figure] | Absent
    }
    forgotten = [f"{function.__module__}.{function.__name__}" for function in made - LISTED]
    assert not forgotten, f"add {forgotten} to GROUPS in reports/figures/all_figures.py"
    assert made == LISTED


def test_a_legend_is_in_the_order_of_drawing_although_a_panel_lacks_a_name() -> None:
    one, two = (Points(name=name, role=f"series-{index}", x=(1.0,), y=(2.0,)) for index, name in enumerate("ab"))
    axis = Axis(label="x")
    panels = tuple(Panel(x=axis, y=axis, layers=layers) for layers in ((one, two), (two,), (one,)))
    figure = Figure(name="f", title="F", caption="", panels=panels)
    assert [layer.name for layer in figure.legend_layers()] == ["a", "b"]


def test_a_settled_statement_heads_the_figure_that_shows_it():
    frames = make_frames(60, confirm=4)
    evidence = gather_evidence(dataclasses.replace(frames, probes=estimates_of(frames.spec)))
    found = evidence.answer.batch_size

    def findings(is_settled):
        statements = tuple(dataclasses.replace(each, is_settled=is_settled) for each in found.statements)
        answer = dataclasses.replace(evidence.answer, batch_size=dataclasses.replace(found, statements=statements))
        made = make_figures(dataclasses.replace(evidence, answer=answer))
        return {figure.name: figure.finding for figure in made.figures}

    texts = {each.name: each.text for each in found.statements}
    settled, open_ = findings(True), findings(False)
    assert (settled["fronts"], settled["slices_val_accuracy"]) == (texts["use"], texts["equally_good"])
    assert (open_["fronts"], open_["slices_val_accuracy"], settled["curves"]) == ("", "", "")
    assert settled["throughput"].startswith(f"{evidence.answer.facts['throughput_knee'].statement}: ")


LEAST = 3.0  # success criterion 1.4.11, of graphical objects and of parts of the user interface
TEXT = 4.5  # 1.4.3
CSS = (resources.files("reports") / "page" / "page.css").read_text(encoding="utf-8")
# those of the answer's picture are drawn in the colors of the theme, a band behind marks is no mark
ROLES = (
    *sorted(set(layout._LOOKS) - {"ring", "best", "tuned", "beyond", "band"}),
    *(f"series-{n}" for n in range(NUM_SERIES)),
)


# the first block is the light one, the last the dark one
BLOCKS = re.findall(r":root(?:\[data-theme=\"dark\"\])? \{([^}]*--page:[^}]*)\}", CSS)
THEMES = {
    name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", BLOCKS[at])) for name, at in {"light": 0, "dark": -1}.items()
}


def luminance_of(channels):
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(color, ground, opacity=1.0):
    mark, page = np.array(to_rgb(color)), np.array(to_rgb(ground))
    dark, light = sorted([luminance_of(opacity * mark + (1 - opacity) * page), luminance_of(page)])
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("role", ROLES)
def test_a_mark_stands_out_from_the_ground(theme, role):
    look = look_of(role)
    assert contrast(look.color, THEMES[theme]["page"], look.opacity) >= LEAST


@pytest.mark.parametrize("place", range(2))
def test_every_shade_of_a_mark_stands_out(place):
    ground = THEMES[list(THEMES)[place]]["page"]
    assert min(contrast(shade_colors(step / 20)[place], ground) for step in range(21)) >= LEAST


@pytest.mark.parametrize("theme", THEMES)
def test_buttons_and_texts_stand_out_from_the_ground(theme):
    colors = THEMES[theme]
    assert colors.keys() == THEMES["light"].keys()
    for ground in (colors["page"], colors["soft"]):
        assert contrast(colors["edge"], ground) >= LEAST
        assert contrast(colors["accent"], ground) >= LEAST
        assert min(contrast(colors[name], ground) for name in ("ink", "quiet", "good", "bad")) >= TEXT
