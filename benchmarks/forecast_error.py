"""How far the forecast of the quickstart is off: predicted over taken seconds of the trials that ran, either way."""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import Arms, ArmsDifferError, Benchmark, Setting
from studies import shipped_studies
from sweep.config.study import StudySpec
from sweep.config.study_file import load_study
from sweep.executors.table import ExecutorSettings
from sweep.records.frames.frames import load_frames
from sweep.search.loop.run_options import Options
from sweep.search.loop.session import Session, open_session

_MOST_OFF = 1.15


class _Told(NamedTuple):
    """Of one study."""

    predicted_seconds: float  # of the trials that ran, each by its configuration
    taken_seconds: float
    total_seconds: float  # of the study, from the forecast's end
    low_seconds: float
    high_seconds: float
    probing_seconds: float

    @property
    def factor(self) -> float:
        """1 where the prediction is right."""
        ratio = self.predicted_seconds / self.taken_seconds
        return max(ratio, 1 / ratio)


@contextmanager
def prepare(setting: Setting) -> Iterator[Arms]:
    """Ours is the factor by which the sum is off; the other arm is none."""
    tiny = {"trials": 3, "confirm.seeds": 0, "budget.epochs": 1}
    spec = load_study(shipped_studies()["quickstart"], tiny if setting.is_tiny else {})
    told: list[_Told] = []

    def ours(_pair: int) -> float:
        told.append(_run(spec, str(setting.device)))
        return told[-1].factor

    def check() -> dict[str, Any]:
        inside = [one.low_seconds <= one.total_seconds <= one.high_seconds for one in told]
        facts = {"studies": [one._asdict() for one in told], "totals_inside": f"{sum(inside)} of {len(inside)}"}
        if not all(inside) and not setting.is_tiny:
            raise ArmsDifferError(f"a total outside its interval: {facts}")
        return facts

    yield Arms(ours, lambda _pair: 1.0, check, {"study": spec.name, "trials": spec.trials})


def _run(spec: StudySpec, device: str) -> _Told:
    with tempfile.TemporaryDirectory() as root:
        options = Options(root=Path(root), executor=ExecutorSettings(device=device), reuse=False)
        with open_session(spec, options) as session:
            forecast = session.forecast()
            began = time.perf_counter()
            with contextlib.closing(session.run()) as events:
                for _ in events:
                    pass
            total = time.perf_counter() - began
            predicted = _predicted(session)
        attempts = load_frames(Path(root) / spec.name).attempts
    low, high = forecast.expected_total_seconds_low, forecast.expected_total_seconds_high
    taken = float(attempts["busy_seconds"].sum())
    return _Told(predicted, taken, total, low or 0.0, high or 0.0, forecast.probing_seconds)


def _predicted(session: Session) -> float:
    total = 0.0
    for record in session.store.trial_records(session.spec.name):
        if record.outcome != "not_fitting":
            cost = session.forecaster.cost_model.predict(record.config, reads_test=record.phase == "confirm")
            total += cost.seconds if cost else 0.0
    return total


BENCHMARK = Benchmark(
    "forecast",
    "factor by which the predicted seconds of the trials that ran are off, either way (quickstart)",
    "times",
    "lower",
    _MOST_OFF,
    prepare,
    num_pairs=5,
)
