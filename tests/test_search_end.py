"""A search that ends before its last trial because everything is settled, and those that do not."""

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records_factory import make_spec, make_store
from scipy.stats import norm
from test_tuner import by_phase, run

from sweep.records.records import TrialRecord
from sweep.search.cost_aware import CostAxis, GaussianPrediction, find_curve_gains
from sweep.search.tuner import Stopped

SPACE = {"batch.micro": {"log2": [4, 7]}, "optimizer.lr": {"log": [0.003, 0.3]}}
PLANNED = 60


def settled_study(tolerance: float = 0.02, **fields: Any) -> Any:
    answer = {"tolerance": {"accuracy": tolerance}}
    return make_spec(**{"trials": PLANNED, "sampler": "cost_aware", "space": SPACE, "answer": answer, **fields})


def run_study(folder: Path, spec: Any) -> tuple[list[TrialRecord], list[str]]:
    with closing(make_store(folder / "study.sqlite", spec)) as store:
        events = run(store, spec)
        first = store.trial_records(spec.name)
        again = run(store, spec)
        assert not [event for event in again if not isinstance(event, Stopped)]  # a resumed study does no more
        assert store.trial_records(spec.name) == first
    return first, [event.reason for event in events if isinstance(event, Stopped)]


def test_a_search_ends_when_everything_is_settled_and_tells_why(tmp_path: Path) -> None:
    records, reasons = run_study(tmp_path, settled_study())
    search, confirm = by_phase(records, "search"), by_phase(records, "confirm")
    assert PLANNED / 2 <= len(search) < PLANNED
    assert len(confirm) >= 3
    assert max(record.number for record in search) < min(record.number for record in confirm)
    assert f"the search ended after {len(search)} of {PLANNED} trials: every statement" in reasons[0]


@pytest.mark.parametrize("fields", [{"tolerance": 0.0001}, {"sampler": "random"}])
def test_a_search_that_may_still_find_something_or_cannot_tell_runs_to_its_last_trial(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    records, reasons = run_study(tmp_path, settled_study(**fields))
    assert len(by_phase(records, "search")) == PLANNED
    assert not reasons


def test_the_gain_of_the_curve_is_the_expected_improvement_at_its_own_batch_size() -> None:
    prediction = GaussianPrediction(np.array([-0.90, -0.94, -0.80]), np.array([0.02, 0.01, 0.001]), CostAxis(""))
    gains = find_curve_gains(["a", "b", "c"], prediction, {"a": -0.91, "b": -0.95}, least_useful=-0.92)
    # a batch size below the useful accuracy must first reach it; one that cannot gains nothing
    draws = norm.ppf((np.arange(100_000) + 0.5) / 100_000)
    for place, limit in enumerate([-0.92, -0.95, -0.92]):
        values = prediction.mean[place] + prediction.deviation[place] * draws
        assert gains[place] == pytest.approx(np.maximum(limit - values, 0.0).mean(), rel=0.01, abs=1e-9)
    assert gains[2] < 1e-12 < gains[1]
