"""Memory of a step by part: which trial has which shape, what the figure draws, and when a study estimates it."""

import dataclasses
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from frames_factory import frames_of, make_spec
from records_factory import add_trials, make_config, make_record, make_store
from records_factory import make_spec as records_spec
from training_factory import make_config as make_training_config

from reports.evidence import Evidence, gather_evidence
from reports.figure import Bars, Points, Rule
from reports.figures.costs import make_memory_breakdown
from reports.figures.trials import make_fronts
from sweep.config.trial import TrialConfig, flatten_config
from sweep.executors.base import QueryableExecutor
from sweep.executors.inline import InlineExecutor
from sweep.probing.memory import estimate_memory
from sweep.probing.shape import Shape, derive_shape, digest_trial_shape
from sweep.records.messages import Ending
from sweep.records.records import make_probe_record
from sweep.records.store import ProbeBook
from sweep.search import study_forecast as forecasting
from sweep.search.study_forecast import Forecaster

MIB = 2.0**20
PARTS = {"parameter": 1.0, "gradient": 1.0, "optimizer": 2.0, "activation": 5.0, "temporary": 0.5, "scratch": 0.5}


VALUES = {"model.name": "resnet8", "data.name": "digits", "batch.micro": 32, "batch.accumulation": 1}
config_of = partial(make_training_config, VALUES)


