"""What the figures of growth, importance, maps, memory, throughput, noise and endings hold, as data."""

import dataclasses
import importlib
import math
import pkgutil
import typing

import numpy as np
import pandas as pd
import pytest
from frames_factory import frames_of, make_frames, make_spec

import reports.figures
from reports.evidence import gather_evidence
from reports.figure import Absent, Axis, Bars, Figure, Heat, Lines, Panel, Points, Rule
from reports.figures.all_figures import GROUPS, make_figures
from reports.figures.batch import fit_line, make_device, make_heat_map, make_memory, make_throughput
from reports.figures.costs import make_outcome_map
from reports.figures.trials import (
    explained_variance,
    make_curves,
    make_fronts,
    make_hypervolume,
    make_importance,
    make_noise,
)
from reports.labels import metric_label
from sweep.analysis.costs import group_medians
from sweep.analysis.recommendation import recommend

TWO = ["val_accuracy", "train_seconds"]
LISTED = {make for makers in GROUPS.values() for make in makers}


def row(number, accuracy=0.9, seconds=1.0, **rest):
    values = {"number": number, "val_accuracy": accuracy, "train_seconds": seconds, "total_seconds": 2.0}
    values |= {"config.batch.micro": 32, "config.batch.accumulation": 1, "config.model.name": "resnet8"}
    return values | {"config.optimizer.lr": 0.1, "config.optimizer.weight_decay": 1e-4 * number} | rest


def evidence_of(rows, **changes):
    return gather_evidence(frames_of(make_spec(**({"objectives": TWO} | changes)), rows))


def kinds(panel, kind):
    return [layer for layer in panel.layers if isinstance(layer, kind)]


def test_hypervolume_grows_with_the_front_and_counts_every_second():
    rows = [
        row(0, 0.5, 4.0),
        row(1, 0.4, 6.0),  # adds nothing
        row(2, None, None, outcome="diverged", total_seconds=50.0),
        row(3, 0.9, 2.0),  # beats all
        row(4, 0.3, 9.0),
    ]
    by_time, by_trials = make_hypervolume(evidence_of(rows))[0].panels
    x, share = kinds(by_time, Lines)[0].segments[0]
    assert list(share) == sorted(share)
    assert share[-1] == 1.0
    assert x == (2.0, 4.0, 4.0, 56.0, 56.0, 58.0, 58.0)[: len(x)]  # 50 s of the diverged one stand between
    assert kinds(by_trials, Lines)[0].segments[0][0][-1] == 5.0
    front = kinds(by_time, Points)[0]
    assert (front.trials, front.y) == ((3,), (1.0,))
    # by hand, scaled to 0..1 with the reference a tenth beyond: (0.5 - 0.3) / 0.6 up, (9 - 4) / 7 down
    assert share[0] == pytest.approx((1 / 3 + 0.1) * (5 / 7 + 0.1) / 1.1**2)


def test_hypervolume_of_one_trial_is_no_figure():
    assert isinstance(make_hypervolume(evidence_of([row(0)])), Absent)


def test_importance_is_the_share_that_groups_explain():
    groups = np.repeat([0, 1], 50)
    assert explained_variance(groups, np.arange(1.0, 101.0)) == (pytest.approx((75.0 * 0.99 - 1) / 98, rel=0.02), True)
    generator = np.random.default_rng(0)
    shares = [explained_variance(groups, generator.permutation(100) + 1.0) for _ in range(400)]
    assert np.mean([certain for _, certain in shares]) == pytest.approx(0.05, abs=0.03)
    assert np.mean([share for share, _ in shares]) < 0.01
    assert explained_variance(np.zeros(5, dtype=np.int64), np.arange(1.0, 6.0)) == (0.0, False)
    assert explained_variance(groups, np.full(100, 50.5)) == (0.0, False)


def test_importances_find_what_moves_time():
    figure = make_importance(gather_evidence(make_frames(120)))[0]
    time = next(panel for panel in figure.panels if panel.title == "Training time")
    bars = [pair for layer in kinds(time, Bars) for pair in zip(layer.lengths, layer.y, strict=True)]
    length, at = max(bars)
    assert time.y.ticks[int(at)][1] == "micro batch"
    assert length > 0.8
    chance = next(bars for bars in kinds(time, Bars) if bars.name == "no more than chance")
    assert "weight decay" in {time.y.ticks[int(at)][1] for at in chance.y}
    assert isinstance(make_importance(gather_evidence(make_frames(8))), Absent)


