"""Probes, the edge of the memory and the gate on a CUDA device."""

from pathlib import Path
from typing import Any

import pytest
import torch

from sweep.config.study_file import build_study
from sweep.config.trial import build_config
from sweep.executors.table import ExecutorSettings
from sweep.probing.micro_batch_search import MicroBatchSearch, search_micro_batch
from sweep.probing.shape import replace_micro_batch
from sweep.search.session import Options, open_session
from sweep.search.single import open_prober

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device was found"),
]
VALUES: dict[str, Any] = {"model.name": "resnet18", "data.name": "synthetic", "optimizer.name": "adamw"}
LIMIT = 2 << 30


def test_the_largest_that_fits_was_run_within_the_limit_and_the_next_was_not(tmp_path: Path) -> None:
    config = build_config(VALUES, "test")
    with open_prober(Options(root=tmp_path, executor=ExecutorSettings(device="cuda")), LIMIT) as (prober, limit):
        found: MicroBatchSearch = search_micro_batch(
            lambda size: prober.probe(replace_micro_batch(config, size), 0.1), most=8192
        )
    assert limit == LIMIT
    assert found.largest is not None
    assert found.is_limited_by_memory
    assert all((found.tried[size].peak_memory_bytes or 0) <= LIMIT for size in found.fitting)
    refused = min(size for size, probe in found.tried.items() if not probe.is_complete)
    assert refused - found.largest <= max(1, 0.05 * found.largest)
    assert {probe.outcome for probe in found.tried.values()} <= {"complete", "out_of_memory", "not_fitting"}
    assert found.knee in found.fitting


def test_the_limit_of_a_device_is_nine_tenths_of_what_is_free(tmp_path: Path) -> None:
    with open_prober(Options(root=tmp_path, executor=ExecutorSettings(device="cuda")), None) as (_, limit):
        free, installed = torch.cuda.mem_get_info()  # beside this process, whose context the probe's did not need
        assert 0.8 * free < limit <= 0.9 * installed


def test_what_the_gate_lets_through_does_not_run_out_of_memory(tmp_path: Path) -> None:
    table = {
        "name": "gated",
        "trials": 6,
        "sampler": "qmc",
        "confirm": {"seeds": 0},
        "base": {**VALUES, "budget.steps": 3, "data.image_size": 224},
        "space": {"batch.micro": {"log2": [4, 14]}},
    }
    with open_session(
        build_study(table, "test"), Options(root=tmp_path, executor=ExecutorSettings(device="cuda"))
    ) as session:
        forecast = session.forecast()
        for _ in session.run():
            pass
        records = session.store.trial_records("gated")
    outcomes = {record.config.batch.micro: record.outcome for record in records if record.number % 20 != 19}
    assert "out_of_memory" not in outcomes.values()
    assert forecast.expected_total_seconds is not None
    assert max(size for size, outcome in outcomes.items() if outcome == "complete") >= 64