def trial(number: int, config: TrialConfig, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {f"config.{key}": value for key, value in flatten_config(config).items()}
    row |= {"number": number, "global_batch_size": config.global_batch_size, "val_accuracy": 0.9, "train_seconds": 1.0}
    return row | {"shape_digest": digest_trial_shape(config)} | more


def probe(config: TrialConfig, scale: float = 1.0, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"study": "made", "shape": derive_shape(config).text, "device": "cpu: made"}
    row |= {"micro_batch": config.batch.micro, "outcome": "estimated", "shape_digest": digest_trial_shape(config)}
    return row | {f"forecast_{part}_bytes": scale * mebi * MIB for part, mebi in PARTS.items()} | more


def evidence_of(rows: list[dict[str, Any]], probes: list[dict[str, Any]]) -> Evidence:
    return gather_evidence(dataclasses.replace(frames_of(make_spec(), rows), probes=pd.DataFrame(probes)))


def test_trials_of_one_shape_have_one_digest_and_a_growing_batch_has_none() -> None:
    usual = digest_trial_shape(config_of())
    assert digest_trial_shape(config_of(optimizer__lr=0.5, seed=3)) == usual
    assert digest_trial_shape(config_of(batch__micro=64)) != usual
    assert digest_trial_shape(config_of(batch__schedule="linear", batch__schedule_factor=4)) == ""


def test_a_disturbed_trial_tells_which_time_is_shown() -> None:
    ran = {"outcome": "complete", "quality_flags": "", "step_seconds_mean": 0.01, "update_seconds": 0.0}
    more = {"num_steps": 40, "images_per_second": 40 * 32}
    rows = [
        trial(0, config_of(), quality_flags="uncertain_time", bottleneck="data", **more),
        trial(1, config_of(batch__micro=64), quality_flags="drift", **more),
    ]
    evidence = evidence_of(rows, [probe(config_of(), **ran)])
    assert "Bottleneck: data" in evidence.texts[0]
    assert "Training time: 400 ms" in evidence.texts[0]
    assert "Quality warnings: step time uncertain\nThe time shown is by solo probes" in evidence.texts[0]
    assert evidence.texts[0].endswith("the measured one was 1.00 s")
    assert evidence.texts[1].endswith("Quality warnings: step times drift")
    caption = make_fronts(evidence)[0].caption  # type: ignore[index]
    assert "2 search trials with quality warnings" in caption


def test_parts_are_stacked_with_what_was_measured_and_how_far_off_that_is() -> None:
    small, large = config_of(), config_of(batch__micro=64)
    rows = [trial(0, small, peak_memory_bytes=12.5 * MIB), trial(1, large, peak_memory_bytes=20.0 * MIB)]
    evidence = evidence_of(rows, [probe(large, 2.0), probe(small), probe(config_of(batch__micro=128), 4.0)])
    evidence.frames.environments["device_memory_bytes"] = str(32 * MIB)
    figure = make_memory_breakdown(evidence)[0]  # type: ignore[index]
    (panel,) = figure.panels
    assert [text for _, text in panel.y.ticks] == ["32", "64", "128"]
    bars = [layer for layer in panel.layers if isinstance(layer, Bars)]
    assert [layer.lengths[0] / MIB for layer in bars] == list(PARTS.values())
    for below, above in pairwise(bars):
        assert above.starts == tuple(start + length for start, length in zip(below.starts, below.lengths, strict=True))
    assert bars[-1].starts[2] + bars[-1].lengths[2] == 40 * MIB
    (peaks,) = [layer for layer in panel.layers if isinstance(layer, Points)]
    assert (peaks.x, peaks.y, peaks.trials) == ((12.5 * MIB, 20.0 * MIB), (0.0, 1.0), (0, 1))
    assert [rule.value for rule in panel.layers if isinstance(rule, Rule)] == [32 * MIB]
    # 10 of 12.5 and 20 of 20
    assert "Relative error 10.0 % (median), 20.0 % (maximum) over 2 trained shapes." in figure.caption
    assert "The device has 32.0 MiB." in figure.caption


def test_estimates_are_asked_for_as_long_as_training_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = (16, 32, 64, 128)
    clock = iter(range(1000))
    monkeypatch.setattr(forecasting.time, "monotonic", lambda: float(next(clock)))  # each call takes 1 s
    wanted: list[TrialConfig] = []
    spent = {"total_seconds": 50.0}
    records = [make_record(config_of(batch__micro=size), spent, n) for n, size in enumerate(sizes)]
    records.append(make_record(config_of(batch__micro=256), spent, 9, outcome="out_of_memory"))
    forecasting.estimate_trained(records, frozenset(), wanted.append)
    # a fiftieth of 250 s are 5 s: the smallest and the largest go first
    assert [config.batch.micro for config in wanted] == [16, 128, 32, 64]
    wanted.clear()
    forecasting.estimate_trained(records[:3], {derive_shape(config_of(batch__micro=16))}, wanted.append)
    assert [config.batch.micro for config in wanted] == [64]
    wanted.clear()
    forecasting.estimate_trained([make_record(config_of(), {"total_seconds": 1.0})], frozenset[Shape](), wanted.append)
    assert wanted == []


def test_what_was_trained_is_estimated_and_kept_beside_its_probe(tmp_path: Path) -> None:
    executor = QueryableExecutor(InlineExecutor("cpu"))
    with closing(make_store(tmp_path / "study.sqlite", records_spec())) as store:
        add_trials(store, ["complete"] * 22)
        forecaster = Forecaster(records_spec(), executor, None, device="cpu")
        forecaster.estimate_breakdowns(store)
        smallest = make_config(0)
        book, shape = ProbeBook(store, "s"), derive_shape(smallest)
        (kept,) = [each for each in book.of_device(forecaster.device_class) if each.shape == shape.text]
        assert (kept.outcome, kept.micro_batch, kept.peak_memory_bytes) == ("estimated", 16, None)
        assert sum(kept.forecast.values()) == estimate_memory(smallest).peak_memory_bytes
        # a probe that comes later takes the row and leaves the estimate
        measured = {"peak_memory_bytes": 7, "step_seconds_mean": 0.1}
        ending = Ending(outcome="complete", measurements=measured, device=forecaster.device_class)
        again = Forecaster(records_spec(), executor, None, device="cpu")
        again.prober.used[kept.shape_key] = make_probe_record(kept.shape_key, shape.text, 16, ending, 0.0)
        again.save_probes(store)
        (row,) = [each for each in book.of_device(forecaster.device_class) if each.shape == shape.text]
    assert (row.outcome, row.peak_memory_bytes, row.forecast) == ("complete", 7, kept.forecast)