def test_the_map_holds_medians_and_where_nothing_completed():
    rows = [
        row(n, accuracy, 1.0, **{"global_batch_size": batch, "config.optimizer.lr": rate})
        for n, (accuracy, batch, rate) in enumerate(
            [(0.5, 32, 0.1), (0.7, 32, 0.1), (0.9, 32, 0.1), (0.8, 64, 0.1), (0.6, 64, 0.01)]
        )
    ]
    rows.append(row(5, None, None, outcome="diverged", global_batch_size=32, **{"config.optimizer.lr": 0.01}))
    space = {"batch.micro": {"log2": [4, 8]}, "optimizer.lr": {"log": [1e-3, 1.0]}}
    panel = make_heat_map(evidence_of(rows, space=space))[0].panels[0]
    assert [text for _, text in panel.x.ticks] == ["32", "64"]
    assert [text for _, text in panel.y.ticks] == ["0.01", "0.1"]
    cells = kinds(panel, Heat)[0]
    assert cells.values == ((None, pytest.approx(0.6)), (pytest.approx(0.7), pytest.approx(0.8)))
    assert cells.trials == ((-1, 4), (2, 3))  # the best of each
    assert cells.texts[1][0].startswith("3 trials, median 70.00 %\nbest 90.00 %")
    assert set(cells.members) == {(0, 1, 0), (1, 1, 0), (2, 1, 0), (3, 1, 1), (4, 0, 1)}
    failed = kinds(panel, Points)[0]
    assert (failed.role, failed.x, failed.y, failed.trials) == ("diverged", (0.0,), (0.0,), (5,))


def test_the_map_wants_two_of_each():
    assert "sweep both" in make_heat_map(evidence_of([row(0), row(1)])).remedy


def test_memory_is_a_line_with_the_limit_of_the_device():
    rows = [
        row(n, **{"config.batch.micro": micro, "peak_memory_bytes": 1e8 + 2e6 * micro})
        for n, micro in enumerate((16, 32, 64, 128))
    ]
    evidence = evidence_of(rows)
    evidence.frames.environments["device_memory_bytes"] = "1000000000"
    figure = make_memory(evidence)[0]
    line = kinds(figure.panels[0], Lines)[0]
    slope = (line.segments[0][1][-1] - line.segments[0][1][0]) / (line.segments[0][0][-1] - line.segments[0][0][0])
    assert slope == pytest.approx(2e6)
    assert [rule.value for rule in kinds(figure.panels[0], Rule)] == [1e9]
    assert "1.91 MiB per sample" in figure.caption
    assert fit_line(np.array([1.0, 2.0]), np.array([1.0, 2.0])) is None


def test_throughput_knee_is_the_smallest_near_the_best():
    speeds = {16: (100, 110, 120), 32: (180, 200, 220), 64: (191, 192, 193), 128: (195, 200, 201)}
    rows = [
        row(number, **{"config.batch.micro": micro, "images_per_second": float(speed)})
        for number, (micro, speed) in enumerate((m, s) for m, values in speeds.items() for s in values)
    ]
    figure = make_throughput(evidence_of(rows))[0]
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
        rows.append(row(len(rows), **keys, **{"config.model.norm": "group", "images_per_second": speed}))
    rows += [row(len(rows), **{"config.batch.micro": 64, "images_per_second": 5000.0, "config.optimizer.name": "sgd"})]
    figure = make_throughput(evidence_of(rows))[0]
    (knee,) = [layer for layer in kinds(figure.panels[0], Points) if layer.name == "knee"]
    assert (knee.x, knee.y) == ((32.0,), (190.0,))
    assert "resnet8, group norm, fp32, lamb: 32" in figure.caption
    fact = recommend(frames_of(make_spec(), rows)).facts["throughput_knee"]
    assert (fact.value, fact.n) == (32.0, 4)
    assert fact.detail.startswith("resnet8, group norm, fp32, lamb; the best throughput was at 128")
    assert "2 other combinations" in fact.detail


def test_a_micro_batch_that_was_chosen_by_the_trial_counts():
    rows = [row(0, **{"config.batch.micro": None, "micro_batch_size": 48, "images_per_second": 5.0})]
    assert kinds(make_throughput(evidence_of(rows))[0].panels[0], Points)[0].x == (48.0,)


def test_probes_stand_beside_trials():
    evidence = evidence_of([row(0, peak_memory_bytes=2e8, images_per_second=90.0)])
    shape = '{"model.name": "resnet20"}'
    probes = pd.DataFrame([{"micro_batch": 64, "peak_memory_bytes": 3e8, "images_per_second": 80.0, "shape": shape}])
    probed = dataclasses.replace(evidence, frames=dataclasses.replace(evidence.frames, probes=probes))
    for figure, value in ((make_memory(probed)[0], 3e8), (make_throughput(probed)[0], 80.0)):
        probe = next(layer for layer in kinds(figure.panels[0], Points) if layer.role == "probe")
        assert (probe.x, probe.y, probe.trials) == ((64.0,), (value,), ())
        assert probe.texts[0].startswith("Probe of resnet20, micro batch 64")


def test_what_the_monitor_saw():
    assert isinstance(make_device(evidence_of([row(0)])), Absent)
    frames = frames_of(make_spec(objectives=TWO), [row(n, **{"config.batch.micro": 16 * (n + 1)}) for n in range(3)])
    watched = dataclasses.replace(frames, trials=frames.trials.assign(gpu_utilization=[0.4, 0.6, 0.9]))
    figure = make_device(gather_evidence(watched))[0]
    assert [panel.title for panel in figure.panels] == ["GPU utilization"]
    assert kinds(figure.panels[0], Points)[0].y == (0.4, 0.6, 0.9)


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


def test_the_pairs_together_have_all_three_objectives_of_every_trial():
    evidence = gather_evidence(make_frames(30, confirm=2))
    panels = make_fronts(evidence)[0].panels
    pairs = [(panel.y.label, panel.x.label) for panel in panels]
    names = [
        ("val_accuracy", "train_seconds"),
        ("val_accuracy", "peak_memory_bytes"),
        ("train_seconds", "peak_memory_bytes"),
    ]
    assert pairs == [(metric_label(y), metric_label(x)) for y, x in names]
    trials = evidence.search.set_index("number")
    for panel, (y_name, x_name) in zip(panels, names, strict=True):
        layers = {layer.role: layer for layer in panel.layers if hasattr(layer, "x")}
        marks = [
            (number, role, x, y)
            for role in ("search", "search_front")
            for number, x, y in zip(layers[role].trials, layers[role].x, layers[role].y, strict=True)
        ]
        assert sorted(number for number, *_ in marks) == sorted(trials.index)
        for number, role, x, y in marks:
            row = trials.loc[number]
            assert (x, y, role == "search_front") == (row[x_name], row[y_name], row["on_search_front"])
        assert len(layers["confirmed"].x) == 2


def test_where_trials_failed_by_parameter():
    rows = [row(0), row(1, None, None, outcome="out_of_memory", **{"config.batch.micro": 256})]
    panels = {panel.x.label: panel for panel in make_outcome_map(evidence_of(rows))[0].panels}
    micro = panels["micro batch"]
    assert micro.y.ticks == ((0.0, "complete"), (1.0, "out of memory"))
    failed = next(layer for layer in kinds(micro, Points) if layer.role == "out_of_memory")
    assert failed.x == (256.0,)
    assert abs(failed.y[0] - 1.0) < 0.3
    assert isinstance(make_outcome_map(evidence_of([row(0)])), Absent)


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


def test_a_cell_without_a_measured_accuracy_is_empty():
    frames = make_frames(40)
    values = frames.trials["val_accuracy"].mask(frames.trials["number"] % 2 != 0)
    unmeasured = frames.trials.assign(val_accuracy=values)
    (figure,) = make_heat_map(gather_evidence(dataclasses.replace(frames, trials=unmeasured)))
    heats = [layer for panel in figure.panels for layer in panel.layers if isinstance(layer, Heat)]
    assert heats
    assert all(math.isfinite(value) for heat in heats for value in heat.known)


def test_a_legend_is_in_the_order_of_drawing_although_a_panel_lacks_a_name() -> None:
    one, two = (Points(name=name, role=f"series-{index}", x=(1.0,), y=(2.0,)) for index, name in enumerate("ab"))
    axis = Axis(label="x")
    panels = tuple(Panel(x=axis, y=axis, layers=layers) for layers in ((one, two), (two,), (one,)))
    figure = Figure(name="f", title="F", caption="", panels=panels)
    assert [layer.name for layer in figure.legend_layers()] == ["a", "b"]
